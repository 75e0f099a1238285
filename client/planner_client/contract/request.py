"""What a trainer asks: a profile, a cluster, a batch and options."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planner_client.contract.histogram import Histogram
from planner_client.contract.profile import Profile
from planner_client.contract.scalars import (
    MAX_DEADLINE_MS,
    MAX_SEQUENCES_LISTED,
    MAX_SOURCES,
    MAX_STRATEGIES,
    LengthTokens,
    NonNegativeFloat,
    NonNegativeInt,
    NumGpus,
    PositiveInt,
    ProfileName,
    Sent,
    SourceName,
)
from planner_client.contract.strategy import OptimizerLayout, ReplicaGroup

ListedLengths = Annotated[list[LengthTokens], Field(max_length=MAX_SEQUENCES_LISTED, fail_fast=True)]
StrategyGroups = Annotated[list[ReplicaGroup], Field(min_length=1, max_length=1024)]

DEFAULT_SOURCE = "local"
"""Name of the one source of a request whose lengths come as a plain list."""


class PlanOptions(Sent):
    """What constrains a plan and the search for it.

    Attributes
    ----------
    alignment
        Each sequence counts, for caps and for time, at its length rounded up to a multiple of this (tokens).
    max_length
        Longest sequence to train on (tokens); longer ones are over-long.
    over_long
        What becomes of over-long sequences: ``reject`` refuses the batch, ``drop`` leaves them out and lists them.
    deadline_ms
        Wall-clock guard; a plan is returned by then, the best known so far.
    target_gap
        The search stops once the makespan is within this share of the proven bound.
    seed
        Seed of every random choice.
    sync_ms
        Time added to every iteration for synchronisation; the profile's own value if not given.
    method
        ``hydraulis`` plans; ``plain`` does what a plain data loader does (arrival order, round-robin over
        replicas, first-fit by tokens), for comparison.
    """

    alignment: Annotated[PositiveInt, Field(le=65_536)] = 1
    max_length: LengthTokens | None = None
    over_long: Literal["reject", "drop"] = "reject"
    deadline_ms: Annotated[PositiveInt, Field(le=MAX_DEADLINE_MS)] = 1000
    target_gap: Annotated[float, Field(ge=0, le=10)] = 0.002
    seed: Annotated[NonNegativeInt, Field(le=2**31 - 1)] = 0
    sync_ms: NonNegativeFloat | None = None
    method: Literal["hydraulis", "plain"] = "hydraulis"


class PlanRequest(Sent):
    """One iteration to plan.

    The batch is given either as ``lengths`` (a list, or lists by source, in the order held) or as
    ``histograms`` by source. With several ``strategies`` the best is taken; with none, some are generated.
    """

    profile: ProfileName | Profile
    num_gpus: NumGpus
    optimizer_layout: OptimizerLayout | None = None
    strategies: Annotated[list[StrategyGroups], Field(max_length=MAX_STRATEGIES)] = Field(default_factory=list)
    iteration: NonNegativeInt | None = None
    lengths: ListedLengths | Annotated[dict[SourceName, ListedLengths], Field(max_length=MAX_SOURCES)] | None = None
    histograms: Annotated[dict[SourceName, Histogram], Field(max_length=MAX_SOURCES)] | None = None
    options: PlanOptions = PlanOptions()

    @model_validator(mode="after")
    def _one_batch(self) -> Self:
        if (self.lengths is None) == (self.histograms is None):
            raise ValueError("give the batch as either lengths or histograms, not both and not neither")
        if self.histograms is not None and self.options.method == "plain":
            raise ValueError(
                "method plain needs the order in which sequences arrive, which histograms do not hold; send lengths"
            )
        return self

    def lengths_by_source(self) -> dict[str, list[int]] | None:
        """Return the listed lengths by source, or None if the batch came as histograms."""
        if isinstance(self.lengths, list):
            return {DEFAULT_SOURCE: self.lengths}
        return self.lengths

    def histograms_by_source(self) -> dict[str, Histogram]:
        """Return the batch as one histogram a source, however it was given."""
        listed = self.lengths_by_source()
        if listed is None:
            return dict(self.histograms or {})
        return {source: Histogram.of(lengths) for source, lengths in listed.items()}
