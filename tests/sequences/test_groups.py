from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_factory import make_plan, reseal

from planner_client.contract import GroupCount, LayoutCost, Plan, PlanOptions, PlanRequest, ReplicaGroup
from planner_client.errors import BadAnswer
from planner_client.plan_check import check_answers
from planner_client.sequences import (
    Assignment,
    GroupMismatch,
    PlanInconsistent,
    atomic_groups_of,
    local_assignment,
    resolve,
)
from planner_service.profiles import builtin_profiles
from planner_service.translate import plan_request

PROFILE = builtin_profiles()["llama-7b-a800-80g"].model_copy(
    update={
        "name": "one-layout",
        "layouts": [
            LayoutCost(tp=1, cp=1, pp=1, a_ms_per_token2=1e-6, b_ms_per_token=0.03, c_ms=20.0, max_tokens=16_384)
        ],
    }
)
Groups = dict[str, list[list[int]]]
Held = dict[str, list[int]]


def _request(held: Held, groups: Groups, num_gpus: int = 8, **options: object) -> PlanRequest:
    atomic = {source: atomic_groups_of(held[source], own) for source, own in groups.items() if own}
    return PlanRequest(
        profile=PROFILE,
        num_gpus=num_gpus,
        strategies=[[ReplicaGroup(tp=1, pp=1, num_replicas=num_gpus)]],
        lengths=held,
        atomic_groups=atomic or None,
        options=PlanOptions(deadline_ms=200, **options),
    )


def _plan(request: PlanRequest) -> Plan:
    plan = plan_request(request, [PROFILE], remaining_ms=lambda: 1e9)
    check_answers(plan, request)
    return plan


def _places(assignment: Assignment) -> dict[tuple[str, int], tuple[int, int]]:
    """Replica and micro-batch of each (source, index)."""
    return {
        (assignment.sources[source_id], index): (replica, position)
        for replica, micro_batches in enumerate(assignment.replicas)
        for position, micro_batch in enumerate(micro_batches)
        for source_id, index in zip(micro_batch.source_ids.tolist(), micro_batch.indices.tolist(), strict=True)
    }


def _draw_groups(lengths: Sequence[int], seed: int) -> list[list[int]]:
    """Put some of the sequences, in random order, into groups of two to four."""
    draw = np.random.default_rng(seed)
    left = [int(index) for index in draw.permutation(len(lengths))][: len(lengths) * 2 // 3]
    groups = []
    while len(left) > 1:
        size = int(draw.integers(2, 5))
        groups.append(left[:size])
        left = left[size:]
    return [group for group in groups if len(group) > 1]


OPTIONS = st.fixed_dictionaries(
    {
        "cost": st.sampled_from(["packed", "padded"]),
        "alignment": st.sampled_from([1, 64]),
        "max_tokens_per_micro_batch": st.sampled_from([None, 8192]),
    }
)
LENGTHS = st.lists(st.sampled_from([100, 200, 300, 2000]), max_size=14)


@settings(max_examples=30, deadline=None)
@given(LENGTHS, LENGTHS, st.integers(0, 2**16), OPTIONS)
def test_the_sequences_of_a_group_share_a_micro_batch_on_every_side(
    first: list[int], second: list[int], seed: int, options: dict[str, object]
) -> None:
    """Invariants, for groups by index over two sources, planned and resolved:

    1. The sequences of each group stand in one micro-batch.
    2. Every sequence is placed exactly once, at its own length.
    3. Single sequences of a length are taken in the order held among the single ones; groups of the same lengths in the
       order of their first sequences.
    4. What one source resolves alone is its part of the whole.
    """
    held = {"a": first, "b": second}
    groups = {source: _draw_groups(lengths, seed) for source, lengths in held.items()}
    plan = _plan(_request(held, groups, num_gpus=2, **options))
    assignment = resolve(plan, held, groups)
    places = _places(assignment)
    assert Counter(places.keys()) == Counter((source, i) for source in held for i in range(len(held[source])))
    for source, own in groups.items():
        for group in own:
            assert len({places[source, index] for index in group}) == 1
    for replica, micro_batches in enumerate(assignment.replicas):
        for position, micro_batch in enumerate(micro_batches):
            wanted = plan.replicas[replica].micro_batches[position].sequences
            lengths = [entry.length for entry in wanted for _ in range(entry.count)]
            assert micro_batch.packed.lengths.tolist() == lengths
            indices = zip(micro_batch.source_ids.tolist(), micro_batch.indices.tolist(), strict=True)
            assert [held[assignment.sources[s]][i] for s, i in indices] == lengths
    for source, own in groups.items():
        grouped = {index for group in own for index in group}
        run_order = [
            index
            for replica in assignment.replicas
            for micro_batch in replica
            for s, index in zip(micro_batch.source_ids.tolist(), micro_batch.indices.tolist(), strict=True)
            if assignment.sources[s] == source
        ]
        for length in set(held[source]):
            single = [i for i in run_order if held[source][i] == length and i not in grouped]
            assert single == sorted(single)
        alone = local_assignment(plan, source, held[source], own)
        for mine, whole in zip(alone.replicas, assignment.replicas, strict=True):
            for own_indices, micro_batch in zip(mine, whole, strict=True):
                ids = [assignment.sources[number] == source for number in micro_batch.source_ids.tolist()]
                assert own_indices.tolist() == micro_batch.indices[np.array(ids, dtype=bool)].tolist()


def _paired_plan() -> Plan:
    """Two micro-batches on one replica: a single 5 with a pair (5, 7), then a pair (5, 7) with a single 7."""
    plan = make_plan([[[("a", 5, 2), ("a", 7, 1)], [("a", 5, 1), ("a", 7, 2)]]])
    pair = GroupCount(source="a", lengths=[5, 7], count=1)
    replica = plan.replicas[0]
    micro_batches = [micro_batch.model_copy(update={"groups": [pair]}) for micro_batch in replica.micro_batches]
    return reseal(plan, replicas=[replica.model_copy(update={"micro_batches": micro_batches})])


def test_groups_of_the_same_lengths_are_taken_in_the_order_of_their_first_sequences() -> None:
    lengths = [7, 5, 5, 7, 5, 7]
    groups = [[4, 3], [2, 0]]  # the second begins with sequence 0 and comes first
    assignment = resolve(_paired_plan(), {"a": lengths}, {"a": groups})
    indices = [micro_batch.indices.tolist() for micro_batch in assignment.replicas[0]]
    assert indices == [[1, 2, 0], [4, 5, 3]]
    swapped = resolve(_paired_plan(), {"a": lengths}, {"a": [group[::-1] for group in groups[::-1]]})
    assert [micro_batch.indices.tolist() for micro_batch in swapped.replicas[0]] == indices


def test_results_come_back_in_the_order_given() -> None:
    lengths = [7, 5, 5, 7, 5, 7]
    assignment = resolve(_paired_plan(), {"a": lengths}, {"a": [[4, 3], [2, 0]]})
    restored = assignment.restore(np.array([1, 2, 0, 4, 5, 3]))
    assert restored["a"].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("groups", "named"),
    [
        ([], ((5, 7), 2, 0)),
        ([[0, 1]], ((5, 7), 2, 1)),
        ([[0, 1], [2, 3], [4, 5]], ((5,), 1, 0)),
        ([[1, 2]], ((5, 7), 2, 0)),
    ],
)
def test_other_groups_than_planned_are_refused_naming_lengths_and_counts(
    groups: list[list[int]], named: tuple[tuple[int, ...], int, int]
) -> None:
    with pytest.raises(GroupMismatch) as refused:
        resolve(_paired_plan(), {"a": [7, 5, 5, 7, 5, 7]}, {"a": groups})
    error = refused.value
    assert (error.lengths, error.num_planned, error.num_given) == named
    with pytest.raises(GroupMismatch):
        local_assignment(_paired_plan(), "a", [7, 5, 5, 7, 5, 7], groups)


def test_a_plan_that_names_groups_it_does_not_hold_is_refused() -> None:
    plan = make_plan([[[("a", 5, 1)]]])
    replica = plan.replicas[0]
    pair = GroupCount(source="a", lengths=[5, 5], count=1)
    broken = replica.micro_batches[0].model_copy(update={"groups": [pair]})
    with pytest.raises(PlanInconsistent, match="2 sequences of 5 tokens of a but holds 1"):
        resolve(reseal(plan, replicas=[replica.model_copy(update={"micro_batches": [broken]})]), {"a": [5]})


@pytest.mark.parametrize(
    ("groups", "word"), [([[0, 3]], "holds 3"), ([[0, -1]], "holds 3"), ([[0, 1], [1, 2]], "at most, once")]
)
def test_indices_outside_the_list_or_in_two_groups_are_refused(groups: list[list[int]], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        atomic_groups_of([5, 5, 5], groups)


def test_groups_of_indices_become_counted_lengths_and_lone_sequences_no_group() -> None:
    found = atomic_groups_of([9, 5, 5, 9, 1, 1], [[0, 1], [3, 2], [4], []])
    assert [(group.lengths, group.count) for group in found] == [([5, 9], 2)]


def test_a_group_with_an_over_long_member_is_dropped_whole_and_the_others_stay() -> None:
    held = {"a": [300, 90_000, 300, 400, 300]}
    groups = {"a": [[0, 1], [2, 3]]}
    plan = _plan(_request(held, groups, over_long="drop"))
    assignment = resolve(plan, held, groups)
    assert assignment.dropped["a"].tolist() == [0, 1]
    places = _places(assignment)
    assert places["a", 2] == places["a", 3]
    assert set(places) == {("a", 2), ("a", 3), ("a", 4)}


def test_groups_that_were_all_dropped_still_tell_single_sequences_apart() -> None:
    held = {"a": [300, 90_000, 300]}
    groups = {"a": [[0, 1]]}
    plan = _plan(_request(held, groups, over_long="drop"))
    assert set(_places(resolve(plan, held, groups))) == {("a", 2)}
    assert local_assignment(plan, "a", held["a"], groups["a"]).dropped.tolist() == [0, 1]


def test_a_padded_plan_resolves_and_its_totals_are_checked_as_padded() -> None:
    held = {"a": [300, 100, 100, 100]}
    plan = _plan(_request(held, {}, num_gpus=1, cost="padded"))
    assert resolve(plan, held).num_placed == 4
    padding = sum(m.num_padding_tokens for r in plan.replicas for m in r.micro_batches)
    replica = plan.replicas[0]
    wrong = [m.model_copy(update={"num_padding_tokens": padding + 1}) for m in replica.micro_batches]
    with pytest.raises(PlanInconsistent, match="padding tokens"):
        resolve(reseal(plan, replicas=[replica.model_copy(update={"micro_batches": wrong})]), held)


def _broken(plan: Plan, request: PlanRequest) -> str:
    with pytest.raises(BadAnswer) as refused:
        check_answers(plan, request)
    return str(refused.value)


def test_the_client_checks_that_options_and_groups_were_answered() -> None:
    held = {"a": [300, 400, 500, 600, 700]}
    plan = _plan(_request(held, {}, num_gpus=2))
    counts = [len(replica.micro_batches) for replica in plan.replicas]
    assert counts == [1, 1]
    assert "multiples of 2" in _broken(plan, _request(held, {}, num_gpus=2, micro_batch_count_multiple=2))
    assert "keeps 0 together" in _broken(plan, _request(held, {"a": [[0, 1]]}, num_gpus=2))
    assert "allows 700" in _broken(plan, _request(held, {}, num_gpus=2, max_tokens_per_micro_batch=700))
    assert "cost is 'packed'" in _broken(plan, _request(held, {}, num_gpus=2, cost="padded"))
    idle = _plan(_request({"a": [300]}, {}, num_gpus=2))
    assert "idle replicas were forbidden" in _broken(
        idle, _request({"a": [300]}, {}, num_gpus=2, idle_replicas="forbid")
    )
    unequal = _request({"a": [300]}, {}, num_gpus=2, equal_micro_batch_counts=True)
    assert "equal numbers were asked for" in _broken(idle, unequal)
    grouped = _plan(_request(held, {"a": [[0, 1]]}, num_gpus=2))
    assert "gave 0 groups" in _broken(grouped, _request(held, {}, num_gpus=2))


def test_options_reach_the_plan_from_the_request() -> None:
    held = {"a": [300 + index for index in range(40)]}
    plan = _plan(_request(held, {}, equal_micro_batch_counts=True, micro_batch_count_multiple=2, cost="padded"))
    assert {len(replica.micro_batches) for replica in plan.replicas} == {2} or all(
        len(replica.micro_batches) % 2 == 0 for replica in plan.replicas
    )
    assert len({len(replica.micro_batches) for replica in plan.replicas}) == 1
