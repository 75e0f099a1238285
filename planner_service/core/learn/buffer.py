"""A bounded number of samples of one replica kind, so that rare lengths are not crowded out by usual ones."""

import math
from collections.abc import Iterable

from planner_service.core.learn.measured import Sample

MAX_SAMPLES = 256
MAX_IN_BUCKET = 96
"""Most samples of micro-batches that are alike, so that what was measured long ago gives way to what is new."""


def bucket_of(sample: Sample) -> tuple[int, int]:
    """Return which micro-batches are alike: within a factor of 2 in tokens and of 1.4 in typical length."""
    squares, tokens, _ = sample
    return round(math.log2(tokens)), round(2 * math.log2(squares / tokens))


def keep(samples: tuple[Sample, ...], new: Iterable[Sample]) -> tuple[Sample, ...]:
    """Return the newest samples of each bucket, oldest first; of the fullest buckets some give way."""
    held: list[Sample | None] = [*samples, *new]
    buckets: dict[tuple[int, int], list[int]] = {}
    for number, sample in enumerate(held):
        if sample is not None:
            buckets.setdefault(bucket_of(sample), []).append(number)
    num_left = len(held)
    while True:
        fullest = max(buckets.values(), key=len, default=[])
        if not fullest or (len(fullest) <= MAX_IN_BUCKET and num_left <= MAX_SAMPLES):
            break
        held[fullest.pop(0)] = None
        num_left -= 1
    return tuple(sample for sample in held if sample is not None)
