import random

from core_cases import DEEP, PIPED, SMALL, kind
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.order import best_order
from planner_service.core.pack import EMPTY, Packing, pack, packing_of
from planner_service.core.problem import ReplicaKind
from planner_service.core.repack import repack_slowest, repacked

FOUR_STAGES = kind(1, 4, 1e-5, 0.012, 1.5, 900)
LENGTHS = st.lists(st.integers(1, 600), min_size=1, max_size=40)


def _packed(replica: ReplicaKind, lengths: list[int]) -> tuple[Packing, list[float]]:
    costs = [replica.a * length * length + replica.b * length for length in lengths]
    return pack(replica, list(range(len(lengths))), costs, lengths), costs


def _simulated_ms(replica: ReplicaKind, packing: Packing) -> float:
    return best_order(replica.pp, packing.times_ms)[1]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([SMALL, PIPED, DEEP, FOUR_STAGES]), LENGTHS, st.sampled_from([0.0, 1.0, 1.05, 9.0]), st.booleans()
)
def test_repacking_breaks_nothing_and_is_never_slower(
    replica: ReplicaKind,
    lengths: list[int],
    allowance: float,
    keep_count: bool,  # noqa: FBT001 - drawn
) -> None:
    """Invariants:

    1. Every item is in one micro-batch; none is empty or over the cap.
    2. Times and closed form are those of packing the same items; the closed form stays within the cap, or is no more
       than before where it was over the cap.
    3. The simulated time is no more than before; a packing that gained nothing is the one given.
    4. The number of micro-batches stays where it must.
    5. The same packing gives the same result.
    """
    packing, costs = _packed(replica, lengths)
    cap_ms = packing.makespan_ms * allowance
    after = repacked(replica, packing, costs, lengths, cap_ms, 60, keep_count=keep_count)
    assert sorted(item for items in after.micro_batches for item in items) == list(range(len(lengths)))
    assert all(0 < sum(lengths[item] for item in items) <= replica.max_tokens for items in after.micro_batches)
    assert after == packing_of(replica, costs, after.micro_batches) or after is packing
    assert after.makespan_ms <= max(cap_ms, packing.makespan_ms) * (1 + 1e-9)
    before_ms, after_ms = _simulated_ms(replica, packing), _simulated_ms(replica, after)
    assert after_ms < before_ms or (after is packing)
    assert len(after.micro_batches) == len(packing.micro_batches) or not keep_count
    assert repacked(replica, packing, costs, lengths, cap_ms, 60, keep_count=keep_count) == after


def test_small_micro_batches_at_the_ends_beat_even_ones_that_the_closed_form_likes_best() -> None:
    replica = kind(1, 4, 0.0, 1.0, 1.0, 1000)
    lengths = [50] * 32
    costs = [float(length) for length in lengths]
    even = packing_of(replica, costs, [range(first, first + 4) for first in range(0, 32, 4)])
    after = repacked(replica, even, costs, lengths, even.makespan_ms * 1.5, 1000)
    assert _simulated_ms(replica, after) < 0.93 * _simulated_ms(replica, even)
    assert after.makespan_ms > even.makespan_ms  # what the closed form cannot see
    assert max(after.times_ms[0], after.times_ms[-1]) < max(after.times_ms)


def test_there_is_nothing_to_repack_without_a_pipeline_or_with_one_item() -> None:
    packing, costs = _packed(SMALL, [100, 200, 650])
    assert repacked(SMALL, packing, costs, [100, 200, 650], 1e9) is packing
    packing, costs = _packed(PIPED, [100])
    assert repacked(PIPED, packing, costs, [100], 1e9) is packing
    assert repacked(PIPED, EMPTY, [], [], 1e9) is EMPTY


def _replicas(seed: int) -> tuple[list[ReplicaKind], list[Packing], dict[ReplicaKind, list[float]], list[int]]:
    draw = random.Random(seed)  # noqa: S311 - the same lengths each time
    kinds = [FOUR_STAGES, DEEP, PIPED, SMALL, FOUR_STAGES]
    lengths = [min(599, int(draw.lognormvariate(4.5, 1))) + 1 for _ in range(100)]
    costs = {replica: [replica.a * s * s + replica.b * s for s in lengths] for replica in kinds}
    packings = [
        pack(replica, list(range(first * 20, first * 20 + 20)), costs[replica], lengths)
        for first, replica in enumerate(kinds)
    ]
    return kinds, packings, costs, lengths


def test_the_slowest_replicas_are_repacked_until_that_does_not_help_and_the_others_are_left() -> None:
    gains = []
    for seed in range(6):
        kinds, packings, costs, lengths = _replicas(seed)
        cap_ms = 1.1 * max(packing.makespan_ms for packing in packings)
        after = repack_slowest(kinds, packings, costs, lengths, cap_ms, lambda: True)
        assert after == repack_slowest(kinds, packings, costs, lengths, cap_ms, lambda: True)
        before_ms = [_simulated_ms(*pair) for pair in zip(kinds, packings, strict=True)]
        after_ms = [_simulated_ms(*pair) for pair in zip(kinds, after, strict=True)]
        assert all(second <= first for first, second in zip(before_ms, after_ms, strict=True))
        assert all(packing.makespan_ms <= cap_ms * (1 + 1e-9) for packing in after)
        for old, new, old_ms in zip(packings, after, before_ms, strict=True):
            assert new is old or old_ms >= max(after_ms) * (1 - 1e-9)
        gains.append(max(before_ms) / max(after_ms) - 1)
    assert max(gains) > 0.01


def test_repacking_ends_when_there_is_no_time_left() -> None:
    kinds, packings, costs, lengths = _replicas(0)
    assert repack_slowest(kinds, packings, costs, lengths, 1e9, lambda: False) == tuple(packings)
    asked = iter([True] * 7 + [False])
    after = repack_slowest(kinds, packings, costs, lengths, 1e9, lambda: next(asked))
    assert max(map(_simulated_ms, kinds, after)) <= max(map(_simulated_ms, kinds, packings))


def test_the_number_of_micro_batches_changes_only_where_it_may() -> None:
    changed = {False: 0, True: 0}
    for seed in range(6):
        kinds, packings, costs, lengths = _replicas(seed)
        for keep_count in changed:
            after = repack_slowest(kinds, packings, costs, lengths, 1e9, lambda: True, keep_count=keep_count)
            changed[keep_count] += [len(packing.micro_batches) for packing in packings] != [
                len(packing.micro_batches) for packing in after
            ]
    assert changed[True] == 0 < changed[False]
