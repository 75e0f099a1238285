"""Profiles: what one model costs, and how much of it fits, on one type of GPU."""

from collections.abc import Sequence
from typing import Annotated, Literal, Protocol, Self

from pydantic import Field, StringConstraints, model_validator

from planner_client.contract.fit import Fit, is_absent
from planner_client.contract.scalars import (
    MAX_GPUS,
    Coefficient,
    Degree,
    FewEntries,
    LengthTokens,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ProfileName,
    Sent,
)

CollectiveKind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send"]

MAX_LAYOUTS = 1024
"""Most layouts of one profile."""

MAX_COLLECTIVES = 256
"""Most collectives of one profile: kinds times different numbers of ranks."""

Text = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class ModelShape(Sent):
    """The Transformer a profile speaks of.

    Attributes
    ----------
    name
        Its name, for people.
    num_layers
        Number of layers.
    hidden_size
        Width of the residual stream.
    vocab_size
        Size of the vocabulary, with its padding.
    """

    name: Text
    num_layers: PositiveInt
    hidden_size: PositiveInt
    vocab_size: PositiveInt


class Device(Sent):
    """One type of GPU (or CPU).

    Attributes
    ----------
    name
        Its name, which groups of a strategy refer to where a cluster has several types.
    memory_bytes
        Memory of one GPU.
    gpus_per_node
        How many of them share a node; a tensor-parallel group stays inside one where that is possible.
    """

    name: Text
    memory_bytes: PositiveInt
    gpus_per_node: PositiveInt = 8


class ContextBytes(Sent):
    """Bytes that communicators take from each GPU, by the span of the largest group.

    Attributes
    ----------
    gpu1, gpu2, gpu4
        With groups of at most so many GPUs; kept for the record.
    node
        With groups that span a node, which limits are computed with.
    """

    gpu1: NonNegativeInt
    gpu2: NonNegativeInt
    gpu4: NonNegativeInt
    node: NonNegativeInt


class MemoryModel(Sent):
    """Coefficients of the memory model of one GPU (see ``planner_service.core.memory``).

    Attributes
    ----------
    activation_bytes_per_layer_token_hidden_by_tp
        Activation bytes for each layer, token and hidden unit over tp, by tp.
    state_bytes_per_parameter_unit
        Bytes of parameters, gradients and optimizer states for each unit of ``hidden_size ** 2`` of a layer.
    sharded_state_share
        Share of these bytes that lies in the fixed sharding of the optimizer states.
    context_bytes
        What communicators take.
    safety_bytes
        What is left free.
    """

    activation_bytes_per_layer_token_hidden_by_tp: Annotated[
        dict[Annotated[str, StringConstraints(pattern=r"^[1-9][0-9]{0,3}$")], PositiveFloat], FewEntries
    ]
    state_bytes_per_parameter_unit: NonNegativeFloat
    sharded_state_share: Annotated[float, Field(ge=0, le=1)]
    context_bytes: ContextBytes
    safety_bytes: NonNegativeInt


class LayoutCost(Sent):
    """Time of one micro-batch on one pipeline stage, forward and backward.

    ``t(M) = c_ms + sum over s in M of (a_ms_per_token2 * s**2 + b_ms_per_token * s)`` with ``s`` in tokens.

    Attributes
    ----------
    tp, cp, pp
        Degrees of the layout: tensor, context and pipeline parallel.
    a_ms_per_token2
        Time for each square of a sequence's tokens.
    b_ms_per_token
        Time for each token.
    c_ms
        Time of a micro-batch, whatever it holds.
    max_tokens
        Measured limit of one micro-batch of one replica (tokens); without it the profile's memory model gives it.
    fit
        How well the coefficients explain the samples, where they were fitted.
    is_estimated
        Whether the layout was not measured: its cost is scaled from that of others.
    """

    tp: Degree
    cp: Degree = 1
    pp: Degree
    a_ms_per_token2: Coefficient
    b_ms_per_token: Coefficient
    c_ms: Coefficient
    max_tokens: LengthTokens | None = None
    fit: Fit | None = None
    is_estimated: bool = Field(default=False, exclude_if=is_absent)


class CollectiveCost(Sent):
    """Time of a collective, ``latency_ms + ms_per_byte * bytes``, with the bytes that each rank puts in.

    Attributes
    ----------
    kind
        Which collective; ``send`` is from one rank to another.
    num_ranks
        Ranks that take part.
    latency_ms
        Time whatever its size.
    ms_per_byte
        Time for each byte.
    num_samples
        Number of samples fitted to.
    median_abs_pct_error
        Median absolute error in percent of the measured time.
    """

    kind: CollectiveKind
    num_ranks: Annotated[int, Field(ge=2, le=MAX_GPUS, strict=True)]
    latency_ms: NonNegativeFloat
    ms_per_byte: NonNegativeFloat
    num_samples: PositiveInt
    median_abs_pct_error: NonNegativeFloat


class Profile(Sent):
    """Costs and limits of every layout of one model on one type of GPU.

    Attributes
    ----------
    name
        What requests call it by.
    source
        Where its figures come from.
    model
        The model.
    device
        The type of GPU.
    memory
        Gives the limit of layouts without ``max_tokens``.
    fewest_useful_tokens_by_tp, heterogeneous_sync_ms
        Came with the published profiles and is kept for the record; the published planner does not use it, and neither
        does this one.
    sync_ms
        Time of synchronisation that plans report on top of the makespan.
    layouts
        Cost and limit of each layout, each layout once.
    collectives
        What collectives cost among ranks of this device, where they were measured; kept for the record, and not part of
        a plan's makespan.
    """

    name: ProfileName
    source: Text
    model: ModelShape
    device: Device
    memory: MemoryModel | None = None
    fewest_useful_tokens_by_tp: Annotated[dict[str, PositiveInt], FewEntries] | None = None
    heterogeneous_sync_ms: NonNegativeFloat | None = None
    sync_ms: NonNegativeFloat = 0.0
    layouts: Annotated[list[LayoutCost], Field(min_length=1, max_length=MAX_LAYOUTS)]
    collectives: Annotated[list[CollectiveCost], Field(max_length=MAX_COLLECTIVES)] = Field(
        default_factory=list, exclude_if=is_absent
    )

    @model_validator(mode="after")
    def _layouts_are_distinct_and_limited(self) -> Self:
        refuse_repeated_layouts(self.layouts)
        for layout in self.layouts:
            if layout.max_tokens is None and self.memory is None:
                raise ValueError(
                    f"layout (tp={layout.tp}, cp={layout.cp}, pp={layout.pp}) has no max_tokens and the profile "
                    "has no memory model to derive it from; give one of the two"
                )
        return self


class _HasDegrees(Protocol):
    @property
    def tp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def pp(self) -> int: ...


def refuse_repeated_layouts(layouts: Sequence[_HasDegrees]) -> None:
    """Refuse layouts of which two have the same degrees.

    Raises
    ------
    ValueError
        Naming the layout.
    """
    seen: set[tuple[int, int, int]] = set()
    for layout in layouts:
        key = (layout.tp, layout.cp, layout.pp)
        if key in seen:
            raise ValueError(f"layout (tp={layout.tp}, cp={layout.cp}, pp={layout.pp}) appears twice; keep one of them")
        seen.add(key)
