"""Slow ranks become pools of GPUs of their own, and strategies say which replicas run on them.

A pool of slow ranks is made of whole blocks: as many ranks as the smallest layout takes, where strategies are free, or
as some replicas of the job's strategies fill, where they are not. Of a block all ranks count as slow as its slowest.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from planner_service.core.place import place, ranks_by_node
from planner_service.core.problem import Layout, Pool, ReplicaKind

MAX_SLOW_POOLS = 4
"""Most pools of slow ranks; nearest factors are put together beyond it."""

MAX_REWRITTEN = 4
"""Most strategies that one strategy becomes."""

MAX_TRIED = 256

MAX_NAME = 960
"""Characters of a type's name that the name of its slow ranks begins with; there is a limit to the whole."""

Groups = tuple[tuple[str, Layout, int], ...]
"""A strategy: device, layout and number of replicas of each group."""


@dataclass(frozen=True, slots=True)
class SplitPool:
    """Some ranks of one type.

    Attributes
    ----------
    device
        Their type, as it was registered.
    factor
        How many times as long they take; 1 for those like most.
    nodes
        The ranks, node by node.
    gpus_per_node
        GPUs of a whole node.
    """

    device: str
    factor: float
    nodes: tuple[tuple[int, ...], ...]
    gpus_per_node: int

    @property
    def name(self) -> str:
        """What plans and strategies call it."""
        return self.device if self.factor == 1 else f"{self.device[:MAX_NAME]} x{self.factor:g} slower"

    @property
    def num_gpus(self) -> int:
        """Number of ranks."""
        return sum(map(len, self.nodes))

    def as_pool(self) -> Pool:
        """Return it as the planner takes it."""
        return Pool(self.name, self.num_gpus, self.gpus_per_node, self.nodes)


@dataclass(frozen=True)
class Split:
    """What the planner is given.

    Attributes
    ----------
    pools
        All ranks.
    strategies
        Candidates, with devices as the pools are called; empty if all strategies are searched.
    left_out
        Candidates that cannot be written for these pools, by their number.
    """

    pools: tuple[SplitPool, ...]
    strategies: tuple[Groups, ...] = ()
    left_out: tuple[int, ...] = ()

    @property
    def is_split(self) -> bool:
        """Whether there are slow ranks apart from others."""
        return any(pool.factor != 1 for pool in self.pools)


def split(
    pools: Sequence[Pool],
    factors: Mapping[int, float],
    strategies: Sequence[Groups],
    layouts: Mapping[str, Sequence[Layout]],
) -> Split:
    """Put slow ranks into pools of their own.

    Parameters
    ----------
    pools
        The cluster as it was registered.
    factors
        Of slow ranks.
    strategies
        The job's candidates; none if all strategies are searched.
    layouts
        Layouts of each type that strategies may use.

    Returns
    -------
    Split
        The cluster as it was if there is nothing to put apart, or no candidate can be written for what it would be.
    """
    whole = Split(_unsplit(pools), tuple(strategies))
    if not factors:
        return whole
    if not strategies:
        sizes = {
            device: min(own, key=lambda layout: layout.num_ranks).num_ranks for device, own in layouts.items() if own
        }
        return Split(_parted(pools, factors, sizes))
    best: Split | None = None
    for size in sorted({layout.num_ranks for groups in strategies for _, layout, _ in groups}):
        parted = _parted(pools, factors, {pool.device: size for pool in pools})
        if all(pool.factor == 1 for pool in parted):
            continue
        written = [_written(groups, parted) for groups in strategies]
        left_out = tuple(number for number, found in enumerate(written) if not found)
        found = Split(parted, tuple(dict.fromkeys(chain.from_iterable(written))), left_out)
        if found.strategies and (best is None or len(left_out) < len(best.left_out)):
            best = found
    return best or whole


def _unsplit(pools: Sequence[Pool]) -> tuple[SplitPool, ...]:
    return tuple(
        SplitPool(pool.device, 1.0, tuple(map(tuple, nodes)), pool.gpus_per_node)
        for pool, nodes in zip(pools, ranks_by_node(pools), strict=True)
    )


def _parted(pools: Sequence[Pool], factors: Mapping[int, float], sizes: Mapping[str, int]) -> tuple[SplitPool, ...]:
    found: list[SplitPool] = []
    for own in _unsplit(pools):
        of_block = {
            block: max(factors.get(rank, 1.0) for rank in block) for block in _blocks(own, sizes.get(own.device, 1))
        }
        factor_of = {rank: factor for block, factor in of_block.items() for rank in block}
        if min(factor_of.values()) > 1:
            # Nothing is left to be slower than.
            factor_of = dict.fromkeys(factor_of, 1.0)
        for factor in sorted(set(factor_of.values())):
            nodes = (tuple(rank for rank in node if factor_of[rank] == factor) for node in own.nodes)
            found.append(replace(own, factor=factor, nodes=tuple(node for node in nodes if node)))
    return _few(found)


def _blocks(pool: SplitPool, size: int) -> Iterator[tuple[int, ...]]:
    """Cut a type's ranks into blocks: of a node, or of several whole nodes where a layout takes more than one."""
    if size <= pool.gpus_per_node:
        for node in pool.nodes:
            yield from (node[first : first + size] for first in range(0, len(node), size))
        return
    num_nodes = -(-size // pool.gpus_per_node)
    for first in range(0, len(pool.nodes), num_nodes):
        yield tuple(chain.from_iterable(pool.nodes[first : first + num_nodes]))


def _few(pools: list[SplitPool]) -> tuple[SplitPool, ...]:
    """Put slow pools with the nearest factors together until there are few."""
    while sum(pool.factor != 1 for pool in pools) > MAX_SLOW_POOLS:
        pairs = [
            (second.factor / first.factor, number)
            for number, (first, second) in enumerate(pairwise(pools))
            if first.device == second.device and first.factor != 1
        ]
        if not pairs:
            break
        _, number = min(pairs)
        first, second = pools[number : number + 2]
        pools[number : number + 2] = [replace(second, nodes=_joined(first.nodes, second.nodes))]
    return tuple(pools)


def _joined(first: tuple[tuple[int, ...], ...], second: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    # Which of them share a node is not known any more; groups inside each part are still inside one.
    return tuple(sorted((*first, *second)))


def _written(groups: Groups, pools: tuple[SplitPool, ...]) -> list[Groups]:
    """Say which replicas of a strategy run on which pool: in a few ways, those first that fill the slow pools most."""
    slow = [pool for pool in pools if pool.factor != 1]
    found: list[tuple[int, Groups]] = []
    for number, (chosen, rest) in enumerate(_fills(groups, slow)):
        if number == MAX_TRIED:
            break
        written = (*chosen, *rest)
        if _can_be_placed(written, pools):
            filled = sum(layout.num_ranks * count for _, layout, count in chosen)
            found.append((-filled, tuple(sorted(written))))
    return [written for _, written in sorted(found)[:MAX_REWRITTEN]]


def _fills(groups: Groups, slow: Sequence[SplitPool]) -> Iterator[tuple[Groups, Groups]]:
    """Yield what runs on the slow pools, and what is left for the others."""
    if not slow:
        yield (), groups
        return
    pool, others = slow[0], slow[1:]
    own = [number for number, (device, _, _) in enumerate(groups) if device == pool.device]
    for counts in _counts([groups[number] for number in own], pool.num_gpus):
        taken = dict(zip(own, counts, strict=True))
        chosen = tuple((pool.name, groups[n][1], count) for n, count in taken.items() if count)
        rest = tuple(
            (device, layout, count - taken.get(n, 0))
            for n, (device, layout, count) in enumerate(groups)
            if count > taken.get(n, 0)
        )
        for further, left in _fills(rest, others):
            yield (*chosen, *further), left


def _counts(groups: Sequence[tuple[str, Layout, int]], num_ranks: int) -> Iterator[tuple[int, ...]]:
    """Yield how many replicas of each group run on so many ranks, most of the largest first."""
    if not groups:
        yield ()
        return
    (_, layout, count), others = groups[0], groups[1:]
    for taken in range(min(count, num_ranks // layout.num_ranks), -1, -1):
        for rest in _counts(others, num_ranks - taken * layout.num_ranks):
            yield (taken, *rest)


def _can_be_placed(written: Groups, pools: tuple[SplitPool, ...]) -> bool:
    kinds = [ReplicaKind(layout, device, 0.0, 0.0, 0.0, 1) for device, layout, count in written for _ in range(count)]
    return place(kinds, [pool.as_pool() for pool in pools]) is not None
