import subprocess
import sys
import time
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_factory import make_plan, random_plan, reseal

from planner_client.contract import MicroBatch, SequenceCount
from planner_client.sequences import PlanInconsistent, PlanMismatch, local_assignment, resolve

Batch = dict[str, list[int]]

batches = st.dictionaries(
    st.sampled_from(["rank-0", "rank-1", "node-7"]), st.lists(st.integers(1, 6), max_size=30), max_size=3
)
"""Few distinct lengths, so that most are duplicates."""


@given(batches, st.integers(1, 4), st.integers(0, 2**32 - 1), st.sampled_from([1, 4]), st.sampled_from([0.0, 0.3, 1.0]))
def test_every_sequence_is_placed_or_dropped_exactly_once(
    batch: Batch, num_replicas: int, seed: int, alignment: int, drop_share: float
) -> None:
    """Hold for any batch and any plan of it.

    1. Given = placed + dropped: each (source, index) appears exactly once in the two together.
    2. A place's sequence has the length that the plan wants there; its neighbours are the plan's, entry by entry.
    3. Indices of one source and length ascend over dropped and placed entries in canonical order.
    4. The inverse permutation restores what was given; dropped sequences are marked.
    5. What one source resolves alone is its part of the whole.
    """
    plan = random_plan(batch, num_replicas, seed, alignment=alignment, drop_share=drop_share)
    assignment = resolve(plan, batch)

    placed = [
        (assignment.sources[source_id], index)
        for replica in assignment.replicas
        for micro_batch in replica
        for source_id, index in zip(micro_batch.source_ids.tolist(), micro_batch.indices.tolist(), strict=True)
    ]
    dropped = [(source, index) for source, indices in assignment.dropped.items() for index in indices.tolist()]
    given_ = [(source, index) for source, lengths in batch.items() for index in range(len(lengths))]
    assert Counter(placed) + Counter(dropped) == Counter(given_)

    wanted = [
        (entry.source, entry.length)
        for replica in plan.replicas
        for micro_batch in replica.micro_batches
        for entry in micro_batch.sequences
        for _ in range(entry.count)
    ]
    assert [(source, batch[source][index]) for source, index in placed] == wanted
    packed_lengths = [
        length for replica in assignment.replicas for micro in replica for length in micro.packed.lengths.tolist()
    ]
    assert packed_lengths == [length for _, length in wanted]
    for replica in assignment.replicas:
        for micro_batch in replica:
            assert micro_batch.packed.alignment == alignment

    for source, lengths in batch.items():
        for length in set(lengths):
            taken = [index for name, index in placed if name == source and lengths[index] == length]
            left = [index for name, index in dropped if name == source and lengths[index] == length]
            assert taken + left == sorted(taken + left)

    tags = np.array([1000 * list(batch).index(source) + index for source, index in placed], dtype=np.int64)
    restored = assignment.restore(tags, fill=-1)
    for number, (source, lengths) in enumerate(batch.items()):
        lost = set(assignment.dropped.get(source, np.zeros(0)).tolist())
        expected = [-1 if index in lost else 1000 * number + index for index in range(len(lengths))]
        assert restored[source].tolist() == expected

    for source, lengths in batch.items():
        alone = local_assignment(plan, source, lengths)
        assert alone.dropped.tolist() == assignment.dropped.get(source, np.zeros(0)).tolist()
        for own, whole in zip(alone.replicas, assignment.replicas, strict=True):
            for own_indices, micro_batch in zip(own, whole, strict=True):
                mine = [assignment.sources[number] == source for number in micro_batch.source_ids.tolist()]
                assert own_indices.tolist() == micro_batch.indices[np.array(mine, dtype=bool)].tolist()


def test_sequences_of_one_length_are_taken_in_the_order_held() -> None:
    plan = make_plan([[[("a", 5, 1)], [("b", 5, 1), ("a", 5, 1)]], [[("a", 3, 1), ("a", 5, 1)]]], dropped=[("a", 5, 1)])
    assignment = resolve(plan, {"a": [5, 3, 5, 5, 5], "b": [5]})
    indices = [[micro_batch.indices.tolist() for micro_batch in replica] for replica in assignment.replicas]
    assert indices == [[[0], [0, 2]], [[1, 3]]]
    assert {source: dropped.tolist() for source, dropped in assignment.dropped.items()} == {"a": [4]}
    assert assignment.inverse_permutation("a").tolist() == [0, 3, 2, 4, -1]


def test_a_rank_gets_the_micro_batches_of_its_replica_and_an_idle_one_none() -> None:
    plan = make_plan([[[("a", 4, 1)]], []], ranks=[[2], [0]])
    assignment = resolve(plan, {"a": [4]})
    assert [len(assignment.for_rank(plan, rank)) for rank in range(4)] == [0, 0, 1, 0]


def test_a_batch_without_sequences_resolves_to_nothing() -> None:
    plan = make_plan([[], []])
    assignment = resolve(plan, {"a": []})
    assert assignment.replicas == ((), ())
    assert assignment.restore(np.zeros(0))["a"].size == 0
    assert local_assignment(plan, "a", []).replicas == ((), ())


@pytest.mark.parametrize(
    ("batch", "named"),
    [
        ({"a": [4, 4], "b": [7]}, ("a", 4, 3, 2)),
        ({"a": [4, 4, 4, 4], "b": [7]}, ("a", 4, 3, 4)),
        ({"a": [4, 4, 5], "b": [7]}, ("a", 4, 3, 2)),
        ({"a": [4, 4, 4, 9], "b": [7]}, ("a", 9, 0, 1)),
        ({"a": [4, 4, 4]}, ("b", 7, 1, 0)),
        ({"a": [4, 4, 4], "b": [7], "c": [2]}, ("c", 2, 0, 1)),
    ],
)
def test_other_lengths_than_planned_are_refused_naming_source_length_and_counts(
    batch: Batch, named: tuple[str, int, int, int]
) -> None:
    plan = make_plan([[[("a", 4, 2)]], [[("b", 7, 1)]]], dropped=[("a", 4, 1)])
    with pytest.raises(PlanMismatch, match="ask for a new plan") as refused:
        resolve(plan, batch)
    mismatch = refused.value
    assert (mismatch.source, mismatch.length, mismatch.num_planned, mismatch.num_given) == named
    assert isinstance(mismatch, ValueError)
    with pytest.raises(PlanMismatch):
        local_assignment(plan, named[0], batch.get(named[0], []))


def test_a_plan_whose_totals_contradict_its_sequences_is_refused() -> None:
    lying = MicroBatch(
        sequences=[SequenceCount(source="a", length=4, count=2)], num_tokens=9, num_padding_tokens=0, time_ms=0
    )
    honest = make_plan([[[("a", 4, 2)]]])
    replica = honest.replicas[0].model_copy(update={"micro_batches": [lying]})
    over_cap = honest.replicas[0].model_copy(update={"max_tokens": 7})
    for changes, message in (
        ({"replicas": [replica]}, "micro-batch 0 of replica 0 declares 9 tokens"),
        ({"replicas": [over_cap]}, "8 tokens with padding, over its cap of 7"),
        ({"alignment": 8}, "declares 0 padding tokens but its sequences come to 8"),
        ({"num_tokens": 7}, "the plan declares 7 tokens"),
        ({"num_sequences": 3}, "the plan declares 3 sequences"),
    ):
        with pytest.raises(PlanInconsistent, match=message):
            resolve(reseal(honest, **changes), {"a": [4, 4]})


def test_results_that_are_not_one_for_each_placed_sequence_are_refused() -> None:
    assignment = resolve(make_plan([[[("a", 4, 2)]]]), {"a": [4, 4]})
    with pytest.raises(ValueError, match="1 results for 2 placed sequences"):
        assignment.restore(np.zeros(1))
    with pytest.raises(KeyError, match="no source 'z'"):
        assignment.inverse_permutation("z")


def test_a_hundred_thousand_sequences_resolve_in_under_two_seconds() -> None:
    draw = np.random.default_rng(0)
    batch = {f"rank-{rank}": draw.integers(1, 8192, size=1563).tolist() for rank in range(64)}
    plan = random_plan(batch, 64, seed=1)
    began = time.process_time()
    assignment = resolve(plan, batch)
    taken_s = time.process_time() - began
    assert assignment.num_placed == 64 * 1563
    assert taken_s < 2.0


def test_resolving_plans_loads_neither_torch_nor_the_service() -> None:
    script = (
        "import sys, planner_client.sequences\n"
        "unwanted = ('torch', 'ortools', 'fastapi', 'planner_service', 'worker_agent')\n"
        "print([name for name in unwanted if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
