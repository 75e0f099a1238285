"""What the service counts, for Prometheus; one registry for each app, so that apps in one process do not mix."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from planner_client.contract import IterationTimings, Plan
from planner_service.pool import Solved, SolverPool

SECONDS_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
RATIO_BUCKETS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0)
GAP_BUCKETS = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Metrics:
    """All metrics of one app."""

    def __init__(self, pool: SolverPool, *, num_long_polls: Callable[[], int] = lambda: 0) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "hydraulis_http_requests", "Requests answered.", ["method", "route", "status"], registry=self.registry
        )
        self.request_seconds = Histogram(
            "hydraulis_http_request_seconds",
            "Time from a request's first byte to its answer.",
            ["route"],
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self.cache_hits = Counter(
            "hydraulis_plan_cache_hits",
            "Plans answered from the store or shared with a request in progress.",
            registry=self.registry,
        )
        self.cut_plans = Counter(
            "hydraulis_plans_cut_by_deadline", "Plans answered as incumbents at the deadline.", registry=self.registry
        )
        self._solve_seconds = self._histogram("hydraulis_solve_seconds", "Time a solver had a request.")
        self._wait_seconds = self._histogram("hydraulis_queue_wait_seconds", "Time a request waited for a solver.")
        self._makespan_seconds = self._histogram("hydraulis_plan_makespan_seconds", "Predicted makespan of new plans.")
        self._gap = Histogram(
            "hydraulis_plan_gap", "Proven gap of new plans.", buckets=GAP_BUCKETS, registry=self.registry
        )
        self._iterations = Counter(
            "hydraulis_iterations",
            "Iterations of jobs finished by this service.",
            ["outcome", "sources"],
            registry=self.registry,
        )
        self.fallbacks = Counter(
            "hydraulis_fallback_iterations",
            "Iterations that clients planned by themselves, as they told.",
            registry=self.registry,
        )
        self._measured_seconds = self._histogram("hydraulis_measured_replica_seconds", "Measured times of replicas.")
        self._measured_ratio = Histogram(
            "hydraulis_measured_over_predicted",
            "Measured time of a replica over its predicted makespan.",
            buckets=RATIO_BUCKETS,
            registry=self.registry,
        )
        self._gauge("hydraulis_solvers_ready", "Solver processes that are warm.").set_function(
            lambda: float(pool.num_ready)
        )
        self._gauge("hydraulis_requests_waiting", "Requests that wait for a solver.").set_function(
            lambda: float(pool.num_waiting)
        )
        self._gauge("hydraulis_long_polls", "Callers that wait for plans of jobs.").set_function(
            lambda: float(num_long_polls())
        )
        self._gauge("hydraulis_solvers_replaced", "Solver processes that died or were killed.").set_function(
            lambda: float(pool.num_replaced)
        )

    def observe_plan(self, solved: Solved) -> None:
        """Count a plan that a solver has just found."""
        self._solve_seconds.observe(solved.solve_ms / 1000.0)
        self._wait_seconds.observe(solved.wait_ms / 1000.0)
        self._makespan_seconds.observe(solved.plan.makespan_ms / 1000.0)
        if solved.plan.gap is not None:
            self._gap.observe(solved.plan.gap)
        if solved.plan.cut_by_wall_clock:
            self.cut_plans.inc()

    def observe_iteration(self, outcome: str, *, is_overdue: bool) -> None:
        """Count an iteration of a job that this service finished: ``planned`` or ``failed``."""
        self._iterations.labels(outcome, "sources missing" if is_overdue else "complete").inc()

    def observe_measured(self, plan: Plan, timings: IterationTimings) -> None:
        """Count what ranks measured of a plan, beside what it predicted."""
        for timing in timings.replicas:
            predicted_ms = plan.replicas[timing.replica].makespan_ms
            self._measured_seconds.observe(timing.wall_ms / 1000.0)
            if predicted_ms > 0:
                self._measured_ratio.observe(timing.wall_ms / predicted_ms)

    def _histogram(self, name: str, meaning: str) -> Histogram:
        return Histogram(name, meaning, buckets=SECONDS_BUCKETS, registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, registry=self.registry)
