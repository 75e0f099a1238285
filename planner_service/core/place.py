"""Placement: replicas to ranks, every tensor-parallel group inside a node where a node can hold it.

Groups are laid down in descending size, each on the first node with room. Sizes that divide one another (powers of two)
then stay aligned to their own size and leave no holes, as with buddy allocation.
"""

from collections.abc import Sequence

from planner_service.core.problem import Pool, ReplicaKind


def place(kinds: Sequence[ReplicaKind], pools: Sequence[Pool]) -> list[tuple[int, ...]] | None:
    """Give every replica its ranks.

    Parameters
    ----------
    kinds
        Kind of each replica. Length J.
    pools
        The cluster's GPUs by type; a replica goes to the pool of its kind's device.

    Returns
    -------
    list[tuple[int, ...]] | None
        Ranks of each replica: stage by stage, context-parallel rank by rank, tensor-parallel rank by rank. None if the
        groups cannot be laid out.
    """
    nodes_of = {
        pool.device: _Nodes(nodes, pool.gpus_per_node) for pool, nodes in zip(pools, ranks_by_node(pools), strict=True)
    }
    order = sorted(range(len(kinds)), key=lambda j: (-kinds[j].layout.tp, -kinds[j].num_ranks, j))
    ranks: list[tuple[int, ...]] = [()] * len(kinds)
    for replica in order:
        layout, nodes = kinds[replica].layout, nodes_of.get(kinds[replica].device)
        if nodes is None:
            return None
        held: list[int] = []
        for _ in range(layout.cp * layout.pp):
            group = nodes.take(layout.tp)
            if group is None:
                return None
            held.extend(group)
        ranks[replica] = tuple(held)
    return ranks


def ranks_by_node(pools: Sequence[Pool]) -> list[tuple[Sequence[int], ...]]:
    """Return each pool's ranks node by node, as they are given or else numbered on from the pool before."""
    found: list[tuple[Sequence[int], ...]] = []
    first_rank = 0
    for pool in pools:
        end = first_rank + pool.num_gpus
        counted = (
            range(first, min(first + pool.gpus_per_node, end)) for first in range(first_rank, end, pool.gpus_per_node)
        )
        found.append(pool.nodes or tuple(counted))
        first_rank = end
    return found


class _Nodes:
    """Nodes filled from their first rank on; groups come in descending size."""

    def __init__(self, nodes: Sequence[Sequence[int]], gpus_per_node: int) -> None:
        self._nodes = nodes
        self._per_node = gpus_per_node
        self._used = [0] * len(nodes)
        self._first_with_room = 0
        self._group_size = 0

    def take(self, size: int) -> list[int] | None:
        if size != self._group_size:
            self._group_size, self._first_with_room = size, 0
        return self._whole_nodes(size) if size > self._per_node else self._inside_node(size)

    def _inside_node(self, size: int) -> list[int] | None:
        node = self._first_with_room
        while node < len(self._nodes) and self._used[node] + size > len(self._nodes[node]):
            node += 1
        self._first_with_room = node
        return None if node == len(self._nodes) else self._take_from(node, size)

    def _whole_nodes(self, size: int) -> list[int] | None:
        """Lay a group that is larger than a node on the next nodes that are empty: whole ones, and what is left."""
        chosen: list[tuple[int, int]] = []
        left = size
        for node in range(self._first_with_room, len(self._nodes)):
            taken = min(left, self._per_node)
            if self._used[node] == 0 and len(self._nodes[node]) >= taken:
                chosen.append((node, taken))
                left -= taken
            if not left:
                break
        if left:
            return None
        self._first_with_room = chosen[0][0] + 1
        return [rank for node, taken in chosen for rank in self._take_from(node, taken)]

    def _take_from(self, node: int, size: int) -> list[int]:
        first = self._used[node]
        self._used[node] += size
        return list(self._nodes[node][first : first + size])


def most_placeable(kind: ReplicaKind, pools: Sequence[Pool]) -> int:
    """Return how many replicas of one kind can be placed, possibly none."""
    own = [pool for pool in pools if pool.device == kind.device]
    fits, too_many = 0, sum(pool.num_gpus for pool in own) // kind.num_ranks + 1
    probe = too_many - 1
    while too_many - fits > 1:
        if place([kind] * probe, own) is not None:
            fits = probe
        else:
            too_many = probe
        probe = (fits + too_many) // 2
    return fits
