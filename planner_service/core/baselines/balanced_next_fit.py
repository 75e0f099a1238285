"""Data-parallel balancing by tokens with next-fit packing, as loaders do that balance once and pack simply.

Sequences go longest first to the replica with the fewest tokens that can hold them; each replica then fills one
micro-batch after another in that order.
"""

import heapq

from planner_service.core.baselines.loader import next_fit
from planner_service.core.differencing import packed_as_given
from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.problem import Strategy


def balanced_next_fit(strategy: Strategy, items: Items) -> Dispatched:
    """Balance tokens over replicas longest first, then pack next-fit."""
    kinds = strategy.replicas
    held: list[list[int]] = [[] for _ in kinds]
    heap = [(0, replica) for replica in range(len(kinds))]
    for item in sorted(range(len(items)), key=lambda item: (-items.tokens[item], item)):
        too_small = []
        while kinds[heap[0][1]].max_tokens < items.tokens[item]:
            too_small.append(heapq.heappop(heap))
        used, replica = heap[0]
        held[replica].append(item)
        heapq.heapreplace(heap, (used + items.tokens[item], replica))
        for entry in too_small:
            heapq.heappush(heap, entry)
    bins = [next_fit(own, items.tokens, kind.max_tokens) for kind, own in zip(kinds, held, strict=True)]
    return packed_as_given(kinds, items, bins)
