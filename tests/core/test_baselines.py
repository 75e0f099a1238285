"""What plans are compared with: each does what its description says, and no more."""

import itertools
import math
import time
from collections import Counter
from dataclasses import replace

import pytest
from core_cases import DEEP, NO_HURRY, PIPED, SMALL, WIDE, batch_of, best_makespan_ms, kind, problem_for, solved
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.baselines.arrival import items_in_arrival_order
from planner_service.core.baselines.balanced_next_fit import balanced_next_fit
from planner_service.core.baselines.loader import next_fit, pass_through, plain_loader
from planner_service.core.baselines.published import Published, estimate_ms
from planner_service.core.cpsat import Limits, pack_min_max
from planner_service.core.differencing import karmarkar_karp, largest_differencing, tokens_of, work_of
from planner_service.core.dispatch import Dispatched
from planner_service.core.effort import Effort
from planner_service.core.faults import PlanningFault
from planner_service.core.items import Items
from planner_service.core.problem import Batch, SourceRow, Strategy
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


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 60)), min_size=1, max_size=24),
    st.integers(1, 4),
    st.sampled_from([1, 16]),
)
def test_off_keeps_the_very_sequences_in_the_order_given(
    arrival: list[tuple[str, int]], num_replicas: int, alignment: int
) -> None:
    """Invariants, with two sources, and under alignment with several lengths that occupy the same:

    1. Reading replicas and micro-batches in order gives consecutive runs of what arrived, nothing left out.
    2. Replicas' numbers of sequences differ by one at most.
    3. A new micro-batch begins only where the next sequence does not fit.
    """
    one = kind(1, 1, 1e-5, 0.01, 1.0, 128)
    problem = problem_for([1], [Strategy.of([(one, num_replicas)])], alignment=alignment, method="off", num_gpus=8)
    rows = tuple(SourceRow(source, length, count) for (source, length), count in sorted(Counter(arrival).items()))
    solution = solved(replace(problem, batch=Batch(rows, alignment), arrival=arrival), NO_HURRY)
    position, counts = 0, []
    for replica in solution.replicas:
        first = position
        room = 0
        for micro_batch in replica.micro_batches:
            size = sum(row.count for row in micro_batch.rows)
            run = arrival[position : position + size]
            assert Counter({(row.source, row.length): row.count for row in micro_batch.rows}) == Counter(run)
            taken = [-(-length // alignment) * alignment for _, length in run]
            assert position == first or taken[0] > room
            room = 128 - sum(taken)
            position += size
        counts.append(position - first)
    assert position == len(arrival)
    assert max(counts) - min(counts) <= 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([5, 600, 900, 1400]), min_size=1, max_size=20))
def test_on_unlike_replicas_off_keeps_sequences_of_one_length_in_order(lengths: list[int]) -> None:
    """Invariant: since a plan names lengths and counts only, sequences of one length keep the order given if and only
    if replicas and micro-batches take them in that order.
    """
    held = items(lengths)
    packings = pass_through(UNLIKE, held).packings
    placed = [item for packing in packings for bin_ in packing.micro_batches for item in bin_]
    for length in set(lengths):
        of_length = [item for item in placed if held.tokens[item] == length]
        assert of_length == sorted(of_length)


@pytest.mark.parametrize("method", METHODS)
def test_without_candidates_a_homogeneous_strategy_is_taken(method: str) -> None:
    lengths = [500, 64, 64, 7, 650]
    solution = solved(problem_for(lengths, [], kinds=[SMALL, PIPED], num_gpus=4, method=method), NO_HURRY)
    assert len(solution.strategy.groups) == 1
    if method != "published":
        assert str(solution.strategy) == "(1,1)x4"


def test_next_fit_opens_a_micro_batch_when_the_next_does_not_fit() -> None:
    assert next_fit([0, 1, 2, 3], [4, 4, 3, 1], 7) == [[0], [1, 2], [3]]
    held = items([600, 500, 400, 300])
    assert tokens(balanced_next_fit(Strategy.of([(SMALL, 2)]), held), held) == [[[600], [300]], [[500], [400]]]


def test_largest_differencing_divides_the_textbook_numbers() -> None:
    parts = karmarkar_karp([8, 7, 6, 5, 4], 2)
    assert sorted(sum([8, 7, 6, 5, 4][index] for index in part) for part in parts) == [14, 16]
    assert karmarkar_karp([], 3) == [[], [], []]
    assert sorted(map(len, karmarkar_karp([5], 3))) == [0, 0, 1]


def test_largest_differencing_divides_six_numbers_in_three_as_by_hand() -> None:
    """9 7 0 and 6 make 9 7 6; 5 4 0 and 3 make 5 4 3; the two, heavy on light, make 9+3, 7+4 and 6+5."""
    weights = [9, 7, 6, 5, 4, 3]
    parts = [sorted(weights[index] for index in part) for part in karmarkar_karp(weights, 3)]
    assert sorted(parts) == [[3, 9], [4, 7], [5, 6]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=7), st.integers(2, 3))
def test_largest_differencing_is_as_near_the_optimum_as_proven(weights: list[int], parts: int) -> None:
    """Invariant: no further over the exhaustive optimum than the ratio 4/3 - 1/(3 m) proven for m parts, 7/6 for two
    (Fischetti and Martello 1987; Michiels, Korst, Aarts and van Leeuwen 2003).
    """
    largest = max(sum(weights[index] for index in part) for part in karmarkar_karp(weights, parts))
    optimum = min(
        max(sum(w for w, label in zip(weights, labels, strict=True) if label == part) for part in range(parts))
        for labels in itertools.product(range(parts), repeat=len(weights))
    )
    assert optimum <= largest <= optimum * (7 / 6 if parts == 2 else 4 / 3 - 1 / (3 * parts)) + 1e-9


def test_largest_differencing_finds_the_only_pairing_that_fits_two_micro_batches() -> None:
    roomy = kind(1, 1, 0, 1, 1, 32768)
    held = items([3317, 23302, 6946, 27375])
    (bins,) = tokens(largest_differencing(Strategy.of([(roomy, 1)]), held, tokens_of), held)
    assert sorted(sorted(bin_) for bin_ in bins) == [[3317, 27375], [6946, 23302]]


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


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(1, 4))
def test_the_packing_program_finds_the_least_largest_micro_batch(lengths: list[int], count: int) -> None:
    """Invariants, against every division into exactly ``count`` micro-batches of at most 60 tokens:

    1. It finds none if and only if there is none.
    2. Its largest is the least (costs are whole numbers so small that its tolerance does not count).
    """
    found = pack_min_max(range(len(lengths)), [float(s) for s in lengths], lengths, 60, count, Limits(1.0, 60.0, 0))
    divisions = (
        [[s for s, label in zip(lengths, labels, strict=True) if label == b] for b in range(count)]
        for labels in itertools.product(range(count), repeat=len(lengths))
    )
    largest = [max(map(sum, bins)) for bins in divisions if all(bin_ and sum(bin_) <= 60 for bin_ in bins)]
    assert found.is_proven
    assert (found.micro_batches is None) == (not largest)
    if found.micro_batches is not None:
        assert sorted(item for bin_ in found.micro_batches for item in bin_) == list(range(len(lengths)))
        assert max(sum(lengths[item] for item in bin_) for bin_ in found.micro_batches) == min(largest)


def test_the_published_estimate_charges_every_micro_batch_as_the_largest() -> None:
    assert estimate_ms(SMALL, 100.0, 5) == (100.0 + 3.0) * 5
    assert estimate_ms(DEEP, 100.0, 5) == (100.0 + 1.5) * 7


def test_the_published_method_takes_the_candidate_with_the_least_estimate() -> None:
    held = items([500, 400, 300, 64, 64, 7])
    strategies = [Strategy.of([(PIPED, 1)]), Strategy.of([(SMALL, 2)]), Strategy.of([(DEEP, 1)])]
    chosen, _ = Published(held, 0, lambda: 1e9).plan(strategies)

    def estimated(strategy: Strategy) -> float:
        _, alone = Published(held, 0, lambda: 1e9).plan([strategy])
        return max(
            estimate_ms(kind_, max(packing.times_ms) - kind_.c, len(packing.times_ms))
            for kind_, packing in zip(alone.kinds, alone.packings, strict=True)
            if packing.times_ms
        )

    assert estimated(chosen) == min(map(estimated, strategies))


def test_the_published_method_gives_the_same_plan_again() -> None:
    problem = problem_for([500, 433, 391, 64, 63, 61, 7], [UNLIKE], method="published")
    assert solved(problem, NO_HURRY) == solved(problem, NO_HURRY)


def test_the_published_method_ends_at_its_deadline_in_the_middle_of_a_program() -> None:
    lengths = [200 + (index * index * 7919) % 397 for index in range(60)]
    deadline = time.monotonic() + 0.4
    problem = problem_for(lengths, [Strategy.of([(DEEP, 1)])], method="published")
    with pytest.raises(PlanningFault, match="published method did not end"):
        solve(problem, Effort(0.1, lambda: (deadline - time.monotonic()) * 1000))
    assert time.monotonic() - deadline < 10


def test_a_program_cut_by_the_wall_clock_is_no_answer() -> None:
    """A division that the wall clock chose would differ from run to run."""
    lengths = [200 + (index * index * 7919) % 397 for index in range(60)]
    with pytest.raises(PlanningFault, match="published method did not end"):
        Published(items(lengths), 0, lambda: 20.0).plan([Strategy.of([(DEEP, 1)])])


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
