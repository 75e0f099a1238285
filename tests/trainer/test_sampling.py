from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.trainer.sampling import (
    MAX_SLOTS_AT_ONCE,
    DataPosition,
    batch_size,
    epoch_order,
    own_slots,
    slots_to_read,
)
from worker_agent.trainer.settings import BatchLimit, RunLength

limits = st.builds(BatchLimit, tokens=st.integers(1, 40), sequences=st.none() | st.integers(1, 6)) | st.builds(
    BatchLimit, sequences=st.integers(1, 6)
)


def cut(lengths: list[int], limit: BatchLimit) -> list[list[int]]:
    batches = []
    while lengths:
        num = batch_size(lengths, limit, is_all=True)
        assert num is not None
        batches.append(lengths[:num])
        lengths = lengths[num:]
    return batches


@given(st.lists(st.integers(1, 50), max_size=30), limits)
def test_an_epoch_is_cut_into_batches_that_keep_within_the_limits(lengths: list[int], limit: BatchLimit) -> None:
    """Invariants.

    1. The batches are the epoch, in order, and none is empty.
    2. No batch is over a limit, but for a single sequence longer than all tokens.
    3. No batch could have taken the next sequence as well.
    """
    batches = cut(lengths, limit)
    assert [length for batch in batches for length in batch] == lengths
    assert all(batches)
    for batch in batches:
        assert limit.sequences is None or len(batch) <= limit.sequences
        assert limit.tokens is None or sum(batch) <= limit.tokens or len(batch) == 1
    for batch, following in pairwise(batches):
        is_full = len(batch) == limit.sequences
        assert is_full or (limit.tokens is not None and sum(batch) + following[0] > limit.tokens)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), limits)
def test_a_batch_does_not_depend_on_how_far_was_read(lengths: list[int], limit: BatchLimit) -> None:
    whole = batch_size(lengths, limit, is_all=True)
    for known in range(len(lengths) + 1):
        assert batch_size(lengths[:known], limit, is_all=False) in {None, whole}


@given(st.lists(st.integers(1, 50), max_size=30), limits)
def test_reading_what_is_estimated_ends(lengths: list[int], limit: BatchLimit) -> None:
    known = 0
    while batch_size(lengths[:known], limit, is_all=known >= len(lengths)) is None:
        more = slots_to_read(lengths[:known], limit)
        assert more >= 1
        known += more


@given(st.lists(st.integers(1, 50), max_size=300), st.integers(1, 2**62), st.integers(1, 2**62))
def test_however_large_the_budget_little_is_read_at_once(lengths: list[int], tokens: int, sequences: int) -> None:
    for limit in (BatchLimit(tokens), BatchLimit(sequences=sequences), BatchLimit(tokens, sequences)):
        assert slots_to_read(lengths, limit) <= min(MAX_SLOTS_AT_ONCE, max(64, len(lengths)))


@given(st.integers(0, 50), st.integers(0, 50), st.integers(1, 7))
def test_every_slot_is_held_by_one_rank_whatever_slot_reading_begins_at(begin: int, size: int, world_size: int) -> None:
    held = [slot for rank in range(world_size) for slot in own_slots(begin, begin + size, rank, world_size)]
    assert sorted(held) == list(range(begin, begin + size))
    for rank in range(world_size):
        assert all(slot % world_size == rank for slot in own_slots(begin, begin + size, rank, world_size))


def test_an_epochs_order_is_a_permutation_that_seed_and_epoch_decide() -> None:
    order = epoch_order(100, 7, 0)
    assert sorted(order) == list(range(100))
    assert np.array_equal(order, epoch_order(100, 7, 0))
    assert not np.array_equal(order, epoch_order(100, 7, 1))
    assert not np.array_equal(order, epoch_order(100, 8, 0))


def test_the_order_of_a_seed_is_the_same_in_every_version() -> None:
    assert epoch_order(8, 0, 0).tolist() == [3, 2, 1, 6, 0, 7, 4, 5]


def test_a_position_moves_on_and_begins_the_next_epoch() -> None:
    assert DataPosition(1, 4).after(3, ends_epoch=False) == DataPosition(1, 7)
    assert DataPosition(1, 4).after(3, ends_epoch=True) == DataPosition(2, 0)


def test_a_run_is_over_with_the_first_of_its_limits() -> None:
    assert RunLength(iterations=5).is_over(5, 0)
    assert not RunLength(iterations=5).is_over(4, 99)
    assert RunLength(epochs=2).is_over(1, 2)
    assert RunLength(5, 2).is_over(3, 2)
    assert not RunLength(5, 2).is_over(4, 1)


@pytest.mark.parametrize("seed", [0, 2**31])
def test_orders_of_no_and_of_one_sequence_exist(seed: int) -> None:
    assert epoch_order(0, seed, 0).tolist() == []
    assert epoch_order(1, seed, 3).tolist() == [0]
