"""What a replay is made of, as frozen values."""

from dataclasses import dataclass

from planner_client.contract import Method, Plan, ReplicaGroup

Candidates = tuple[tuple[ReplicaGroup, ...], ...]
"""Strategies to choose from; empty means that all are searched."""


@dataclass(frozen=True)
class Contender:
    """A planner that takes part in a replay.

    Attributes
    ----------
    name
        Distinct among those that take part.
    method
        Who assigns the sequences.
    candidates
        Strategies it chooses from.
    homogeneous
        Whether it may use only strategies whose replicas are alike.
    most_iterations
        It plans only this many, the first ones; all if None.
    """

    name: str
    method: Method = "hydraulis"
    candidates: Candidates = ()
    homogeneous: bool = False
    most_iterations: int | None = None


@dataclass(frozen=True)
class Pipeline:
    """One busy or idle replica of a plan: its micro-batches' times in the order they run (ms a stage)."""

    label: str
    num_stages: int
    micro_batches_ms: tuple[float, ...]


@dataclass(frozen=True)
class Planned:
    """What a plan says of itself.

    Attributes
    ----------
    makespan_ms
        Closed form, the measure common to all planners; excludes ``sync_ms``.
    simulated_ms
        The same plan's time under 1F1B, event by event.
    gap
        To ``lower_bound_ms``, which holds for all that ``bound_scope`` names.
    all_strategies_bound_ms
        Bound on the makespan of every plan on these GPUs, where one was proven.
    """

    strategy: str
    makespan_ms: float
    simulated_ms: float
    sync_ms: float
    planning_ms: float
    lower_bound_ms: float | None
    gap: float | None
    bound_scope: str | None
    all_strategies_bound_ms: float | None
    cut_by_wall_clock: bool
    pipelines: tuple[Pipeline, ...]

    @property
    def all_strategies_gap(self) -> float | None:
        """Gap to the bound over all strategies, None where there is no such bound."""
        bound = self.all_strategies_bound_ms
        return max(0.0, self.makespan_ms / bound - 1) if bound else None


@dataclass(frozen=True)
class Outcome:
    """What one planner made of one iteration: a plan, or the reason why there is none.

    ``is_defect`` tells that the planner itself is at fault: neither the request nor the deadline.
    """

    planner: str
    iteration: int
    planned: Planned | None
    failure: str | None = None
    is_defect: bool = False


@dataclass(frozen=True)
class Iteration:
    """A batch of the stream."""

    index: int
    num_sequences: int
    num_tokens: int
    longest: int


@dataclass(frozen=True)
class StaticTrial:
    """A method on one strategy that is kept for the whole stream."""

    method: Method
    strategy: str
    outcomes: tuple[Outcome, ...]

    @property
    def total_makespan_ms(self) -> float:
        """Sum of the makespans; infinite if an iteration has no plan."""
        if any(outcome.planned is None for outcome in self.outcomes):
            return float("inf")
        return sum(outcome.planned.makespan_ms for outcome in self.outcomes if outcome.planned is not None)


@dataclass(frozen=True)
class Replay:
    """A stream as several planners planned it.

    Attributes
    ----------
    title
        What was replayed, in one line.
    planners
        Names, baselines first, in the order to be shown.
    static
        Every strategy tried for the methods that keep one, with what it cost; the planner of that method's name has
        the outcomes of the best.
    switch_ms
        What a change of strategy between iterations is charged.
    num_left_out
        Sequences of the stream that were over-long and are in no batch.
    """

    title: str
    profile: str
    gpus: str
    num_gpus: int
    planners: tuple[str, ...]
    iterations: tuple[Iteration, ...]
    outcomes: tuple[Outcome, ...]
    static: tuple[StaticTrial, ...] = ()
    switch_ms: float = 0.0
    num_left_out: int = 0

    def of(self, planner: str) -> tuple[Outcome, ...]:
        """Outcomes of one planner, by iteration."""
        return tuple(outcome for outcome in self.outcomes if outcome.planner == planner)


def planned_of(plan: Plan) -> Planned:
    """Take from a plan what a replay keeps of it."""
    return Planned(
        strategy=plan.strategy,
        makespan_ms=plan.makespan_ms,
        simulated_ms=plan.simulated_ms,
        sync_ms=plan.sync_ms,
        planning_ms=plan.planning_ms,
        lower_bound_ms=plan.lower_bound_ms,
        gap=plan.gap,
        bound_scope=plan.bound_scope,
        all_strategies_bound_ms=plan.all_strategies_lower_bound_ms,
        cut_by_wall_clock=plan.cut_by_wall_clock,
        pipelines=tuple(
            Pipeline(
                f"({replica.tp},{replica.pp})" if replica.cp == 1 else f"({replica.tp},{replica.cp},{replica.pp})",
                replica.pp,
                tuple(micro_batch.time_ms for micro_batch in replica.micro_batches),
            )
            for replica in plan.replicas
        ),
    )
