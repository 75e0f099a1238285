from math import inf

import numpy as np
import pytest
from core_cases import NO_HURRY, batch_of, batches, problem_for, published, stream
from hypothesis import given
from hypothesis import strategies as st

from planner_service.core.forecast import forecast, strategies_to_keep_warm
from planner_service.core.judge import Judge
from planner_service.core.problem import Batch

KINDS_7B = tuple(published("llama-7b-a800-80g", 16).values())
ON_16 = problem_for([], [], kinds=KINDS_7B, num_gpus=16)


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=6), min_size=1, max_size=6), st.floats(0.5, 20))
def test_a_forecast_is_the_weighted_mean_of_the_histograms(history: list[list[int]], half_life: float) -> None:
    """Invariants.

    1. Expected sequences and tokens are the means over the iterations, each weighing half as much a half-life later.
    2. Exactly the lengths seen are expected, ascending.
    """
    expected = forecast([batch_of(lengths) for lengths in history], half_life)
    weights = np.array([0.5 ** ((len(history) - 1 - index) / half_life) for index in range(len(history))])
    weights /= weights.sum()
    assert expected.counts.sum() == pytest.approx(sum(w * len(b) for w, b in zip(weights, history, strict=True)))
    tokens = sum(w * sum(b) for w, b in zip(weights, history, strict=True))
    assert expected.lengths @ expected.counts == pytest.approx(tokens)
    assert expected.lengths.tolist() == sorted({length for lengths in history for length in lengths})


def test_recent_iterations_weigh_more_unless_the_half_life_is_infinite() -> None:
    history = [batch_of([10]), batch_of([20])]
    assert forecast(history, 1.0).counts == pytest.approx([1 / 3, 2 / 3])
    assert forecast(history, inf).counts == pytest.approx([0.5, 0.5])


def test_the_alignment_of_past_batches_does_not_lengthen_what_is_expected() -> None:
    expected = forecast([batch_of([5, 9], alignment=8)])
    assert expected.lengths.tolist() == [5, 9]
    assert [row.length for row in expected.draw(1, 0, alignment=8)[0].rows] <= [5, 9]


def test_a_forecast_from_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one iteration"):
        forecast([])
    with pytest.raises(ValueError, match="positive half-life"):
        forecast([batch_of([10])], 0.0)
    with pytest.raises(ValueError, match="no sequence"):
        strategies_to_keep_warm(ON_16, [batch_of([])], NO_HURRY, most=1)


def test_what_is_kept_warm_serves_the_next_iterations_nearly_as_well_as_what_they_would_choose() -> None:
    held = [batch_of(lengths) for lengths in batches(stream("github"), 40_000, 8192)][:8]
    warm = strategies_to_keep_warm(ON_16, held[:5], NO_HURRY, most=3, num_batches=4, longest=8192)
    total = best = 0.0
    for batch in held[5:]:
        judge = Judge(problem_for(batch_lengths(batch), [], kinds=KINDS_7B, num_gpus=16), NO_HURRY)
        total += judge.row([entry.strategy for entry in warm.strategies]).min()
        best += judge.best.makespan_ms
    assert best <= total <= 1.10 * best


def batch_lengths(batch: Batch) -> list[int]:
    return [row.length for row in batch.rows for _ in range(row.count)]


def test_recent_lengths_decide_what_is_kept_warm() -> None:
    short, long = [batch_of([400] * 60)] * 4, [batch_of([14_000, 12_000, 9_000])] * 4
    for_short = strategies_to_keep_warm(ON_16, [*long, *short], NO_HURRY, most=1, half_life=0.25, num_batches=2)
    for_long = strategies_to_keep_warm(ON_16, [*short, *long], NO_HURRY, most=1, half_life=0.25, num_batches=2)
    assert for_short.bound_ms < for_long.bound_ms
    assert for_short.strategies[0].strategy.num_replicas >= for_long.strategies[0].strategy.num_replicas
