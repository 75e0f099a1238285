"""Overviews: jobs and plans in bounded size, whatever their own, as charts and people read them."""

from pydantic import Field

from planner_client.contract.plan import PassedOver
from planner_client.contract.scalars import NonNegativeFloat, NonNegativeInt, PositiveInt, Returned


class Spread(Returned):
    """A figure over the points of a series; null where a point has none.

    Attributes
    ----------
    mean, lowest, highest
        Over what each point stands for.
    """

    mean: list[NonNegativeFloat | None]
    lowest: list[NonNegativeFloat | None]
    highest: list[NonNegativeFloat | None]


class StrategyCounts(Returned):
    """How often one strategy was chosen, point by point.

    Attributes
    ----------
    strategy
        As it is written, such as ``(16,1)x1,(8,1)x6``; null for all that are not among the most frequent.
    counts
        Iterations of each point that run on it.
    """

    strategy: str | None
    counts: list[NonNegativeInt]


class JobSeries(Returned):
    """A job over its iterations; neighbouring iterations share a point where there are many.

    Attributes
    ----------
    job
        The job's name.
    num_iterations
        Iterations of the job that are kept.
    num_read
        Iterations that this is about: consecutive ones of those kept.
    has_older, has_newer
        Whether more are kept before and after these.
    first, last
        Lowest and highest number of an iteration of each point, ascending.
    num_planned, num_failed, num_open
        Iterations of each point with a plan, without one for good, and unfinished.
    makespan_ms, measured_ms, gap, planning_ms
        As in iterations.
    strategies
        The most frequent strategies, most frequent first, and at last all others together.
    num_strategies
        Different strategies among these iterations.
    """

    job: str
    num_iterations: NonNegativeInt
    num_read: NonNegativeInt
    has_older: bool
    has_newer: bool
    first: list[NonNegativeInt]
    last: list[NonNegativeInt]
    num_planned: list[NonNegativeInt]
    num_failed: list[NonNegativeInt]
    num_open: list[NonNegativeInt]
    makespan_ms: Spread
    measured_ms: Spread
    gap: Spread
    planning_ms: Spread
    strategies: list[StrategyCounts]
    num_strategies: NonNegativeInt


class ReplicaLoad(Returned):
    """What one replica of a plan does.

    Attributes
    ----------
    replica
        Its number in the plan.
    layout
        Its layout, such as ``(8,1)`` for (tp, pp) or ``(8,2,1)`` for (tp, cp, pp).
    device
        Type of GPU that it runs on.
    ranks
        Its ranks as ranges, such as ``0-7,16-23``.
    num_sequences, num_tokens, num_micro_batches
        What it runs; tokens without padding.
    max_tokens
        Most tokens of one micro-batch.
    makespan_ms, simulated_ms
        Predicted times.
    measured_ms
        Longest wall-clock time that was measured; null while no timings of it came.
    """

    replica: NonNegativeInt
    layout: str
    device: str
    ranks: str
    num_sequences: NonNegativeInt
    num_tokens: NonNegativeInt
    num_micro_batches: NonNegativeInt
    max_tokens: PositiveInt
    makespan_ms: NonNegativeFloat
    simulated_ms: NonNegativeFloat
    measured_ms: NonNegativeFloat | None = None


class ReplicaList(Returned):
    """Some replicas of a plan.

    Attributes
    ----------
    replicas
        Ascending by number.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    replicas: list[ReplicaLoad]
    next_after: NonNegativeInt | None


class ReplicaSeries(Returned):
    """Loads of all replicas; neighbouring replicas share a point where there are many.

    Attributes
    ----------
    first, last
        Lowest and highest number of a replica of each point.
    layout
        Layout of the first one of each point.
    makespan_ms, measured_ms
        As in `ReplicaLoad`.
    """

    first: list[NonNegativeInt]
    last: list[NonNegativeInt]
    layout: list[str]
    makespan_ms: Spread
    measured_ms: Spread


class PipelineTimeline(Returned):
    """When each stage of the slowest replicas computes, by the cost model under 1F1B.

    Attributes
    ----------
    row_replica, row_stage
        Replica and pipeline stage of each row.
    row_name
        What each row is called.
    num_replicas_shown
        Replicas that have rows, the slowest; fewer than there are where there would be too much to draw.
    total_ms
        When the last operation ends.
    row, micro_batch
        Row of each operation, and which micro-batch of the replica it computes.
    is_backward
        Whether it is a backward pass.
    begin_ms, end_ms
        From when to when it runs.
    """

    row_replica: list[NonNegativeInt]
    row_stage: list[NonNegativeInt]
    row_name: list[str]
    num_replicas_shown: NonNegativeInt
    total_ms: NonNegativeFloat
    row: list[NonNegativeInt]
    micro_batch: list[NonNegativeInt]
    is_backward: list[bool]
    begin_ms: list[NonNegativeFloat]
    end_ms: list[NonNegativeFloat]


class LayoutCounts(Returned):
    """Sequences that one layout runs, bin by bin.

    Attributes
    ----------
    layout
        As in `ReplicaLoad`; null for all that are not among those with most sequences.
    num_sequences
        Of each bin.
    """

    layout: str | None
    num_sequences: list[NonNegativeInt]


class LengthBins(Returned):
    """How many sequences of which lengths a plan has, and which layouts run them.

    Attributes
    ----------
    shortest, longest
        Bounds of each bin (tokens), both included.
    num_sequences, num_tokens
        Of each bin.
    layouts
        The same sequences by layout.
    """

    shortest: list[PositiveInt]
    longest: list[PositiveInt]
    num_sequences: list[NonNegativeInt]
    num_tokens: list[NonNegativeInt]
    layouts: list[LayoutCounts]


class PlanFigures(Returned):
    """What a plan says of itself as a whole; every field is the plan's own.

    Attributes
    ----------
    digest, profile, strategy, num_gpus, num_sequences, num_tokens, makespan_ms, simulated_ms, sync_ms
        As in the plan.
    lower_bound_ms, gap, bound_scope, all_strategies_lower_bound_ms, solved_by, status, planning_ms, method, cost
        As in the plan.
    alignment, cut_by_wall_clock
        As in the plan.
    passed_over
        Candidate strategies that could not be used, with the reason.
    """

    digest: str
    profile: str
    strategy: str
    num_gpus: PositiveInt
    num_sequences: NonNegativeInt
    num_tokens: NonNegativeInt
    makespan_ms: NonNegativeFloat
    simulated_ms: NonNegativeFloat
    sync_ms: NonNegativeFloat
    lower_bound_ms: NonNegativeFloat | None
    gap: NonNegativeFloat | None
    bound_scope: str | None
    all_strategies_lower_bound_ms: NonNegativeFloat | None = None
    solved_by: str
    status: str
    planning_ms: NonNegativeFloat
    method: str = "hydraulis"
    cost: str = "packed"
    alignment: PositiveInt = 1
    cut_by_wall_clock: bool = False
    passed_over: list[PassedOver] = Field(default_factory=list)


class PlanOverview(Returned):
    """The plan of one iteration, in bounded size.

    Attributes
    ----------
    job, iteration
        Whose plan it is.
    plan
        What it says of itself.
    num_dropped
        Over-long sequences that were left out.
    num_replicas, num_idle
        Replicas of the strategy, and those that have nothing to do.
    num_micro_batches
        Of all replicas together.
    num_padding_tokens
        Tokens on top of the sequences' own.
    measured_ms
        Longest time that a replica measured; null while no timings came.
    num_measured
        Replicas that timings came of.
    replicas
        Loads of all replicas.
    lengths
        Lengths of the sequences.
    timeline
        Pipelines of the slowest replicas.
    """

    job: str
    iteration: NonNegativeInt
    plan: PlanFigures
    num_dropped: NonNegativeInt
    num_replicas: NonNegativeInt
    num_idle: NonNegativeInt
    num_micro_batches: NonNegativeInt
    num_padding_tokens: NonNegativeInt
    measured_ms: NonNegativeFloat | None
    num_measured: NonNegativeInt
    replicas: ReplicaSeries
    lengths: LengthBins
    timeline: PipelineTimeline


class Candidate(Returned):
    """A candidate strategy of a job, and why it was chosen for an iteration or not.

    Attributes
    ----------
    strategy
        As it is written, such as ``(16,1)x1,(8,1)x6``.
    is_chosen
        Whether the plan was made on it.
    lower_bound_ms
        No plan on it has a smaller makespan; null if it could not be used, or no bound was proven.
    reason
        Why it could not be used, a clause with the strategy as its subject; null if it could.
    """

    strategy: str
    is_chosen: bool
    lower_bound_ms: NonNegativeFloat | None
    reason: str | None = None


class CandidateList(Returned):
    """The candidate strategies of a job, as they stood for one iteration.

    Attributes
    ----------
    candidates
        The chosen one first, the others ascending by bound, and at last those that could not be used; none where the
        job names no candidates, so that all strategies are searched.
    """

    candidates: list[Candidate]
