"""What the service counts, for Prometheus; one registry for each app, so that apps in one process do not mix.

Labels take few values, all of them the service's own: routes, codes, outcomes. Nothing that callers name is one.
"""

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from planner_client.contract import FaultCode, IterationTimings, Plan
from planner_service.desk.readings import PoolReadings
from planner_service.pool import Solved, SolverPool
from planner_service.store import Claim, StoreUse

SECONDS_BUCKETS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
STORE_BUCKETS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RATIO_BUCKETS = (0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0)
GAP_BUCKETS = (0.0, 0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

_KNOWN_CODES = frozenset(map(str, FaultCode))
_ALERTED_CODES = (FaultCode.INTERNAL, FaultCode.OVERLOADED)
"""Counted from 0 on: the rate of a series that begins at 1 does not show its first time, which alerts wait for."""


class Metrics:
    """All metrics of one app."""

    def __init__(self, pool: SolverPool, *, num_long_polls: Callable[[], int] = lambda: 0, version: str = "") -> None:
        self.registry = CollectorRegistry()
        self.registry.register(PoolReadings(pool))
        ProcessCollector(registry=self.registry)
        Info("hydraulis_build", "Which version of the planner runs.", registry=self.registry).info({"version": version})
        self._add_http_metrics()
        self._add_plan_metrics()
        self._add_job_metrics(num_long_polls)
        self._add_measured_metrics()
        self._add_store_metrics()

    def observe_plan(self, solved: Solved) -> None:
        """Count a plan that a solver has just found."""
        self._solve_seconds.observe(solved.solve_ms / 1000.0)
        self._wait_seconds.observe(solved.wait_ms / 1000.0)
        self._makespan_seconds.observe(solved.plan.makespan_ms / 1000.0)
        if solved.plan.gap is not None:
            self._gap.observe(solved.plan.gap)
        if solved.plan.cut_by_wall_clock:
            self.cut_plans.inc()

    def observe_no_plan(self, code: str) -> None:
        """Count a request that no solver found a plan for."""
        self._solve_failures.labels(_bounded(code)).inc()

    def observe_refusal(self, code: str) -> None:
        """Count a request that was answered with a problem document."""
        self._refusals.labels(_bounded(code)).inc()

    def observe_claim(self, claim: Claim) -> None:
        """Count an iteration that this service took up."""
        self._iteration_wait_seconds.observe(claim.waited_s)

    def observe_iteration(self, outcome: str, *, is_overdue: bool, code: str | None = None) -> None:
        """Count an iteration of a job that this service finished: ``planned``, ``failed`` or ``too late``."""
        self._iterations.labels(outcome, "sources missing" if is_overdue else "complete").inc()
        if code is not None:
            self._iteration_failures.labels(_bounded(code)).inc()

    def observe_measured(self, plan: Plan, timings: IterationTimings) -> None:
        """Count what ranks measured of a plan, beside what it predicted."""
        self.measured.inc()
        for timing in timings.replicas:
            predicted_ms = plan.replicas[timing.replica].makespan_ms
            self._measured_seconds.observe(timing.wall_ms / 1000.0)
            if predicted_ms > 0:
                self._measured_ratio.observe(timing.wall_ms / predicted_ms)
                self._prediction_error.observe(abs(timing.wall_ms / predicted_ms - 1.0))
        # Where ranks report one by one, the slowest replica of a report need not be the iteration's.
        working = {number for number, replica in enumerate(plan.replicas) if replica.micro_batches}
        if working <= {timing.replica for timing in timings.replicas}:
            self._measured_makespan_seconds.observe(max(timing.wall_ms for timing in timings.replicas) / 1000.0)

    def observe_learning(self, num_drifting: int, num_slow: int) -> None:
        """Keep how many jobs drift from their profiles, and how many ranks are slower than others of their type."""
        self._drifting.set(num_drifting)
        self._slow_ranks.set(num_slow)

    def observe_store(self, use: StoreUse) -> None:
        """Count one use of the database; callable from any thread."""
        self._store_seconds.labels(use.operation).observe(use.seconds)
        self._store_retries.labels(use.operation).inc(use.num_attempts - 1)
        if use.has_failed:
            self._store_errors.labels(use.operation).inc()

    def observe_backlog(self, num_open: int, oldest_due_s: float) -> None:
        """Keep what the database said of all jobs."""
        self._store_up.set(1)
        self._open.set(num_open)
        self._oldest_due.set(oldest_due_s)

    def observe_store_lost(self) -> None:
        """Keep that the database says nothing now."""
        self._store_up.set(0)
        self._open.set(math.nan)
        self._oldest_due.set(math.nan)

    def _add_http_metrics(self) -> None:
        self.requests = self._counter("hydraulis_http_requests", "Requests answered.", "method", "route", "status")
        self.request_seconds = self._histogram(
            "hydraulis_http_request_seconds", "Time from a request's first byte to its answer.", labels=("route",)
        )
        self.requests_in_progress = self._gauge(
            "hydraulis_http_requests_in_progress", "Requests not answered yet, long polls among them."
        )
        self._refusals = self._counter("hydraulis_http_refusals", "Requests answered with a problem document.", "code")
        for code in _ALERTED_CODES:
            self._refusals.labels(code)

    def _add_plan_metrics(self) -> None:
        self.cache_hits = self._counter(
            "hydraulis_plan_cache_hits", "Plans answered from the store or shared with a request in progress."
        )
        self.cut_plans = self._counter(
            "hydraulis_plans_cut_by_deadline", "Plans answered as incumbents at the deadline."
        )
        self._solve_seconds = self._histogram("hydraulis_solve_seconds", "Time a solver had a request.")
        self._solve_failures = self._counter(
            "hydraulis_solve_failures", "Requests for new plans that ended without one.", "code"
        )
        self._wait_seconds = self._histogram("hydraulis_queue_wait_seconds", "Time a request waited for a solver.")
        self._makespan_seconds = self._histogram("hydraulis_plan_makespan_seconds", "Predicted makespan of new plans.")
        self._gap = self._histogram("hydraulis_plan_gap_ratio", "Proven gap of new plans.", buckets=GAP_BUCKETS)

    def _add_job_metrics(self, num_long_polls: Callable[[], int]) -> None:
        self._iterations = self._counter(
            "hydraulis_iterations", "Iterations of jobs finished by this service.", "outcome", "sources"
        )
        for outcome in ("planned", "failed"):
            for sources in ("complete", "sources missing"):
                self._iterations.labels(outcome, sources)
        self._iterations.labels("too late", "complete")
        self._iteration_failures = self._counter(
            "hydraulis_iteration_failures", "Iterations of jobs that this service finished without a plan.", "code"
        )
        self._iteration_wait_seconds = self._histogram(
            "hydraulis_iteration_wait_seconds", "Time from when an iteration could be taken up until it was."
        )
        self.given_back = self._counter("hydraulis_iterations_given_back", "Iterations left for another try.")
        self.leases_lost = self._counter("hydraulis_leases_lost", "Iterations that another service took over.")
        self.in_work = self._gauge("hydraulis_iterations_in_work", "Iterations that this service has in work.")
        self._open = self._gauge("hydraulis_iterations_open", "Unfinished iterations of all jobs in the database.")
        self._oldest_due = self._gauge(
            "hydraulis_iterations_oldest_due_seconds", "How long the database's oldest due iteration has waited."
        )
        self._gauge("hydraulis_long_polls", "Callers that wait for plans of jobs.").set_function(
            lambda: float(num_long_polls())
        )

    def _add_measured_metrics(self) -> None:
        self.measured = self._counter("hydraulis_measured_iterations", "Reports of times of plans of the service.")
        self.fallbacks = self._counter(
            "hydraulis_fallback_iterations", "Iterations that clients planned by themselves, as they told."
        )
        self._measured_seconds = self._histogram("hydraulis_measured_replica_seconds", "Measured times of replicas.")
        self._measured_makespan_seconds = self._histogram(
            "hydraulis_measured_makespan_seconds",
            "Measured times of slowest replicas, where all were reported at once.",
        )
        self._measured_ratio = self._histogram(
            "hydraulis_measured_over_predicted_ratio",
            "Measured time of a replica over its predicted makespan.",
            buckets=RATIO_BUCKETS,
        )

        self._prediction_error = self._histogram(
            "hydraulis_prediction_error_ratio",
            "How far the measured time of a replica is from its predicted makespan, as a share of that.",
            buckets=GAP_BUCKETS,
        )
        self.learned_versions = self._counter(
            "hydraulis_learned_versions", "Versions of what jobs learned that this service made."
        )
        self._drifting = self._gauge("hydraulis_drifting_jobs", "Jobs whose GPUs have been far from their profiles.")
        self._slow_ranks = self._gauge("hydraulis_slow_ranks", "Ranks that are slower than others of their type.")

    def _add_store_metrics(self) -> None:
        self._store_seconds = self._histogram(
            "hydraulis_store_seconds",
            "Time of one use of the database, waits and retries included.",
            labels=("operation",),
            buckets=STORE_BUCKETS,
        )
        self._store_errors = self._counter(
            "hydraulis_store_errors", "Uses of the database that it could not be used for.", "operation"
        )
        self._store_retries = self._counter(
            "hydraulis_store_retries", "Further attempts at using the database.", "operation"
        )
        for operation in ("read", "write"):
            for metric in (self._store_seconds, self._store_errors, self._store_retries):
                metric.labels(operation)
        self._store_up = self._gauge("hydraulis_store_up", "Whether the database could be read a few seconds ago.")

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str) -> Gauge:
        return Gauge(name, meaning, registry=self.registry)

    def _histogram(
        self,
        name: str,
        meaning: str,
        *,
        labels: tuple[str, ...] = (),
        buckets: tuple[float, ...] = SECONDS_BUCKETS,
    ) -> Histogram:
        return Histogram(name, meaning, labels, buckets=buckets, registry=self.registry)


def _bounded(code: str) -> str:
    """Return a fault's code; one that a newer planner left in the database must not add metrics without end."""
    return code if code in _KNOWN_CODES else "other"
