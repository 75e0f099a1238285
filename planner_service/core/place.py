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
    nodes_of: dict[str, _Nodes] = {}
    first_rank = 0
    for pool in pools:
        nodes_of[pool.device] = _Nodes(first_rank, pool.num_gpus, pool.gpus_per_node)
        first_rank += pool.num_gpus
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


class _Nodes:
    """Nodes filled from their first rank on; groups come in descending size."""

    def __init__(self, first_rank: int, num_gpus: int, gpus_per_node: int) -> None:
        self._first_rank = first_rank
        self._num_gpus = num_gpus
        self._per_node = gpus_per_node
        self._used = [0] * -(-num_gpus // gpus_per_node)
        self._sizes = [min(gpus_per_node, num_gpus - first) for first in range(0, num_gpus, gpus_per_node)]
        self._first_with_room = 0
        self._group_size = 0

    def take(self, size: int) -> range | None:
        if size != self._group_size:
            self._group_size, self._first_with_room = size, 0
        found = self._whole_nodes(size) if size > self._per_node else self._inside_node(size)
        return None if found is None else range(self._first_rank + found.start, self._first_rank + found.stop)

    def _inside_node(self, size: int) -> range | None:
        node = self._first_with_room
        while node < len(self._used) and self._used[node] + size > self._sizes[node]:
            node += 1
        self._first_with_room = node
        if node == len(self._used):
            return None
        first = node * self._per_node + self._used[node]
        self._used[node] += size
        return range(first, first + size)

    def _whole_nodes(self, size: int) -> range | None:
        """Lay a group that is larger than a node on neighbouring nodes, from the first rank of an empty one."""
        node = self._first_with_room
        while node < len(self._used) and self._used[node]:
            node += 1
        first = node * self._per_node
        if first + size > self._num_gpus:
            return None
        left = size
        while left:
            taken = min(left, self._sizes[node])
            self._used[node] = taken
            left -= taken
            node += 1
        self._first_with_room = node
        return range(first, first + size)


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
