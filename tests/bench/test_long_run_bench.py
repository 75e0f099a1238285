"""Two hundred iterations on real lengths, planned in three ways: every plan executes, and the losses coincide.

``pytest tests/bench/test_long_run_bench.py -m bench -s --timeout 3600`` prints the figures of ``docs/benchmarks.md``.
"""

import statistics
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "executor"))

from long_training import (
    WAYS,
    WORLD_SIZE,
    LongCourse,
    batches_of_stream,
    draw_tokens,
    mean_shares,
    plan_batches,
    train_long,
)
from rank_group import run_ranks

from planner_client.contract import Plan

pytestmark = [pytest.mark.bench, pytest.mark.long]
NUM_ITERATIONS = 200
TOLERANCE = 1e-8
"""Relative; rounding of fp64 sums in other orders, which 200 steps of Adam carry on."""


def run(way: str, plans: list[Plan], held: tuple[dict, ...], folder: Path) -> list[LongCourse]:
    """Train one way on real ranks; return every rank's course and print what it took."""
    folder.mkdir()
    began = time.perf_counter()
    ends = run_ranks(train_long, WORLD_SIZE, folder, plans, held, limit_s=900)
    taken_s = time.perf_counter() - began
    assert not [end.raised for end in ends if end.raised], next(end.raised for end in ends if end.raised)
    courses: list[LongCourse] = [end.returned for end in ends]
    strategies = Counter(plan.strategy for plan in plans)
    shares = mean_shares(courses)
    print(f"\n{way}: {taken_s:.0f} s on {WORLD_SIZE} ranks, {len(strategies)} strategies {dict(strategies)}")  # noqa: T201
    print(", ".join(f"{name} {value:.3g}" for name, value in shares.items()))  # noqa: T201
    losses = courses[0].losses
    print(f"loss {losses[0]:.3f}, then {statistics.mean(losses[-20:]):.3f} over the last 20")  # noqa: T201
    return courses


def largest_difference(found: list[float], expected: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(found, expected, strict=True))


@pytest.mark.timeout(3600)
def test_two_hundred_iterations_of_github_train_alike_however_they_are_planned(tmp_path: Path) -> None:
    batches, num_over_long = batches_of_stream(NUM_ITERATIONS)
    held = draw_tokens(batches)
    print(  # noqa: T201 - the figures are what a bench is for
        f"\n{sum(map(len, batches))} sequences, {sum(map(sum, batches))} tokens, longest "
        f"{max(map(max, batches))}; {num_over_long} over-long ones left out"
    )
    plans = {way: plan_batches(way, batches) for way in WAYS}
    courses = {way: run(way, plans[way], held, tmp_path / way) for way in WAYS}
    naive = courses["naive"][0]
    for way, of_ranks in courses.items():
        for course in of_ranks:
            assert len(course.losses) == NUM_ITERATIONS
            assert course.losses == of_ranks[0].losses
        apart = largest_difference(of_ranks[0].losses, naive.losses)
        weights_apart = max(
            float((weights - naive.weights[name]).abs().max()) for name, weights in of_ranks[0].weights.items()
        )
        print(f"{way}: losses differ from naive by {apart:.1e} relative, weights by {weights_apart:.1e}")  # noqa: T201
        assert apart <= TOLERANCE
        assert largest_difference(of_ranks[0].norms, naive.norms) <= 100 * TOLERANCE
        assert weights_apart <= 100 * TOLERANCE
    assert statistics.mean(naive.losses[-20:]) < 0.5 * naive.losses[0]
    strategies = Counter(plan.strategy for plan in plans["heterogeneous"])
    assert len(strategies) >= 10
    mixed = [plan for plan in plans["heterogeneous"] if len({(one.tp, one.pp) for one in plan.replicas}) > 1]
    assert len(mixed) >= NUM_ITERATIONS // 10
    for way in ("naive", "homogeneous"):
        assert all(len({(one.tp, one.pp) for one in plan.replicas}) == 1 for plan in plans[way])
