"""Measurements: raw samples of micro-batches, memory and collectives, which the planner fits a profile to."""

from typing import Annotated, Self

from pydantic import Field, model_validator

from planner_client.contract.fit import is_absent
from planner_client.contract.profile import (
    MAX_COLLECTIVES,
    MAX_LAYOUTS,
    CollectiveKind,
    Device,
    MemoryModel,
    ModelShape,
    Text,
    refuse_repeated_layouts,
)
from planner_client.contract.scalars import (
    MAX_GPUS,
    Degree,
    LengthTokens,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProfileName,
    Sent,
)


class MicroBatchSample(Sent):
    """One measured micro-batch.

    Attributes
    ----------
    lengths
        Its sequences' lengths (tokens).
    time_ms
        Its time on one pipeline stage, forward and backward.
    is_outlier
        Marked by who measured as not to be fitted; it is kept all the same.
    memory_bytes
        Peak memory while it ran, of the fullest GPU of the replica.
    """

    lengths: Annotated[list[LengthTokens], Field(min_length=1, max_length=100_000, fail_fast=True)]
    time_ms: PositiveFloat
    is_outlier: bool = Field(default=False, exclude_if=is_absent)
    memory_bytes: NonNegativeInt | None = Field(default=None, exclude_if=is_absent)


class MeasuredLayout(Sent):
    """Raw samples of one layout; the planner fits ``a``, ``b`` and ``c`` to them.

    Attributes
    ----------
    tp, cp, pp
        Degrees of the layout: tensor, context and pipeline parallel.
    max_tokens
        Measured limit of one micro-batch of one replica (tokens); without it the limit is fitted to the samples'
        ``memory_bytes``, or comes from the measurement's memory model.
    samples
        Measured micro-batches; at least three that are not marked as outliers.
    """

    tp: Degree
    cp: Degree = 1
    pp: Degree
    max_tokens: LengthTokens | None = None
    samples: Annotated[list[MicroBatchSample], Field(min_length=3, max_length=100_000)]

    @model_validator(mode="after")
    def _enough_samples_to_fit(self) -> Self:
        num_fitted = sum(not sample.is_outlier for sample in self.samples)
        if num_fitted < 3:
            raise ValueError(
                f"layout (tp={self.tp}, cp={self.cp}, pp={self.pp}) has {num_fitted} samples that are not marked as "
                "outliers; three are needed, so measure more"
            )
        return self

    @property
    def has_memory(self) -> bool:
        """Whether the memory of micro-batches of two different sizes was measured, which a limit can be fitted to."""
        return len({sum(sample.lengths) for sample in self.samples if sample.memory_bytes is not None}) > 1


class CollectiveSample(Sent):
    """One measured collective.

    Attributes
    ----------
    kind
        Which collective; ``send`` is from one rank to another.
    num_ranks
        Ranks that took part.
    num_bytes
        Bytes that each rank put in.
    time_ms
        Its time.
    """

    kind: CollectiveKind
    num_ranks: Annotated[int, Field(ge=2, le=MAX_GPUS, strict=True)]
    num_bytes: PositiveInt
    time_ms: PositiveFloat


class EstimatedLayout(Sent):
    """A layout that was not measured, to be estimated from those that were.

    Attributes
    ----------
    tp, cp, pp
        Degrees of the layout: tensor, context and pipeline parallel.
    max_tokens
        Limit of one micro-batch of one replica (tokens); without it, that of the measured layouts that spread no
        further, or the memory model's.
    """

    tp: Degree
    cp: Degree = 1
    pp: Degree
    max_tokens: LengthTokens | None = None


class ProfileMeasurement(Sent):
    """A profile as measured: raw samples in place of coefficients.

    Attributes
    ----------
    name
        What requests are to call the profile by.
    source
        Where its figures come from.
    model
        The model.
    device
        The type of GPU (or CPU).
    memory
        Gives the limit of layouts without ``max_tokens`` and without measured memory.
    sync_ms
        Time of synchronisation that plans report on top of the makespan.
    layouts
        What was measured of each layout, each layout once.
    collectives
        Measured collectives among ranks of this device; the profile keeps what they cost.
    estimate
        Layouts that were not measured and are to be estimated from those that were; the profile marks them.
    """

    name: ProfileName
    source: Text
    model: ModelShape
    device: Device
    memory: MemoryModel | None = Field(default=None, exclude_if=is_absent)
    sync_ms: NonNegativeFloat = 0.0
    layouts: Annotated[list[MeasuredLayout], Field(min_length=1, max_length=MAX_LAYOUTS)]
    collectives: Annotated[list[CollectiveSample], Field(max_length=10_000)] = Field(
        default_factory=list, exclude_if=is_absent
    )
    estimate: Annotated[list[EstimatedLayout], Field(max_length=MAX_LAYOUTS)] = Field(
        default_factory=list, exclude_if=is_absent
    )

    @model_validator(mode="after")
    def _layouts_are_distinct_and_limited(self) -> Self:
        refuse_repeated_layouts([*self.layouts, *self.estimate])
        if len(self.layouts) + len(self.estimate) > MAX_LAYOUTS:
            raise ValueError(
                f"{len(self.layouts)} measured and {len(self.estimate)} estimated layouts are more than the "
                f"{MAX_LAYOUTS} that a profile may have; estimate fewer"
            )
        num_collectives = len({(sample.kind, sample.num_ranks) for sample in self.collectives})
        if num_collectives > MAX_COLLECTIVES:
            raise ValueError(
                f"collectives are of {num_collectives} kinds and numbers of ranks; send at most {MAX_COLLECTIVES}"
            )
        for layout in self.layouts:
            if layout.max_tokens is None and not layout.has_memory and self.memory is None:
                raise ValueError(
                    f"layout (tp={layout.tp}, cp={layout.cp}, pp={layout.pp}) has no max_tokens, and there is nothing "
                    "to derive it from: give max_tokens, memory_bytes of samples with different numbers of tokens, or "
                    "a memory model"
                )
        return self
