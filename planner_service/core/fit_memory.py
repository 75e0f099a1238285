"""The limit of a micro-batch from measured memory: an upper line through (tokens, bytes).

The memory of a micro-batch grows linearly with its tokens, not with their squares, since attention kernels keep no
matrix of scores. A limit must hold, so the line lies on or above every sample: of all such lines it is the one with the
least total excess. That one runs along the edge of the samples' upper convex hull below whose ends their mean lies,
so it is found exactly, and samples that were low by chance do not pull it down.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner_service.core.memory import LIMIT_MULTIPLE_TOKENS, MOST_TOKENS

SAFETY_SHARE = 0.1
"""Share of the device's memory that a fitted limit leaves free: fragments, and what measuring did not meet."""

MOST_EXTRAPOLATION = 2.0
"""A fitted limit is at most this many times the largest micro-batch whose memory was measured."""


@dataclass(frozen=True)
class MemoryLine:
    """Memory of the fullest GPU: ``base_bytes + bytes_per_token * tokens``, measured up to ``measured_tokens``."""

    num_samples: int
    base_bytes: float
    bytes_per_token: float
    measured_tokens: int

    def limit_tokens(self, memory_bytes: int) -> int:
        """Return the most tokens that a device of that memory holds; 0 if it does not hold 128.

        A multiple of 128 below ``(1 - SAFETY_SHARE)`` of the memory, and at most ``MOST_EXTRAPOLATION`` times what was
        measured.
        """
        free = (1.0 - SAFETY_SHARE) * memory_bytes - self.base_bytes
        most = min(MOST_TOKENS, math.floor(MOST_EXTRAPOLATION * self.measured_tokens))
        if free <= 0:
            return 0
        tokens = free / self.bytes_per_token if free < self.bytes_per_token * most else most
        return math.floor(tokens / LIMIT_MULTIPLE_TOKENS) * LIMIT_MULTIPLE_TOKENS


def fit_memory(samples: Sequence[tuple[int, int]]) -> MemoryLine:
    """Lay the upper line of least total excess over (tokens, bytes) samples.

    Parameters
    ----------
    samples
        Tokens of a micro-batch, and peak bytes of the fullest GPU while it ran; of two different sizes at least.

    Raises
    ------
    ValueError
        If all samples are of one size, which tells nothing of how memory grows.
    """
    highest: dict[int, int] = {}
    for tokens, occupied in samples:
        highest[tokens] = max(occupied, highest.get(tokens, 0))
    if len(highest) < 2:
        raise ValueError(f"{len(highest)} sizes of micro-batches have measured memory; two are needed")
    hull = _upper_hull([(0, 0), *sorted(highest.items())])  # without any token, no less than nothing
    mean = sum(tokens for tokens, _ in samples) / len(samples)
    (left, low), (right, high) = next(edge for edge in pairwise(hull) if mean <= edge[1][0] or edge[1] == hull[-1])
    slope = max(0.0, (high - low) / (right - left))
    base = max(occupied - slope * tokens for tokens, occupied in highest.items())
    return MemoryLine(len(samples), max(0.0, base), slope, max(highest))


def _upper_hull(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the upper convex hull of points that ascend in their first coordinate."""
    hull: list[tuple[int, int]] = []
    for point in points:
        while len(hull) > 1 and _turns_left(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    return hull


def _turns_left(one: tuple[int, int], two: tuple[int, int], three: tuple[int, int]) -> bool:
    return (two[0] - one[0]) * (three[1] - one[1]) >= (three[0] - one[0]) * (two[1] - one[1])
