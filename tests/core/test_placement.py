from dataclasses import replace
from random import Random

from core_cases import kind, published
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.place import place
from planner_service.core.problem import Pool


def cluster(num_gpus: int, device: str = "test") -> list[Pool]:
    return [Pool(device, num_gpus, 8)]


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4, 8, 16]), st.sampled_from([1, 2, 3, 4])), min_size=1, max_size=20),
    st.integers(0, 3),
)
def test_power_of_two_groups_fill_the_cluster_without_crossing_nodes(
    layouts: list[tuple[int, int]], spare: int
) -> None:
    """Invariants, for tensor-parallel degrees that are powers of two on nodes of eight:

    1. Every replica gets tp * pp ranks, none shared, all inside the cluster.
    2. A group of up to eight ranks is inside one node and aligned to its size; a larger one starts at a node.
    3. The replicas always fit a cluster of just as many whole nodes as they need ranks for.
    """
    kinds = [kind(tp, pp, 0, 1, 1, 10) for tp, pp in layouts]
    needed = sum(tp * pp for tp, pp in layouts)
    num_gpus = -(-needed // 8) * 8 + 8 * spare
    ranks = place(kinds, cluster(num_gpus))
    assert ranks is not None
    flat = [rank for held in ranks for rank in held]
    assert len(flat) == len(set(flat)) == needed
    assert min(flat) >= 0
    assert max(flat) < num_gpus
    for (tp, _), held in zip(layouts, ranks, strict=True):
        for first in range(0, len(held), tp):
            group = held[first : first + tp]
            assert list(group) == list(range(group[0], group[0] + tp))
            assert group[0] % min(tp, 8) == 0
            assert tp > 8 or group[0] // 8 == group[-1] // 8


def test_groups_that_do_not_fit_into_nodes_are_not_placed() -> None:
    assert place([kind(3, 1, 0, 1, 1, 10)] * 5, cluster(16)) is None  # two of three ranks in each node of eight
    assert place([kind(16, 1, 0, 1, 1, 10)], cluster(8)) is None


def test_a_cluster_smaller_than_a_node_is_filled() -> None:
    assert place([kind(1, 1, 0, 1, 1, 10)] * 2, cluster(2)) == [(0,), (1,)]


def test_a_thousand_gpus_are_placed_whatever_the_order_of_the_replicas() -> None:
    kinds = published("llama-32b-a800-80g", 1024)
    replicas = [kinds[4, 1]] * 238 + [kinds[4, 4]] * 2 + [kinds[8, 1]] * 3 + [kinds[16, 1]]
    for order in (replicas, replicas[::-1]):
        ranks = place(order, cluster(1024, "A800 80GB"))
        assert ranks is not None
        assert sorted(rank for held in ranks for rank in held) == list(range(1024))


def brute_force(sizes: tuple[int, ...], room: tuple[int, ...]) -> bool:
    """Try every node for every group, all of which fit into nodes."""
    if not sizes:
        return True
    size, rest = sizes[0], sizes[1:]
    return any(
        brute_force(rest, (*room[:node], free - size, *room[node + 1 :]))
        for node, free in enumerate(room)
        if free >= size
    )


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2])), min_size=1, max_size=5),
    st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
)
def test_groups_are_placed_on_nodes_with_holes_wherever_that_can_be_done(
    layouts: list[tuple[int, int]], nodes: list[set[int]], random: Random
) -> None:
    """Invariants, for degrees that are powers of two and nodes of four that lack any of their ranks:

    1. There is a placement exactly if trying every node for every group finds one.
    2. Every group lies inside one node, and no rank is given twice or is not of the pool.
    """
    numbers = list(range(4 * len(nodes)))
    random.shuffle(numbers)
    given_nodes = tuple(tuple(numbers[4 * n + place] for place in sorted(node)) for n, node in enumerate(nodes))
    pool = Pool("test", sum(map(len, given_nodes)), 4, given_nodes)
    kinds = [kind(tp, pp, 0, 1, 1, 10) for tp, pp in layouts]
    groups = tuple(tp for tp, pp in layouts for _ in range(pp))
    ranks = place(kinds, [pool])
    assert (ranks is not None) == brute_force(groups, tuple(map(len, given_nodes)))
    if ranks is None:
        return
    flat = [rank for held in ranks for rank in held]
    assert len(flat) == len(set(flat)) == sum(groups)
    for (tp, _), held in zip(layouts, ranks, strict=True):
        for first in range(0, len(held), tp):
            assert any(set(held[first : first + tp]) <= set(node) for node in given_nodes)


def test_a_group_larger_than_a_node_takes_whole_nodes_and_leaves_out_those_with_holes() -> None:
    nodes = ((0, 1, 2, 3), (4, 5, 7), (8, 9, 10, 11), (12, 13, 14))
    pool = Pool("test", 14, 4, nodes)
    assert place([kind(8, 1, 0, 1, 1, 10)], [pool]) == [(0, 1, 2, 3, 8, 9, 10, 11)]
    assert place([kind(6, 1, 0, 1, 1, 10)], [pool]) == [(0, 1, 2, 3, 4, 5)]
    assert place([kind(8, 1, 0, 1, 1, 10)] * 2, [pool]) is None


def test_pools_that_name_their_ranks_keep_them() -> None:
    pools = [Pool("slow", 2, 4, ((2, 3),)), Pool("test", 2, 4, ((0, 1),))]
    slow = replace(kind(1, 2, 0, 1, 1, 10), device="slow")
    assert place([kind(2, 1, 0, 1, 1, 10), slow], pools) == [(0, 1), (2, 3)]
