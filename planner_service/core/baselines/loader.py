"""Data loaders that do not balance: the plain one, and one that keeps the order given."""

from collections.abc import Sequence

from planner_service.core.differencing import packed_as_given
from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.pack import first_fit
from planner_service.core.problem import ReplicaKind, Strategy


def plain_loader(strategy: Strategy, items: Items) -> Dispatched:
    """Deal sequences to replicas in turn and fill micro-batches first-fit by tokens, as plain data loaders do.

    A replica that cannot hold a sequence passes it to the next.
    """
    kinds = strategy.replicas
    held: list[list[int]] = [[] for _ in kinds]
    turn = 0
    for item in range(len(items)):
        while items.tokens[item] > kinds[turn % len(kinds)].max_tokens:
            turn += 1
        held[turn % len(kinds)].append(item)
        turn += 1
    bins = [first_fit(own, items.tokens, kind.max_tokens) if own else [] for kind, own in zip(kinds, held, strict=True)]
    return packed_as_given(kinds, items, bins)


def pass_through(strategy: Strategy, items: Items) -> Dispatched:
    """Keep the order given: each replica takes a run of consecutive sequences and fills micro-batches one by one.

    Runs are as equally many sequences as possible. A new micro-batch begins where the next sequence does not fit. A
    replica that cannot hold a sequence passes it to the next that can, or if none follows to the last before it, so
    that sequences of one length stay in order over the replicas.
    """
    kinds = strategy.replicas
    held: list[list[int]] = [[] for _ in kinds]
    for item in range(len(items)):
        held[_next_that_holds(kinds, item * len(kinds) // len(items), items.tokens[item])].append(item)
    bins = [next_fit(own, items.tokens, kind.max_tokens) for kind, own in zip(kinds, held, strict=True)]
    return packed_as_given(kinds, items, bins)


def _next_that_holds(kinds: Sequence[ReplicaKind], replica: int, num_tokens: int) -> int:
    tried = [*range(replica, len(kinds)), *range(replica - 1, -1, -1)]
    found: int = next(j for j in tried if kinds[j].max_tokens >= num_tokens)
    return found


def next_fit(items: Sequence[int], tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Fill one micro-batch after another in the order given; a new one begins where the next item does not fit."""
    bins: list[list[int]] = []
    room = 0
    for item in items:
        if tokens[item] > room or not bins:
            bins.append([])
            room = max_tokens
        bins[-1].append(item)
        room -= tokens[item]
    return bins
