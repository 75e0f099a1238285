import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_client.packing import PackedMicroBatch


@given(st.lists(st.integers(1, 300), min_size=1, max_size=40), st.integers(1, 130))
def test_bounds_and_positions_describe_each_sequence_exactly(lengths: list[int], alignment: int) -> None:
    """Hold for any lengths and alignment.

    1. Both ``cu_seqlens`` are int32, begin at 0, increase strictly and end at their totals.
    2. Logical steps are the lengths; physical steps are the lengths rounded up to the alignment.
    3. Position ids count up from 0 in every sequence.
    4. Slots place every logical token inside its own sequence's physical interval, in order.
    5. ``max_seqlen`` is a plain int.
    """
    packed = PackedMicroBatch(np.array(lengths), alignment)
    rounded = [-(-length // alignment) * alignment for length in lengths]
    for bounds, steps in ((packed.cu_seqlens, lengths), (packed.physical_cu_seqlens, rounded)):
        assert bounds.dtype == np.int32
        assert bounds[0] == 0
        assert bounds[-1] == sum(steps)
        assert np.diff(bounds).tolist() == steps
        assert (np.diff(bounds) > 0).all()
    assert packed.position_ids.tolist() == [place for length in lengths for place in range(length)]
    assert packed.physical_position_ids.tolist() == [place for length in rounded for place in range(length)]
    expected_slots = [
        begin + place
        for begin, length in zip(packed.physical_cu_seqlens.tolist(), lengths, strict=False)
        for place in range(length)
    ]
    assert packed.physical_slots.tolist() == expected_slots
    assert type(packed.max_seqlen) is int
    assert type(packed.physical_max_seqlen) is int
    assert (packed.max_seqlen, packed.physical_max_seqlen) == (max(lengths), max(rounded))
    assert packed.num_padding_tokens == sum(rounded) - sum(lengths)
    assert packed.num_targets == sum(length - 1 for length in lengths)


def test_a_packed_micro_batch_cannot_be_changed_afterwards() -> None:
    packed = PackedMicroBatch(np.array([3, 5]))
    for values in (packed.lengths, packed.cu_seqlens, packed.position_ids):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 7


def test_the_caller_keeps_a_writable_array_of_its_own() -> None:
    lengths = np.array([3, 5])
    packed = PackedMicroBatch(lengths)
    lengths[0] = 100
    assert packed.num_tokens == 8


@pytest.mark.parametrize(
    ("lengths", "alignment", "message"),
    [
        ([], 1, "at least one sequence"),
        ([4, 0], 1, "sequence 1 has length 0"),
        ([4, -2], 1, "sequence 1 has length -2"),
        ([1.5], 1, "whole numbers"),
        ([True], 1, "whole numbers"),
        ([[1], [2]], 1, "flat list"),
        ([4], 0, "alignment is 0"),
        ([2**31 - 1, 1], 1, "2147483648 tokens exceeds 2147483647"),
        ([2**31 - 1], 16, "2147483648 tokens exceeds 2147483647"),
    ],
)
def test_a_micro_batch_no_kernel_could_index_is_refused(lengths: list[int], alignment: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackedMicroBatch(np.array(lengths), alignment)
