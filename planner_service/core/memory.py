"""The memory model: how many tokens one micro-batch of a layout may hold.

The formula and its coefficients were published with Hydraulis (arXiv 2412.07894; PKU-DAIR/Hetu commit 9e47240d).
"""

import math
from dataclasses import dataclass

LIMIT_MULTIPLE_TOKENS = 128
"""Limits from the memory model are floored to a multiple of this."""


MOST_TOKENS = 2**31 - 1
"""No limit is larger: ``cu_seqlens`` are 32-bit."""


@dataclass(frozen=True)
class MemoryModel:
    """Coefficients of the memory of one GPU.

    ``activation_bytes`` (by tp) are per layer, token and hidden unit over tp; ``state_bytes`` per parameter unit,
    of which ``sharded_share`` lies in the optimizer's sharding.
    """

    num_layers: int
    hidden_size: int
    vocab_size: int
    memory_bytes: int
    activation_bytes: dict[int, float]
    state_bytes: float
    sharded_share: float
    context_bytes: int
    safety_bytes: int


@dataclass(frozen=True)
class OptimizerSharding:
    """Fixed homogeneous sharding of the optimizer states; ``dp`` is infinite for the most favourable case."""

    dp: float
    tp: int
    pp: int


def _embedding_bytes(pp: int) -> int:
    """Bytes per vocabulary and hidden unit: both embeddings on one stage, or one each on the first and last."""
    return 32 if pp == 1 else 16


def state_bytes_of_gpu(model: MemoryModel, tp: int, pp: int, sharding: OptimizerSharding) -> float:
    """Bytes of parameters, gradients and optimizer states on one GPU of a (tp, pp) replica."""
    layer_units = float(model.hidden_size) ** 2
    vocabulary_units = float(model.hidden_size) * model.vocab_size
    sharded = model.sharded_share / sharding.dp
    local = 1.0 - model.sharded_share
    layers = (
        (model.num_layers / sharding.pp) * (layer_units / sharding.tp) * sharded
        + (model.num_layers / pp) * (layer_units / tp) * local
    ) * model.state_bytes
    vocabulary = (vocabulary_units / sharding.tp) * _embedding_bytes(sharding.pp) * sharded + (
        vocabulary_units / tp
    ) * _embedding_bytes(pp) * local
    return layers + vocabulary


def max_tokens(model: MemoryModel, tp: int, pp: int, sharding: OptimizerSharding) -> int:
    """Most tokens of one micro-batch of a (tp, pp) replica; 0 or less means that the layout cannot run.

    1F1B keeps activations of ``pp`` micro-batches, each over ``num_layers / pp`` layers, so pp cancels out.

    Raises
    ------
    KeyError
        If the model has no activation bytes for this tp.
    """
    free = model.memory_bytes - model.safety_bytes - model.context_bytes - state_bytes_of_gpu(model, tp, pp, sharding)
    bytes_per_token = model.num_layers * (model.hidden_size / tp) * model.activation_bytes[tp]
    tokens = free / bytes_per_token if free < bytes_per_token * MOST_TOKENS else MOST_TOKENS
    return math.floor(tokens / LIMIT_MULTIPLE_TOKENS) * LIMIT_MULTIPLE_TOKENS
