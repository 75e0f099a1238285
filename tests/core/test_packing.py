import pytest
from core_cases import DEEP, PIPED, SMALL, best_packing_ms, kind
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.cost import least_replica_ms
from planner_service.core.pack import fewest_micro_batches, pack
from planner_service.core.problem import ReplicaKind


def _pack(kind_: ReplicaKind, lengths: list[int]) -> tuple[list[list[int]], float]:
    costs = [kind_.a * s * s + kind_.b * s for s in lengths]
    packing = pack(kind_, range(len(lengths)), costs, lengths)
    return [[lengths[item] for item in items] for items in packing.micro_batches], packing.makespan_ms


@settings(max_examples=200, deadline=None)
@given(st.sampled_from([SMALL, PIPED, DEEP]), st.lists(st.integers(1, 600), min_size=1, max_size=40))
def test_packing_keeps_every_sequence_and_every_cap(kind_: ReplicaKind, lengths: list[int]) -> None:
    """Invariants:

    1. Every sequence is in exactly one micro-batch, and none is empty.
    2. No micro-batch holds more than the limit.
    3. The makespan is at least the estimate that dispatch relies on as a lower one.
    """
    bins, makespan = _pack(kind_, lengths)
    assert sorted(s for held in bins for s in held) == sorted(lengths)
    assert all(held and sum(held) <= kind_.max_tokens for held in bins)
    work = sum(kind_.a * s * s + kind_.b * s for s in lengths)
    largest = kind_.a * max(lengths) ** 2 + kind_.b * max(lengths)
    assert least_replica_ms(kind_, work, sum(lengths), largest) <= makespan * (1 + 1e-9)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([SMALL, PIPED, DEEP]), st.lists(st.integers(1, 600), min_size=1, max_size=7))
def test_small_packings_are_near_the_best(kind_: ReplicaKind, lengths: list[int]) -> None:
    _, makespan = _pack(kind_, lengths)
    best = best_packing_ms(kind_, sorted(lengths))
    assert best * (1 - 1e-9) <= makespan <= best * 1.10


def test_eight_sequences_of_seven_at_cap_eight_take_eight_micro_batches() -> None:
    bins, _ = _pack(kind(1, 1, 0, 1, 1, 8), [7] * 8)
    assert bins == [[7]] * 8


def test_sixteen_sequences_of_30720_at_cap_32768_take_sixteen_micro_batches() -> None:
    bins, _ = _pack(kind(1, 1, 0, 1, 1, 32768), [30720] * 16)
    assert bins == [[30720]] * 16


def test_the_only_pairing_that_fits_two_micro_batches_is_found() -> None:
    bins, _ = _pack(kind(1, 1, 0, 1, 1, 32768), [3317, 23302, 6946, 27375])
    assert sorted(sorted(held) for held in bins) == [[3317, 27375], [6946, 23302]]


@pytest.mark.parametrize("pp", [1, 4])
def test_no_more_micro_batches_are_used_than_the_makespan_justifies(pp: int) -> None:
    kind_ = kind(1, pp, 0, 0.1, 1000.0, 10_000)
    bins, _ = _pack(kind_, [100] * 64)
    assert len(bins) == 1


def test_a_division_into_two_is_found_where_first_fit_and_best_fit_decreasing_need_three() -> None:
    lengths = [51, 43, 37, 21, 21, 18, 11]
    assert len(fewest_micro_batches(range(len(lengths)), lengths, 101)) == 2


def test_twenty_thousand_items_are_packed_nearly_full() -> None:
    lengths = [1 + (i * 7919) % 997 for i in range(20_000)]
    bins = fewest_micro_batches(range(len(lengths)), lengths, 1000)
    assert len(bins) <= 1.01 * sum(lengths) / 1000 + 1
