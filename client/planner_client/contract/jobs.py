"""Jobs: training runs whose iterations are planned as their sources report what they hold."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from planner_client.contract.faults import Problem
from planner_client.contract.histogram import Histogram
from planner_client.contract.learning import LearningMode
from planner_client.contract.request import AtomicGroup, Cluster, ListedLengths, PlanRequest
from planner_client.contract.scalars import (
    MAX_ATOMIC_GROUPS,
    MAX_SOURCES,
    MAX_WAIT_MS,
    FewEntries,
    JobName,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Returned,
    Sent,
    SourceName,
)

MissingSources = Literal["leave-out", "refuse"]
"""What becomes of an iteration whose sources did not all report in time."""

IterationState = Literal["collecting", "due", "solving", "planned", "failed"]
"""How far an iteration is: sources report; it waits for a solver; a solver has it; done; there is no plan."""


class JobSpec(Cluster):
    """A training run: its cluster, its constraints, and who reports the sequences of each iteration.

    Attributes
    ----------
    name
        What the job is called in addresses.
    sources
        All that report the sequences of each iteration.
    source_wait_ms
        How long an iteration waits for the other sources after the first one reported.
    missing_sources
        What happens then: ``leave-out`` plans what was reported and names who is missing, whose sequences wait for a
        later iteration; ``refuse`` gives no plan.
    plan_wait_ms
        How long the plan of an iteration is of use, counted from when no source is waited for any more. An iteration
        that no solver took up by then gets no plan (``plan-too-late``), so that a service with too much to do plans
        those that can still be helped. Null: a plan is of use at any time.
    learning
        What becomes of measured times: ``off`` keeps them; ``observe`` learns from them and shows what it learned, and
        plans as registered; ``on`` plans with what it learned.
    """

    name: JobName
    sources: Annotated[list[SourceName], Field(min_length=1, max_length=MAX_SOURCES)]
    source_wait_ms: Annotated[PositiveInt, Field(le=MAX_WAIT_MS)] = 10_000
    missing_sources: MissingSources = "leave-out"
    plan_wait_ms: Annotated[PositiveInt, Field(le=MAX_WAIT_MS)] | None = None
    learning: LearningMode = "observe"

    @model_validator(mode="after")
    def _sources_are_distinct(self) -> Self:
        seen: set[str] = set()
        for source in self.sources:
            if source in seen:
                raise ValueError(f"source {source} is named twice; name each source once")
            seen.add(source)
        return self


class SourceBatch(Sent):
    """What one source holds of one iteration's batch: lengths in the order held, or a histogram.

    Attributes
    ----------
    lengths
        Lengths of its sequences in the order held (tokens).
    histogram
        How many sequences of each length there are.
    atomic_groups
        Sequences among them that must share a micro-batch.
    """

    lengths: ListedLengths | None = None
    histogram: Histogram | None = None
    atomic_groups: Annotated[list[AtomicGroup], Field(max_length=MAX_ATOMIC_GROUPS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_batch(self) -> Self:
        if (self.lengths is None) == (self.histogram is None):
            raise ValueError("give the batch as either lengths or histogram, not both and not neither")
        return self

    def counted(self) -> Histogram:
        """Return the batch as a histogram, however it was given."""
        return self.histogram if self.histogram is not None else Histogram.of(self.lengths or ())


def request_for(cluster: Cluster, iteration: int | None, batches: Mapping[str, SourceBatch]) -> PlanRequest:
    """Return what is asked for one iteration of a cluster, from what its sources hold.

    Where every source gives its order the request has lengths, else histograms.

    Raises
    ------
    ValueError
        If the batches do not suit the cluster's options; pydantic's ``ValidationError``.
    """
    fields: dict[str, Any] = {name: getattr(cluster, name) for name in Cluster.model_fields}
    ordered = dict(sorted(batches.items()))
    if all(batch.lengths is not None for batch in ordered.values()):
        fields["lengths"] = {source: batch.lengths for source, batch in ordered.items()}
    else:
        fields["histograms"] = {source: batch.counted() for source, batch in ordered.items()}
    groups = {source: list(batch.atomic_groups) for source, batch in ordered.items() if batch.atomic_groups}
    return PlanRequest(iteration=iteration, atomic_groups=groups or None, **fields)


class SourceBatches(Sent):
    """What several sources hold of one iteration's batch.

    Attributes
    ----------
    sources
        What each of them holds.
    """

    sources: Annotated[dict[SourceName, SourceBatch], Field(min_length=1, max_length=MAX_SOURCES), FewEntries]


class _JobFacts(Returned):
    """What is told of a job wherever it is.

    Attributes
    ----------
    name
        What it is called.
    profiles
        Names of its profiles, joined by ``+``.
    num_gpus
        GPUs of the cluster.
    num_sources
        Sources of each iteration.
    created_at
        When it was registered (seconds since 1970, UTC).
    """

    name: str
    profiles: str
    num_gpus: PositiveInt
    num_sources: PositiveInt
    created_at: NonNegativeFloat


class Job(_JobFacts):
    """A registered job.

    Attributes
    ----------
    spec
        What was registered.
    """

    spec: JobSpec


class JobSummary(_JobFacts):
    """One job in a list.

    Attributes
    ----------
    num_iterations, num_planned, num_failed
        Iterations that are kept, those with a plan, and those for which there is none.
    last_iteration
        Highest number of an iteration; null if nothing was reported yet.
    """

    num_iterations: NonNegativeInt
    num_planned: NonNegativeInt
    num_failed: NonNegativeInt
    last_iteration: NonNegativeInt | None


class JobList(Returned):
    """Some jobs.

    Attributes
    ----------
    jobs
        Ascending by name.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    jobs: list[JobSummary]
    next_after: str | None


class IterationSummary(Returned):
    """How far an iteration is, and what its plan predicts.

    Attributes
    ----------
    iteration
        Its number.
    state
        ``collecting``, ``due``, ``solving``, ``planned`` or ``failed``.
    num_reported
        Sources that reported.
    due_at
        When it is planned without those missing (seconds since 1970, UTC); 0 before anybody reported.
    finished_at
        When it was planned or failed; null before.
    digest
        The plan's digest; null without a plan.
    strategy, makespan_ms, gap, planning_ms
        As in the plan; null without one.
    measured_ms
        Longest time that a replica measured; null while no timings came.
    code
        Why there is no plan; null if there is one or one may come.
    """

    iteration: NonNegativeInt
    state: IterationState
    num_reported: NonNegativeInt
    due_at: NonNegativeFloat
    finished_at: NonNegativeFloat | None = None
    digest: str | None = None
    strategy: str | None = None
    makespan_ms: NonNegativeFloat | None = None
    gap: NonNegativeFloat | None = None
    planning_ms: NonNegativeFloat | None = None
    measured_ms: NonNegativeFloat | None = None
    code: str | None = None


class IterationStatus(IterationSummary):
    """One iteration in full.

    Attributes
    ----------
    job
        The job's name.
    missing
        Sources that have not reported, or that the plan was made without; the first 1000 of them.
    num_missing
        How many there are.
    num_tries
        Times that a solver took it up.
    problem
        Why there is no plan; null if there is one or one may come.
    """

    job: str
    missing: list[str]
    num_missing: NonNegativeInt
    num_tries: NonNegativeInt
    problem: Problem | None = None


class IterationList(Returned):
    """Some iterations of a job.

    Attributes
    ----------
    iterations
        Ascending by number, or descending if the newest were asked for.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    iterations: list[IterationSummary]
    next_after: NonNegativeInt | None


class PlanSummary(Returned):
    """One plan in a list.

    Attributes
    ----------
    digest
        SHA-256 of what ranks act on.
    number
        Plans are numbered in the order they were stored.
    created_at
        When it was stored (seconds since 1970, UTC).
    num_bytes
        Size of its JSON.
    """

    digest: str
    number: NonNegativeInt
    created_at: NonNegativeFloat
    num_bytes: NonNegativeInt


class PlanList(Returned):
    """Some plans.

    Attributes
    ----------
    plans
        In the order they were stored.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    plans: list[PlanSummary]
    next_after: NonNegativeInt | None
