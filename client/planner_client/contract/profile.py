"""Profiles: what one model costs, and how much of it fits, on one type of GPU."""

from typing import Annotated, Self

from pydantic import Field, StringConstraints, model_validator

from planner_client.contract.scalars import (
    Coefficient,
    Degree,
    LengthTokens,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProfileName,
    Sent,
)

Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class ModelShape(Sent):
    """The Transformer a profile speaks of."""

    name: Text
    num_layers: PositiveInt
    hidden_size: PositiveInt
    vocab_size: PositiveInt


class Device(Sent):
    """One type of GPU (or CPU) and how many of them share a node."""

    name: Text
    memory_bytes: PositiveInt
    gpus_per_node: PositiveInt = 8


class ContextBytes(Sent):
    """Bytes that communicators take from each GPU, by the span of the largest group."""

    gpu1: NonNegativeInt
    gpu2: NonNegativeInt
    gpu4: NonNegativeInt
    node: NonNegativeInt


class MemoryModel(Sent):
    """Coefficients of the memory model of one GPU (see ``planner_service.core.memory``)."""

    activation_bytes_per_layer_token_hidden_by_tp: dict[
        Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,3}$")], PositiveFloat
    ]
    state_bytes_per_parameter_unit: NonNegativeFloat
    sharded_state_share: Annotated[float, Field(ge=0, le=1)]
    context_bytes: ContextBytes
    safety_bytes: NonNegativeInt


class Fit(Sent):
    """How well fitted coefficients explain the samples they were fitted on."""

    num_samples: PositiveInt
    r2: Annotated[float, Field(le=1)]
    median_abs_pct_error: NonNegativeFloat


class LayoutCost(Sent):
    """Time of one micro-batch on one pipeline stage, forward and backward.

    ``t(M) = c_ms + sum over s in M of (a_ms_per_token2 * s**2 + b_ms_per_token * s)`` with ``s`` in tokens.
    ``max_tokens`` is the measured limit of one micro-batch of one replica; without it, the profile's
    memory model gives the limit.
    """

    tp: Degree
    cp: Degree = 1
    pp: Degree
    a_ms_per_token2: Coefficient
    b_ms_per_token: Coefficient
    c_ms: Coefficient
    max_tokens: LengthTokens | None = None
    fit: Fit | None = None


class Profile(Sent):
    """Costs and limits of every layout of one model on one type of GPU.

    ``heterogeneous_sync_ms`` and ``fewest_useful_tokens_by_tp`` came with the published profiles and are kept for the
    record; the published planner does not use them, and neither does this one. ``sync_ms`` is what plans report.
    """

    name: ProfileName
    source: Text
    model: ModelShape
    device: Device
    memory: MemoryModel | None = None
    fewest_useful_tokens_by_tp: dict[str, PositiveInt] | None = None
    heterogeneous_sync_ms: NonNegativeFloat | None = None
    sync_ms: NonNegativeFloat = 0.0
    layouts: Annotated[list[LayoutCost], Field(min_length=1, max_length=1024)]

    @model_validator(mode="after")
    def _layouts_are_distinct_and_limited(self) -> Self:
        _refuse_repeated_layouts(self.layouts)
        for layout in self.layouts:
            if layout.max_tokens is None and self.memory is None:
                raise ValueError(
                    f"layout (tp={layout.tp}, cp={layout.cp}, pp={layout.pp}) has no max_tokens and the profile "
                    "has no memory model to derive it from; give one of the two"
                )
        return self


class MicroBatchSample(Sent):
    """One measured micro-batch: its sequences' lengths in tokens and its time on one stage."""

    lengths: Annotated[list[LengthTokens], Field(min_length=1, max_length=100_000, fail_fast=True)]
    time_ms: PositiveFloat


class MeasuredLayout(Sent):
    """Raw samples of one layout; the planner fits ``a``, ``b`` and ``c`` to them."""

    tp: Degree
    cp: Degree = 1
    pp: Degree
    max_tokens: LengthTokens
    samples: Annotated[list[MicroBatchSample], Field(min_length=3, max_length=100_000)]


class ProfileMeasurement(Sent):
    """A profile as measured: raw samples in place of coefficients."""

    name: ProfileName
    source: Text
    model: ModelShape
    device: Device
    sync_ms: NonNegativeFloat = 0.0
    layouts: Annotated[list[MeasuredLayout], Field(min_length=1, max_length=1024)]

    @model_validator(mode="after")
    def _layouts_are_distinct(self) -> Self:
        _refuse_repeated_layouts(self.layouts)
        return self


def _refuse_repeated_layouts(layouts: list[LayoutCost] | list[MeasuredLayout]) -> None:
    seen: set[tuple[int, int, int]] = set()
    for layout in layouts:
        key = (layout.tp, layout.cp, layout.pp)
        if key in seen:
            raise ValueError(f"layout (tp={layout.tp}, cp={layout.cp}, pp={layout.pp}) appears twice; keep one of them")
        seen.add(key)
