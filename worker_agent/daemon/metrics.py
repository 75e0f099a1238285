"""What an agent counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

from planner_client.contract import FaultCode
from worker_agent.daemon.wire import AgentCode

SECONDS_BUCKETS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)

_KNOWN_CODES = frozenset(map(str, [*FaultCode, *AgentCode]))


class AgentMetrics:
    """All metrics of one agent."""

    def __init__(self, version: str) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        Info("hydraulis_agent_build", "Which version of the agent runs.", registry=self.registry).info(
            {"version": version}
        )
        self.hand_ins = Counter(
            "hydraulis_agent_hand_ins", "What ranks handed in, repetitions included.", registry=self.registry
        )
        self.planner_up = Gauge(
            "hydraulis_agent_planner_up", "1 if the planner took the last heartbeat.", registry=self.registry
        )
        self.planner_errors = Counter(
            "hydraulis_agent_planner_errors",
            "Questions that the planner refused or left unanswered.",
            registry=self.registry,
        )
        self.timings_sent = Counter(
            "hydraulis_agent_timings_sent", "Reports of measured times that the planner took.", registry=self.registry
        )
        self.timings_dropped = Counter(
            "hydraulis_agent_timings_dropped", "Reports of measured times that were given up.", registry=self.registry
        )
        self._plan_seconds = Histogram(
            "hydraulis_agent_plan_seconds",
            "From the last rank's hand-in to the plan; its count is the number of plans.",
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        self._failures = Counter(
            "hydraulis_agent_iteration_failures",
            "Iterations without a plan, by why.",
            ["code"],
            registry=self.registry,
        )

    def observe_plan(self, seconds: float) -> None:
        """Count a plan that came."""
        self._plan_seconds.observe(seconds)

    def observe_failure(self, code: str) -> None:
        """Count an iteration that has no plan."""
        self._failures.labels(code if code in _KNOWN_CODES else "other").inc()
