"""Which micro-batches to measure. Pure: no torch."""

import math
import random
from collections.abc import Sequence

from worker_agent.profiler.settings import SHORTEST_TOKENS

_SMALLEST_SHARE = 0.2


def draw_packings(max_tokens: int, max_length: int, num_packings: int, seed: int) -> list[list[int]]:
    """Choose the micro-batches to measure.

    In turn: one sequence alone, equal sequences filling a micro-batch, and a mix of random lengths, so that equally
    full micro-batches differ in their squares as widely as they can. Lengths are spread evenly on a logarithmic scale.

    Parameters
    ----------
    max_tokens, max_length
        Limits of a micro-batch and of a sequence (tokens).
    num_packings
        How many to choose.
    seed
        The same seed chooses the same.

    Returns
    -------
    list
        Lengths of each micro-batch, shape (num_packings, sequences of it).
    """
    draw = random.Random(seed)  # noqa: S311 - what to measure, not a secret
    packings: list[list[int]] = []
    num_scales = math.ceil(num_packings / 3)
    for step in range(num_scales):
        share = (step + draw.random()) / num_scales if step < num_scales - 1 else 1.0
        length = _log_between(SHORTEST_TOKENS, max_length, share)
        packings.append([length])
        paired = min(length, max_tokens // 2)
        packings.append([paired] * max(2, int(max_tokens * draw.uniform(_SMALLEST_SHARE, 1.0) / paired)))
        packings.append(_random_mix(draw, max_length, int(max_tokens * draw.uniform(_SMALLEST_SHARE, 1.0))))
    return packings[:num_packings]


def memory_packings(packings: Sequence[Sequence[int]], num_levels: int) -> tuple[int, ...]:
    """Choose the micro-batches whose peak memory is measured: from few tokens to the most there are.

    Returns
    -------
    tuple of int
        Indices of packings, by ascending tokens; those whose tokens lie nearest to equal steps. Fewer than asked for
        where there are no more.
    """
    most = max(map(sum, packings))
    chosen: dict[int, int] = {}
    for level in range(1, num_levels + 1):
        nearest = min(range(len(packings)), key=lambda number: abs(sum(packings[number]) - most * level / num_levels))
        chosen[sum(packings[nearest])] = nearest
    return tuple(chosen[num_tokens] for num_tokens in sorted(chosen))


def _log_between(low: int, high: int, share: float) -> int:
    return round(low * math.pow(high / low, share))


def _random_mix(draw: random.Random, max_length: int, num_tokens: int) -> list[int]:
    lengths: list[int] = []
    left = num_tokens
    while left >= SHORTEST_TOKENS:
        lengths.append(min(left, _log_between(SHORTEST_TOKENS, max_length, draw.random())))
        left -= lengths[-1]
    return lengths or [SHORTEST_TOKENS]
