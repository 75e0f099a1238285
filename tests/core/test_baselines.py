"""What plans are compared with: each does what its description says, and no more."""

import itertools
import math
from collections import Counter

import pytest
from core_cases import DEEP, NO_HURRY, PIPED, SMALL, WIDE, batch_of, best_makespan_ms, kind, problem_for, solved
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.baselines.arrival import items_in_arrival_order
from planner_service.core.baselines.balanced_next_fit import balanced_next_fit
from planner_service.core.baselines.loader import next_fit, pass_through, plain_loader
from planner_service.core.baselines.published import Published, estimate_ms
from planner_service.core.differencing import karmarkar_karp, largest_differencing, tokens_of, work_of
from planner_service.core.dispatch import Dispatched
from planner_service.core.effort import Effort
from planner_service.core.faults import PlanningFault
from planner_service.core.items import Items
from planner_service.core.problem import Strategy
from planner_service.core.solve import solve

METHODS = ["plain", "off", "next-fit", "karmarkar-karp-tokens", "karmarkar-karp-work", "published"]
UNLIKE = Strategy.of([(WIDE, 1), (PIPED, 1), (DEEP, 1), (SMALL, 2)])


def items(lengths: list[int]) -> Items:
    return items_in_arrival_order(batch_of(lengths), [("local", length) for length in lengths])


def tokens(found: Dispatched, held: Items) -> list[list[list[int]]]:
    return [[[held.tokens[item] for item in bin_] for bin_ in packing.micro_batches] for packing in found.packings]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 1500), max_size=14), st.sampled_from(METHODS))
def test_every_method_places_each_sequence_once_within_the_caps(lengths: list[int], method: str) -> None:
    """Invariants, on replicas of unlike kinds: the independent validator finds nothing wrong (each sequence once, caps,
    figures), and no makespan is below the bound.
    """
    solution = solved(problem_for(lengths, [UNLIKE], method=method), NO_HURRY)
    placed = Counter(
        row.length for replica in solution.replicas for one in replica.micro_batches for row in one.rows
        for _ in range(row.count)
    )  # fmt: skip
    assert placed == Counter(lengths)
    assert solution.makespan_ms >= solution.lower_bound_ms * (1 - 1e-9)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("lengths", [[], [5], [5, 900], [64] * 9, [1500, *[3] * 20]], ids=len)
def test_odd_batches_are_no_trouble(method: str, lengths: list[int]) -> None:
    solution = solved(problem_for(lengths, [UNLIKE], method=method), NO_HURRY)
    assert sum(row.count for r in solution.replicas for m in r.micro_batches for row in m.rows) == len(lengths)


def test_the_plain_loader_deals_in_turn_and_fills_first_fit() -> None:
    held = items([300, 600, 500, 100, 200, 50])
    found = plain_loader(Strategy.of([(SMALL, 2)]), held)
    assert tokens(found, held) == [[[300, 200], [500]], [[600, 100], [50]]]


def test_pass_through_keeps_the_order_given() -> None:
    held = items([300, 600, 500, 100, 200, 50])
    found = pass_through(Strategy.of([(SMALL, 2)]), held)
    assert tokens(found, held) == [[[300], [600], [500]], [[100, 200, 50]]]


def test_pass_through_passes_on_what_a_replica_cannot_hold() -> None:
    held = items([900, 10, 1400, 20])
    found = pass_through(Strategy.of([(SMALL, 1), (WIDE, 1)]), held)
    wide, small = tokens(found, held)
    assert sorted(itertools.chain(*wide)) == [10, 900, 1400]
    assert small == [[20]]


def test_next_fit_opens_a_micro_batch_when_the_next_does_not_fit() -> None:
    assert next_fit([0, 1, 2, 3], [4, 4, 3, 1], 7) == [[0], [1, 2], [3]]
    held = items([600, 500, 400, 300])
    assert tokens(balanced_next_fit(Strategy.of([(SMALL, 2)]), held), held) == [[[600], [300]], [[500], [400]]]


def test_largest_differencing_divides_the_textbook_numbers() -> None:
    parts = karmarkar_karp([8, 7, 6, 5, 4], 2)
    assert sorted(sum([8, 7, 6, 5, 4][index] for index in part) for part in parts) == [14, 16]
    assert karmarkar_karp([], 3) == [[], [], []]
    assert sorted(map(len, karmarkar_karp([5], 3))) == [0, 0, 1]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 1000), max_size=12), st.integers(1, 5))
def test_largest_differencing_divides_all_numbers_no_worse_than_one_by_one(weights: list[int], parts: int) -> None:
    """Invariants: each number is in one part; the largest sum is at most the mean plus the largest number."""
    found = karmarkar_karp(weights, parts)
    assert len(found) == parts
    assert sorted(index for part in found for index in part) == list(range(len(weights)))
    largest = max(sum(weights[index] for index in part) for part in found)
    assert largest <= sum(weights) / parts + max(weights, default=0)


def test_balancing_by_work_weighs_a_long_sequence_more_than_its_tokens() -> None:
    assert work_of(8192) > 8 * work_of(1024)
    assert tokens_of(8192) == 8 * tokens_of(1024)
    roomy = kind(1, 1, 1e-6, 0.01, 1.0, 100_000)
    held = items([60_000, *[6_000] * 10])
    found = largest_differencing(Strategy.of([(roomy, 2)]), held, work_of)
    long_alone = next(one for one in tokens(found, held) if 60_000 in itertools.chain(*one))
    assert sum(itertools.chain(*long_alone)) == 60_000


@pytest.mark.parametrize("lengths", [[400, 300, 200, 100], [600, 500, 64, 64, 7], [1, 1, 1], [700]])
@pytest.mark.parametrize("one", [SMALL, DEEP], ids=["one stage", "three stages"])
def test_the_published_method_packs_as_its_own_estimate_wants(lengths: list[int], one: object) -> None:
    """Invariant: on one replica its packing has the least estimate of all divisions within the cap."""
    replica = one if isinstance(one, type(SMALL)) else SMALL
    lengths = [min(length, replica.max_tokens) for length in lengths]
    held = items(lengths)
    _, found = Published(held, 0, lambda: 1e9).plan([Strategy.of([(replica, 1)])])
    estimated = estimate_ms(replica, max(found.packings[0].times_ms) - replica.c, len(found.packings[0].micro_batches))
    least = math.inf
    for labels in itertools.product(range(len(lengths)), repeat=len(lengths)):
        bins = [[s for s, label in zip(lengths, labels, strict=True) if label == b] for b in set(labels)]
        if all(sum(bin_) <= replica.max_tokens for bin_ in bins):
            largest = max(sum(replica.a * s * s + replica.b * s for s in bin_) for bin_ in bins)
            least = min(least, estimate_ms(replica, largest, len(bins)))
    assert estimated <= least + 0.002 * len(lengths)  # it works in whole microseconds, rounded up


def test_the_published_method_says_when_time_ends() -> None:
    problem = problem_for([500, 64, 7] * 5, [UNLIKE], method="published")
    with pytest.raises(PlanningFault, match="published method did not end") as ended:
        solve(problem, Effort(0.1, lambda: 0.0))
    assert ended.value.code == "deadline-exceeded"


def test_the_planner_is_never_slower_than_any_of_them() -> None:
    for lengths in ([500, 400, 64, 64, 7, 7], [700, 300, 300, 100], [1000, 64, 64, 64, 1]):
        ours = solved(problem_for(lengths, [UNLIKE]))
        assert ours.makespan_ms == pytest.approx(best_makespan_ms(UNLIKE.replicas, lengths, {}), rel=0.02)
        for method in METHODS:
            other = solved(problem_for(lengths, [UNLIKE], method=method), NO_HURRY)
            assert ours.makespan_ms <= other.makespan_ms * (1 + 1e-9), method
