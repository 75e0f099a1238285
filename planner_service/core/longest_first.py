"""Items to replicas, longest first: the assignment that everything else starts from.

Unrelated-machines makespan: replicas of unlike kinds take unlike times for the same item. Inside a kind only the
replica that would end first matters, so a choice costs one comparison for each kind, not for each replica.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner_service.core.cost import least_replica_ms
from planner_service.core.items import Workload
from planner_service.core.pack import Packing
from planner_service.core.problem import ReplicaKind, Strategy


@dataclass(frozen=True)
class Dispatched:
    """An assignment with every replica packed.

    Attributes
    ----------
    kinds
        Kind of each replica. Length J.
    packings
        Micro-batches of each replica, as items. Length J.
    """

    kinds: tuple[ReplicaKind, ...]
    packings: tuple[Packing, ...]

    @property
    def makespan_ms(self) -> float:
        """Closed-form makespan of the slowest replica."""
        return max((packing.makespan_ms for packing in self.packings), default=0.0)


def _charge(kind: ReplicaKind, work_ms: float, num_tokens: int, largest_ms: float) -> float:
    """Makespan estimate that grows smoothly with the tokens, to compare replicas before they are packed."""
    smooth = kind.c * max(0.0, num_tokens / kind.max_tokens - -(-num_tokens // kind.max_tokens))
    if kind.pp == 1:
        return work_ms + kind.c * max(1.0, num_tokens / kind.max_tokens)
    return least_replica_ms(kind, work_ms, num_tokens, largest_ms) + smooth


Preference = Callable[[int], Sequence[int]]
"""Groups of the strategy that an item may go to, as indices."""


def longest_first(strategy: Strategy, work: Workload, allowed: Preference | None = None) -> list[list[int]]:
    """Give each item, longest first, to the replica that would end first.

    Parameters
    ----------
    strategy
        Replicas; every item fits at least one of them.
    work
        Items and their costs.
    allowed
        Restricts the kinds that an item may go to, for instance by a linear program's solution; where no allowed
        kind holds the item, all are considered.

    Returns
    -------
    list[list[int]]
        Items of each replica, in the order of ``strategy.replicas``.
    """
    assigned: list[list[int]] = [[] for _ in range(strategy.num_replicas)]
    loads: list[tuple[float, int, float]] = [(0.0, 0, 0.0)] * strategy.num_replicas
    heaps: list[list[tuple[float, int]]] = []
    first = 0
    for _, num_replicas in strategy.groups:
        heaps.append([(0.0, replica) for replica in range(first, first + num_replicas)])
        first += num_replicas
    kinds = [kind for kind, _ in strategy.groups]
    costs = [work.costs_ms[kind] for kind in kinds]
    everywhere = range(len(kinds))
    for item in range(len(work.items)):
        tokens, longest = work.items.tokens[item], work.items.longest[item]
        groups: Sequence[int] = everywhere if allowed is None else allowed(item)
        groups = [g for g in groups if max(tokens, longest) <= kinds[g].max_tokens]
        if not groups:
            groups = [g for g in everywhere if tokens <= kinds[g].max_tokens]
        best_end, best_group = float("inf"), -1
        for group in groups:
            load, used, largest = loads[heaps[group][0][1]]
            cost = costs[group][item]
            end = _charge(kinds[group], load + cost, used + tokens, max(largest, cost))
            if end < best_end:
                best_end, best_group = end, group
        replica = heaps[best_group][0][1]
        load, used, largest = loads[replica]
        cost = costs[best_group][item]
        loads[replica] = (load + cost, used + tokens, max(largest, cost))
        assigned[replica].append(item)
        heapq.heapreplace(heaps[best_group], (best_end, replica))
    return assigned
