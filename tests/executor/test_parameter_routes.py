"""The routes of parameters and gradients, checked by moving numbered elements by hand."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_factory import make_plan, reseal

from planner_client.contract import Plan, Replica
from worker_agent.executor.layout import rank_roles
from worker_agent.executor.parameter_routes import Haul, Leg, ParameterRoutes, count, parameter_routes
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.parts import ModelPart
from worker_agent.executor.shape import DecoderConfig

ONE = [[("rank-0", 4, 1)]]
Layouts = list[tuple[int, int, bool]]
"""(tp, pp, whether it has a micro-batch) of each replica."""

Case = tuple[DecoderConfig, Layouts, int, int, int]
"""Decoder, replicas, ranks, layers in a bucket, seed of the placement."""


def mixed_plan(layouts: Layouts, world_size: int, seed: int = 0) -> Plan:
    """Replicas of these layouts, on ranks in random order."""
    ranks = np.random.default_rng(seed).permutation(world_size).tolist()
    replicas = []
    for tp, pp, works in layouts:
        own = [ranks.pop() for _ in range(tp * pp)]
        plan = make_plan([ONE if works else []], ranks=[own], layout=(tp, 1, pp))
        replicas += plan.replicas
    return with_replicas(replicas)


def with_replicas(replicas: list[Replica]) -> Plan:
    entries = [entry for replica in replicas for micro in replica.micro_batches for entry in micro.sequences]
    num_sequences = sum(entry.count for entry in entries)
    num_tokens = sum(entry.count * entry.length for entry in entries)
    return reseal(make_plan([]), replicas=replicas, num_sequences=num_sequences, num_tokens=num_tokens)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_heads, num_kv_heads = draw(st.sampled_from([(4, 1), (4, 2), (4, 4), (6, 2), (6, 3), (8, 2)]))
    config = DecoderConfig(
        vocab_size=draw(st.integers(8, 30)),
        hidden_size=2 * num_heads,
        num_layers=draw(st.integers(1, 7)),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        ffn_size=draw(st.integers(8, 20)),
        tied_embeddings=draw(st.booleans()),
    )
    degrees = [tp for tp in (1, 2, 3, 4, 6) if num_heads % tp == 0]
    one = st.tuples(st.sampled_from(degrees), st.integers(1, min(4, config.num_layers)), st.booleans())
    layouts = draw(st.lists(one, min_size=1, max_size=3))
    idle = draw(st.integers(0, 2))
    world_size = sum(tp * pp for tp, pp, _ in layouts) + idle
    return config, layouts, world_size, draw(st.integers(1, 4)), draw(st.integers(0, 2**32 - 1))


def pieces_of(values: np.ndarray, pieces: np.ndarray) -> np.ndarray:
    return np.concatenate([values[:0], *(values[begin:end] for begin, end in pieces.tolist())])


def all_to_all(sent: list[np.ndarray], legs: list[Leg]) -> list[np.ndarray]:
    """What a real all-to-all does, checking that both sides of each pair expect the same."""
    parts = []
    for giver, leg in enumerate(legs):
        assert sent[giver].size == leg.num_sent
        parts.append(np.split(sent[giver], np.cumsum(leg.send_splits)[:-1]))
        for taker, other in enumerate(legs):
            assert leg.send_splits[taker] == other.receive_splits[giver]
    return [np.concatenate([of_giver[taker] for of_giver in parts]) for taker in range(len(legs))]


def routes_of(case: Case) -> tuple[ParameterRoutes, ParameterTable]:
    config, layouts, world_size, layers_per_bucket, seed = case
    plan, table = mixed_plan(layouts, world_size, seed), ParameterTable.of(config)
    return parameter_routes(plan, rank_roles(plan, world_size), table, layers_per_bucket), table


@settings(max_examples=60, deadline=None)
@given(cases())
def test_parameters_arrive_exactly_where_they_are_needed(case: Case) -> None:
    """Hold for any model, mix of replicas, placement and size of buckets.

    1. Every element of every slice a rank needs arrives once, in its place, from the one rank that keeps it.
    2. No more elements travel than the ranks need.
    3. Each bucket arrives in one interval of the compute buffer, in one round.
    """
    routes, table = routes_of(case)
    ranks = range(len(routes.buckets))
    values = np.arange(table.num_elements, dtype=np.float64)
    shards = [values[slice(*table.shard(rank, len(ranks)))] for rank in ranks]
    buffers = [np.full(routes.num_buffer_elements[rank], np.nan) for rank in ranks]
    moved = 0
    for number in range(routes.outward.num_rounds):
        legs = [routes.parameter_leg(number, rank) for rank in ranks]
        arrived = all_to_all([pieces_of(shards[rank], legs[rank].sent) for rank in ranks], legs)
        moved += sum(part.size for part in arrived)
        for rank in ranks:
            assert len(legs[rank].received) <= 1
            for begin, end in legs[rank].received.tolist():
                assert np.isnan(buffers[rank][begin:end]).all()
                buffers[rank][begin:end] = arrived[rank]
    needed = [[values[one.begin : one.end] for bucket in of_rank for one in bucket] for of_rank in routes.buckets]
    for rank in ranks:
        np.testing.assert_array_equal(buffers[rank], np.concatenate([values[:0], *needed[rank]]))
    assert moved == sum(part.size for of_rank in needed for part in of_rank)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_gradients_return_exactly_once_and_sum(case: Case) -> None:
    """Hold for any model, mix of replicas, placement and size of buckets.

    1. The shards' sums are what the replicas' ranks computed, a parameter held whole by several ranks of a stage
       counted once for each replica, shared key-value heads and a tied head once for each rank.
    2. No more elements travel than count.
    """
    routes, table = routes_of(case)
    ranks = range(len(routes.buckets))
    # Elements of a slice are told apart by the rank that computed them, so that sums show who was counted.
    slices = [[one for bucket in of_rank for one in bucket] for of_rank in routes.buckets]
    buffers = [
        np.concatenate([np.zeros(0), *((rank + 1.0) * np.arange(one.begin, one.end) for one in slices[rank])])
        for rank in ranks
    ]
    sums = [np.zeros(end - begin) for begin, end in (table.shard(rank, len(ranks)) for rank in ranks)]
    moved = 0
    for number in range(routes.counted.num_rounds):
        legs = [routes.gradient_leg(number, rank) for rank in ranks]
        arrived = all_to_all([pieces_of(buffers[rank], legs[rank].sent) for rank in ranks], legs)
        moved += sum(part.size for part in arrived)
        for rank in ranks:
            pieces = legs[rank].received.tolist()
            parts = np.split(arrived[rank], np.cumsum([end - begin for begin, end in pieces])[:-1])
            for (begin, end), part in zip(pieces, parts, strict=False):
                sums[rank][begin:end] += part
    weights = np.zeros(table.num_elements)
    counted = [(rank, one) for rank in ranks for one in slices[rank] if one.returns_gradient]
    for rank, one in counted:
        weights[one.begin : one.end] += rank + 1
    np.testing.assert_array_equal(np.concatenate(sums), weights * np.arange(table.num_elements))
    assert moved == sum(one.end - one.begin for _, one in counted)
    num_working = sum(works for _, _, works in case[1])
    for entry in table.entries:
        if not entry.is_matrix:
            assert sum(one.parameter == entry for _, one in counted) == num_working


def test_more_ranks_than_key_value_heads_share_them() -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=16, num_layers=1, num_heads=4, num_kv_heads=2)
    parts = [ModelPart(config, tp=4, tp_rank=rank) for rank in range(4)]
    assert [tuple(part.rows("kv_heads")) for part in parts] == [(0,), (0,), (1,), (1,)]
    assert all(part.kv_heads_serve_evenly for part in parts)


def test_heads_that_straddle_key_value_heads_are_told_which_serves_them() -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=24, num_layers=1, num_heads=6, num_kv_heads=2)
    middle = ModelPart(config, tp=2, tp_rank=0)
    assert middle.kv_heads_serve_evenly
    straddling = ModelPart(dataclasses.replace(config, num_heads=12, num_kv_heads=4), tp=3, tp_rank=1)
    assert straddling.kv_head_of_head == (0, 0, 1, 1)
    uneven = ModelPart(dataclasses.replace(config, num_heads=12, num_kv_heads=4), tp=3, tp_rank=0)
    assert uneven.kv_head_of_head == (0, 0, 0, 1)
    assert not uneven.kv_heads_serve_evenly


def test_buckets_hold_a_few_layers_each_with_embedding_and_head_at_the_ends() -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=8, num_layers=5, num_heads=2)
    table = ParameterTable.of(config)
    buckets = ModelPart(config).buckets(table, 2)
    assert [sorted({one.parameter.layer for one in bucket} - {None}) for bucket in buckets] == [[0, 1], [2, 3], [4]]
    assert buckets[0][0].parameter.name == "embedding"
    assert buckets[-1][-1].parameter.name == "head"


def test_a_tied_head_on_a_stage_of_its_own_is_the_embedding_under_another_name() -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=8, num_layers=2, num_heads=2, tied_embeddings=True)
    table = ParameterTable.of(config)
    last = ModelPart(config, pp=2, stage=1).buckets(table, 1)
    assert [(one.parameter.name, one.attribute) for one in last[-1] if one.parameter.layer is None] == [
        ("embedding", "head"),
        ("final_norm.weight", "final_norm.weight"),
    ]


SHARDS = np.array([[0, 4], [4, 6]])


def haul(pieces: list[list[int]], buffer: list[list[int]], shards: np.ndarray = SHARDS) -> Haul:
    none = np.zeros((0, 2), dtype=np.int64)
    return Haul(6, shards, ((np.array(pieces), none),), (np.array(buffer), none))


def test_routes_that_do_not_tile_are_refused() -> None:
    assert haul([[0, 3]], [[0, 3]]).leg(0, 0).num_received == 3
    with pytest.raises(ValueError, match="do not tile 6 elements"):
        haul([[0, 3]], [[0, 3]], np.array([[0, 4], [5, 6]]))
    with pytest.raises(ValueError, match="routed to rank 0 twice"):
        haul([[0, 3], [2, 4]], [[0, 4]])
    with pytest.raises(ValueError, match="whose buffer has no place for it"):
        haul([[0, 3]], [[0, 2]])
    with pytest.raises(ValueError, match="outside 0 to 5"):
        haul([[0, 7]], [[0, 7]])


def test_a_replica_that_would_miss_parameters_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=8, num_layers=2, num_heads=2)
    plan, whole = make_plan([ONE], ranks=[[0]]), ModelPart.buckets
    monkeypatch.setattr(ModelPart, "buckets", lambda part, *given: whole(part, *given)[:1])
    with pytest.raises(ValueError, match=r"replica 0 would not get every parameter: .* elements are missing"):
        parameter_routes(plan, rank_roles(plan, 1), ParameterTable.of(config), 1)


def test_the_way_back_is_the_same_leg_turned_round() -> None:
    leg = haul([[0, 3], [5, 6]], [[5, 6], [0, 3]]).leg(0, 0)
    assert leg.received.tolist() == [[1, 4], [0, 1]]
    back = leg.inverse()
    assert back.sent is leg.received
    assert back.receive_splits is leg.send_splits
    assert back.inverse().sent is leg.sent


def test_an_idle_replica_gets_no_parameters() -> None:
    config = DecoderConfig(vocab_size=8, hidden_size=8, num_layers=2, num_heads=2)
    plan = mixed_plan([(1, 1, True), (2, 1, False)], 4)
    routes: ParameterRoutes = parameter_routes(plan, rank_roles(plan, 4), ParameterTable.of(config), 1)
    assert sorted(routes.num_buffer_elements) == [0, 0, 0, ParameterTable.of(config).num_elements]
    assert count(routes.outward.buffers[0]) == routes.num_buffer_elements[0]
