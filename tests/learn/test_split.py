"""Pools of slow ranks, and the strategies that are written for them."""

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.learn.split import MAX_SLOW_POOLS, Groups, SplitPool, split
from planner_service.core.place import place
from planner_service.core.problem import Layout, Pool, ReplicaKind

ONE, TWO, FOUR, EIGHT, SIXTEEN = (Layout(tp, 1, 1) for tp in (1, 2, 4, 8, 16))
NODES = [Pool("gpu", 64, 8)]


def ranks(pool: SplitPool) -> set[int]:
    return {rank for node in pool.nodes for rank in node}


def is_placeable(groups: Groups, pools: tuple[SplitPool, ...]) -> bool:
    kinds = [ReplicaKind(layout, device, 0, 0, 0, 1) for device, layout, count in groups for _ in range(count)]
    return place(kinds, [pool.as_pool() for pool in pools]) is not None


def test_where_strategies_are_free_the_smallest_layout_says_how_many_ranks_are_put_apart() -> None:
    found = split(NODES, {11: 1.9}, [], {"gpu": [EIGHT, FOUR]})
    assert [(pool.name, pool.num_gpus) for pool in found.pools] == [("gpu", 60), ("gpu x1.9 slower", 4)]
    assert found.pools[1].nodes == ((8, 9, 10, 11),)
    assert found.pools[0].nodes[1] == (12, 13, 14, 15)


def test_replicas_of_a_strategy_fill_the_slow_block() -> None:
    strategies: list[Groups] = [(("gpu", SIXTEEN, 4),), (("gpu", SIXTEEN, 1), ("gpu", EIGHT, 6))]
    found = split(NODES, dict.fromkeys(range(8, 16), 1.9), strategies, {})
    assert found.left_out == ()
    assert ranks(found.pools[1]) == set(range(16))
    slow = "gpu x1.9 slower"
    assert (("gpu", SIXTEEN, 3), (slow, SIXTEEN, 1)) in found.strategies
    assert (("gpu", EIGHT, 6), (slow, SIXTEEN, 1)) in found.strategies
    assert (("gpu", EIGHT, 4), ("gpu", SIXTEEN, 1), (slow, EIGHT, 2)) in found.strategies


def test_a_strategy_that_cannot_be_written_is_left_out_and_one_that_cannot_at_all_leaves_the_cluster_whole() -> None:
    wide: Groups = (("gpu", Layout(8, 1, 8), 1),)
    assert split(NODES, {11: 2.0}, [wide, (("gpu", EIGHT, 8),)], {}).left_out == (0,)
    alone = split(NODES, {11: 2.0}, [wide], {})
    assert not alone.is_split
    assert alone.strategies == (wide,)


def test_ranks_that_are_all_slow_are_not_put_apart() -> None:
    found = split(NODES, dict.fromkeys(range(64), 2.0), [], {"gpu": [ONE]})
    assert not found.is_split
    assert found.pools[0].num_gpus == 64


def test_there_are_few_slow_pools_however_unlike_ranks_are() -> None:
    found = split(NODES, {rank: 1.3 + rank / 10 for rank in range(20)}, [], {"gpu": [ONE]})
    assert sum(pool.factor != 1 for pool in found.pools) == MAX_SLOW_POOLS
    assert max(pool.factor for pool in found.pools) == 1.3 + 1.9


def test_types_are_split_by_themselves() -> None:
    pools = [Pool("old", 8, 8), Pool("new", 8, 8)]
    found = split(pools, {9: 2.0}, [(("old", FOUR, 2), ("new", FOUR, 2))], {})
    assert [(pool.name, sorted(ranks(pool))) for pool in found.pools] == [
        ("old", list(range(8))),
        ("new", [12, 13, 14, 15]),
        ("new x2 slower", [8, 9, 10, 11]),
    ]
    assert found.strategies == ((("new", FOUR, 1), ("new x2 slower", FOUR, 1), ("old", FOUR, 2)),)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(st.integers(0, 31), st.sampled_from([1.3, 1.9, 2.6]), max_size=6),
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2]), st.integers(1, 4)), min_size=1, max_size=3
        ),
        max_size=3,
    ),
)
def test_splitting_loses_neither_ranks_nor_replicas(
    factors: dict[int, float], sizes: list[list[tuple[int, int, int]]]
) -> None:
    """Invariants:

    1. The pools hold every rank once, and a slow rank is in a pool as slow as it is or slower, if any is split off.
    2. A strategy that is written has the replicas of one that was given, and can be placed on the pools.
    3. Each strategy that was given is written or named as left out.
    4. Without slow ranks everything stays as it was.
    """
    pools = [Pool("gpu", 32, 8)]
    given_strategies: list[Groups] = [
        tuple(("gpu", Layout(tp, 1, pp), count) for tp, pp, count in groups)
        for groups in sizes
        if sum(tp * pp * count for tp, pp, count in groups) <= 32
    ]
    found = split(pools, factors, given_strategies, {"gpu": [ONE, TWO]})
    assert sorted(rank for pool in found.pools for rank in ranks(pool)) == list(range(32))
    if found.is_split:
        for pool in found.pools:
            assert all(factors.get(rank, 1.0) <= pool.factor for rank in ranks(pool))
    before = [counted(groups) for groups in given_strategies]
    written = [counted(groups) for groups in found.strategies]
    assert all(replicas in before for replicas in written)
    if found.is_split:
        assert all(is_placeable(groups, found.pools) for groups in found.strategies)
    for number, replicas in enumerate(before):
        assert replicas in written or number in found.left_out
    if not factors:
        assert not found.is_split
        assert found.strategies == tuple(given_strategies)


def counted(groups: Groups) -> Counter[Layout]:
    """Return how many replicas of each layout a strategy has."""
    replicas: Counter[Layout] = Counter()
    for _, layout, count in groups:
        replicas[layout] += count
    return replicas
