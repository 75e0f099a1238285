"""The node's batch goes to the planner as one, and comes back to its ranks.

Invariants, for any ranks, sequences, atomic groups and any plan of them:

1. Every sequence of every rank is in exactly one share, or dropped.
2. A share holds what the plan names: by micro-batch, the ranks' shares together have the plan's lengths and counts.
3. Sequences of one length are taken in the node's order: the lowest rank first, each in the order held.
4. Atomic groups stay in one micro-batch.
5. Neither the order in which ranks hand in nor handing in twice changes anything.
6. Rewritten by rank, the plan has the same sequences in every micro-batch, each rank takes the very ones of its part,
   and its totals hold.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_factory import make_plan

from planner_client.contract import GroupCount, IterationTimings, Plan, ReplicaTiming
from planner_client.errors import HydraulisError
from planner_client.sequences import PlanMismatch, resolve
from worker_agent.daemon.node_batch import NodeBatch
from worker_agent.daemon.node_timings import is_all, merged_timings
from worker_agent.daemon.rank_plan import plan_of_ranks
from worker_agent.daemon.wire import RankBatch, RankPart, RankTimings

Draw = Callable[[st.SearchStrategy[Any]], Any]
NODE = "node-1"
Held = dict[int, list[int]]


def batch_of(held: Held, groups: dict[int, list[list[int]]] | None = None) -> NodeBatch:
    ranks = sorted(held)
    batch = None
    for rank in ranks:
        own = RankBatch(ranks=ranks, lengths=held[rank], groups=(groups or {}).get(rank, []))
        batch = NodeBatch.begun_by(rank, own) if batch is None else batch.with_rank(rank, own)
    assert batch is not None
    assert not batch.missing
    return batch


@st.composite
def held_by_ranks(draw: Draw) -> Held:
    ranks = draw(st.lists(st.integers(0, 40), min_size=1, max_size=4, unique=True))
    lengths = st.lists(st.sampled_from([1, 2, 5, 9]), max_size=6)
    return {rank: draw(lengths) for rank in ranks}


@st.composite
def planned(draw: Draw) -> tuple[Held, Plan]:
    """Ranks of one node, and a plan that mixes its sequences with another node's and drops some."""
    held = draw(held_by_ranks())
    rows = [(NODE, length) for own in held.values() for length in own] + [("node-0", 5), ("node-2", 2)]
    rows = draw(st.permutations(rows))
    num_replicas, num_micro_batches = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    placed: list[list[list[tuple[str, int, int]]]] = [
        [[] for _ in range(num_micro_batches)] for _ in range(num_replicas)
    ]
    dropped = []
    for source, length in rows:
        if source == NODE and draw(st.integers(0, 5)) == 0:
            dropped.append((source, length, 1))
        else:
            replica, number = draw(st.integers(0, num_replicas - 1)), draw(st.integers(0, num_micro_batches - 1))
            placed[replica][number].append((source, length, 1))
    return held, make_plan([[entries for entries in replica if entries] for replica in placed], dropped=dropped)


def places(parts: dict[int, RankPart]) -> dict[tuple[int, int], tuple[int, int] | None]:
    found: dict[tuple[int, int], tuple[int, int] | None] = {}
    for rank, part in parts.items():
        for share in part.shares:
            for index in share.indices:
                assert (rank, index) not in found
                found[rank, index] = (share.replica, share.micro_batch)
        for index in part.dropped:
            assert (rank, index) not in found
            found[rank, index] = None
    return found


@given(planned())
def test_every_sequence_of_every_rank_goes_to_one_place_as_the_plan_says(case: tuple[Held, Plan]) -> None:
    held, plan = case
    parts = batch_of(held).parts(plan, NODE)
    found = places(parts)
    assert found.keys() == {(rank, index) for rank, own in held.items() for index in range(len(own))}
    asked: dict[tuple[int, int] | None, Counter[int]] = defaultdict(Counter)
    for number, replica in enumerate(plan.replicas):
        for order, micro_batch in enumerate(replica.micro_batches):
            for entry in micro_batch.sequences:
                if entry.source == NODE:
                    asked[number, order][entry.length] += entry.count
    for entry in plan.dropped:
        asked[None][entry.length] += entry.count
    given_: dict[tuple[int, int] | None, Counter[int]] = defaultdict(Counter)
    for (rank, index), place in found.items():
        given_[place][held[rank][index]] += 1
    assert given_ == asked


@given(planned())
def test_equal_sequences_are_taken_lowest_rank_first_in_the_order_held(case: tuple[Held, Plan]) -> None:
    held, plan = case
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    parts = batch_of(held).parts(plan, NODE)
    shares = [(share.replica, share.micro_batch, rank, share) for rank, part in parts.items() for share in part.shares]
    for _, _, rank, share in sorted(shares, key=lambda row: row[:3]):
        for index in share.indices:
            taken[held[rank][index]].append((rank, index))
    for rank in sorted(held):
        for index in parts[rank].dropped:
            taken[held[rank][index]].append((rank, index))
    assert all(order == sorted(order) for order in taken.values())


@given(planned(), st.randoms(use_true_random=False))
def test_the_order_of_hand_ins_changes_nothing(case: tuple[Held, Plan], random: Any) -> None:
    held, plan = case
    order = [*held, *held]
    random.shuffle(order)
    batch = None
    for rank in order:
        own = RankBatch(ranks=list(held), lengths=held[rank])
        batch = NodeBatch.begun_by(rank, own) if batch is None else batch.with_rank(rank, own)
    assert batch is not None
    assert batch.report() == batch_of(held).report()
    assert batch.parts(plan, NODE) == batch_of(held).parts(plan, NODE)


@given(planned())
def test_rewritten_by_rank_each_rank_takes_the_very_sequences_of_its_part(case: tuple[Held, Plan]) -> None:
    held, plan = case
    by_rank = {NODE: {f"rank-{rank}": held[rank] for rank in sorted(held)}, "node-0": {"rank-90": [5]}}
    by_rank["node-2"] = {"rank-91": [2]}
    rewritten = plan_of_ranks(plan, by_rank)
    sources = {source: lengths for ranks in by_rank.values() for source, lengths in ranks.items()}
    assignment = resolve(rewritten, sources)
    found: dict[tuple[str, int], tuple[int, int] | None] = {
        (source, int(index)): None for source, indices in assignment.dropped.items() for index in indices
    }
    for number, replica in enumerate(assignment.replicas):
        for order, micro_batch in enumerate(replica):
            for source_id, index in zip(micro_batch.source_ids, micro_batch.indices, strict=True):
                found[assignment.sources[source_id], int(index)] = (number, order)
    expected = {
        (f"rank-{rank}", index): place for (rank, index), place in places(batch_of(held).parts(plan, NODE)).items()
    }
    assert {key: place for key, place in found.items() if key[0] not in {"rank-90", "rank-91"}} == expected
    assert (rewritten.num_sequences, rewritten.num_tokens) == (plan.num_sequences, plan.num_tokens)
    assert len(found) == sum(map(len, sources.values()))


def test_groups_of_ranks_stay_together() -> None:
    held = {0: [3, 4, 3, 4], 2: [4, 3, 3, 4]}
    batch = batch_of(held, {0: [[0, 1]], 2: [[0, 1]]})
    assert [(group.lengths, group.count) for group in batch.report().atomic_groups] == [([3, 4], 2)]
    plan = make_plan([[[(NODE, 3, 2), (NODE, 4, 2)]], [[(NODE, 3, 2), (NODE, 4, 2)]]])
    replicas = list(plan.replicas)
    for number, count in ((0, 1), (1, 1)):
        micro_batch = (
            replicas[number]
            .micro_batches[0]
            .model_copy(update={"groups": [GroupCount(source=NODE, lengths=[3, 4], count=count)]})
        )
        replicas[number] = replicas[number].model_copy(update={"micro_batches": [micro_batch]})
    grouped = Plan.seal(**{**{name: value for name, value in plan if name != "digest"}, "replicas": replicas})
    found = places(batch.parts(grouped, NODE))
    assert len(found) == 8
    assert found[0, 0] == found[0, 1]
    assert found[2, 0] == found[2, 1]
    assert found[0, 0] != found[2, 0]
    with pytest.raises(ValueError, match="atomic groups"):
        plan_of_ranks(grouped, {NODE: {"rank-0": held[0], "rank-2": held[2]}})


def test_a_plan_for_another_batch_is_refused_by_part_and_by_rank() -> None:
    plan = make_plan([[[(NODE, 3, 2)]]])
    for held in ({0: [3]}, {0: [3, 3], 1: [3]}, {0: [3, 3], 1: [7]}):
        with pytest.raises(HydraulisError):
            batch_of(held).parts(plan, NODE)
        with pytest.raises(PlanMismatch):
            plan_of_ranks(plan, {NODE: {f"rank-{rank}": own for rank, own in held.items()}})
    with pytest.raises(PlanMismatch):
        plan_of_ranks(plan, {"node-9": {"rank-0": [3, 3]}})


def test_a_rank_is_told_what_it_cannot_hand_in() -> None:
    with pytest.raises(ValueError, match="once"):
        RankBatch(ranks=[1, 1], lengths=[])
    with pytest.raises(ValueError, match="names sequence 3"):
        RankBatch(ranks=[1], lengths=[5, 5], groups=[[0, 3]])
    with pytest.raises(ValueError, match="two groups"):
        RankBatch(ranks=[1], lengths=[5, 5, 5], groups=[[0, 1], [1, 2]])


def timed(replica: int, wall_ms: float, *micro_batch_ms: float, cpu_ms: float | None = None) -> ReplicaTiming:
    return ReplicaTiming(replica=replica, wall_ms=wall_ms, cpu_ms=cpu_ms, micro_batch_ms=list(micro_batch_ms))


def test_of_a_replicas_ranks_the_slowest_counts() -> None:
    held = {
        0: RankTimings(digest="d", ranks=[0, 1, 2], replicas=[timed(0, 5.0, 2.0, 3.0, cpu_ms=4.0)]),
        1: RankTimings(digest="d", ranks=[0, 1, 2], replicas=[timed(0, 6.0, 1.0, 5.0)]),
        2: RankTimings(digest="d", ranks=[0, 1, 2]),
    }
    merged = merged_timings(7, held)
    assert merged == IterationTimings(digest="d", iteration=7, replicas=[timed(0, 6.0, 2.0, 5.0, cpu_ms=4.0)])
    assert merged_timings(7, {2: held[2]}) is None
    assert is_all(held, None)
    assert not is_all({0: held[0]}, None)
    plan = make_plan([[[(NODE, 3, 1)], [(NODE, 3, 1)]], []])
    assert is_all({0: held[0]}, plan)
    assert not is_all({2: held[2]}, plan)


def test_bounds_tell_ranks_without_sequences_apart() -> None:
    batch = batch_of({3: [], 5: [2], 9: []})
    assert batch.bounds.tolist() == [0, 0, 1, 1]
    parts = batch.parts(make_plan([[[(NODE, 2, 1)]]]), NODE)
    assert {rank: [share.indices for share in part.shares] for rank, part in parts.items()} == {3: [], 5: [[0]], 9: []}
    assert np.array_equal(batch.lengths, [2])
