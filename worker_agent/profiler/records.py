"""What was measured, as values that a journal keeps: one record for each round. Pure: no torch."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Index = Annotated[int, Field(ge=0)]
CollectiveKind = Literal["all-reduce", "all-to-all", "send"]


class _Record(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Round(_Record):
    """One iteration that measures: every replica of one layout runs the same micro-batches.

    Attributes
    ----------
    layout
        Index of the layout in the settings.
    kind
        ``time`` runs several micro-batches, ``memory`` one of them as often as there are stages, so that the first
        stage holds as many at once as it ever does.
    packings
        Indices of the micro-batches; replica r begins with the r-th share of them.
    """

    layout: Index
    kind: Literal["time", "memory"]
    packings: Annotated[tuple[Index, ...], Field(min_length=1)]


class Reading(_Record):
    """One micro-batch as measured on one replica.

    Attributes
    ----------
    packing
        Index of the micro-batch.
    time_ms
        Forward and backward on the replica's slowest rank.
    memory_bytes
        Peak of the replica's fullest rank while it ran; only in rounds of kind ``memory``, and where it can be read.
    """

    packing: Index
    time_ms: NonNegative
    memory_bytes: Index | None = None


class RoundRecord(_Record):
    """A finished round.

    Attributes
    ----------
    readings
        One for each micro-batch of each replica; none if memory did not suffice.
    overhead_ms
        What the iteration took besides computing, on the rank that computed longest.
    elapsed_s
        Wall time of the iteration.
    foreign_cores
        Cores that other processes kept busy meanwhile, on average; None where the system does not tell.
    lacked_memory
        Whether the micro-batch did not fit.
    """

    round: Round
    readings: tuple[Reading, ...]
    overhead_ms: NonNegative = 0.0
    elapsed_s: NonNegative = 0.0
    foreign_cores: NonNegative | None = None
    lacked_memory: bool = False


class Collective(_Record):
    """One collective to time: its kind, the ranks of each group, and the bytes that each rank gives."""

    kind: CollectiveKind
    num_ranks: Annotated[int, Field(ge=2)]
    num_bytes: Annotated[int, Field(ge=1)]


class CollectiveRecord(_Record):
    """A timed collective: the median of its repeats, each on the slowest rank."""

    collective: Collective
    time_ms: NonNegative


Record = RoundRecord | CollectiveRecord
