"""Limits fitted to measured memory.

1. No sample lies above the line, and its coefficients are not negative.
2. No other such line has less excess in all.
3. The limit is a multiple of 128, leaves the safety share free, and is at most twice what was measured.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.fit_memory import MOST_EXTRAPOLATION, SAFETY_SHARE, fit_memory

SAMPLES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 60)), min_size=2, max_size=8).filter(
    lambda samples: len({tokens for tokens, _ in samples}) > 1
)


def _least_excess(samples: list[tuple[int, int]]) -> float:
    """Try every line through two of the samples, every flat one and every one through the origin."""
    tokens = np.array([x for x, _ in samples], float)
    occupied = np.array([y for _, y in samples], float)
    slopes = [0.0, *(y / x for x, y in samples)]
    slopes += [(y2 - y1) / (x2 - x1) for x1, y1 in samples for x2, y2 in samples if x2 > x1]
    found = []
    for slope in slopes:
        if slope >= 0:
            base = max(0.0, float((occupied - slope * tokens).max()))
            found.append(float((base + slope * tokens - occupied).sum()))
    return min(found)


@settings(max_examples=300)
@given(samples=SAMPLES)
def test_the_line_is_the_lowest_that_no_sample_exceeds(samples: list[tuple[int, int]]) -> None:
    line = fit_memory(samples)
    excess = [line.base_bytes + line.bytes_per_token * tokens - occupied for tokens, occupied in samples]
    assert min(line.base_bytes, line.bytes_per_token) >= 0
    assert min(excess) >= -1e-9
    assert sum(excess) == pytest.approx(_least_excess(samples), abs=1e-6)


@settings(max_examples=200)
@given(samples=SAMPLES, memory_bytes=st.integers(1, 10**6))
def test_a_limit_keeps_to_what_is_free_and_to_what_was_measured(
    samples: list[tuple[int, int]], memory_bytes: int
) -> None:
    in_kilotokens = [(1000 * tokens, 1000 * occupied) for tokens, occupied in samples]
    line = fit_memory(in_kilotokens)
    limit = line.limit_tokens(memory_bytes)
    assert limit % 128 == 0
    if limit > 0:
        assert limit <= MOST_EXTRAPOLATION * max(tokens for tokens, _ in in_kilotokens)
        assert line.base_bytes + line.bytes_per_token * limit <= (1 - SAFETY_SHARE) * memory_bytes * (1 + 1e-12)
    more = limit + 128
    assert (
        line.base_bytes + line.bytes_per_token * more > (1 - SAFETY_SHARE) * memory_bytes * (1 - 1e-12)
        or more > MOST_EXTRAPOLATION * line.measured_tokens
    )


def test_one_low_measurement_does_not_raise_the_limit() -> None:
    true = [(tokens, 2_000_000 + 700 * tokens) for tokens in range(1024, 16_385, 1024)]
    low = [(tokens, occupied // 3 if tokens == 8192 else occupied) for tokens, occupied in true]
    assert fit_memory(low) == fit_memory(true)
    assert fit_memory(true).bytes_per_token == pytest.approx(700)
    assert fit_memory(true).base_bytes == pytest.approx(2_000_000)


def test_samples_of_one_size_are_refused() -> None:
    with pytest.raises(ValueError, match="1 sizes of micro-batches have measured memory; two are needed"):
        fit_memory([(512, 100), (512, 120)])
