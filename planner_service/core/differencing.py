"""Balancing by the largest differencing method of Karmarkar and Karp (1982), with repair where caps break.

Frameworks for reinforcement learning balance replicas and then micro-batches this way, on tokens or on an estimate of
the work, ``24576 s + s^2`` for a sequence of s tokens (the constants of a 7B model, whatever runs).
"""

import heapq
from collections.abc import Callable, Sequence
from typing import Any

from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.pack import EMPTY, first_fit, packing_of
from planner_service.core.problem import ReplicaKind, Strategy

LINEAR_WORK = 24576
"""Tokens squared that a token of a dense layer is worth in the estimate of work."""

Weigh = Callable[[int], int]


def tokens_of(length: int) -> int:
    """Weigh a sequence by its tokens."""
    return length


def work_of(length: int) -> int:
    """Weigh a sequence by its estimated work."""
    return LINEAR_WORK * length + length * length


def packed_as_given(kinds: Sequence[ReplicaKind], items: Items, bins: Sequence[Sequence[Sequence[int]]]) -> Dispatched:
    """Time micro-batches that a method has filled, one list of them a replica."""
    costs_ms = {kind: items.costs_ms(kind) for kind in dict.fromkeys(kinds)}
    return Dispatched(
        tuple(kinds),
        tuple(
            packing_of(kind, costs_ms[kind], micro_batches) if micro_batches else EMPTY
            for kind, micro_batches in zip(kinds, bins, strict=True)
        ),
    )


def karmarkar_karp(weights: Sequence[int], num_parts: int) -> list[list[int]]:
    """Divide numbers into parts of about equal sums by the largest differencing method.

    The two partial divisions with the largest spread are merged, the heavy parts of one with the light parts of the
    other, until one is left.

    Parameters
    ----------
    weights
        The numbers.
    num_parts
        Parts, some of which may stay empty.

    Returns
    -------
    list[list[int]]
        Indices of each part, the heaviest part first.
    """
    if not weights:
        return [[] for _ in range(num_parts)]
    heap: list[tuple[int, int, list[_Part]]] = [
        (-weight, index, [(-weight, index, index)]) for index, weight in enumerate(weights)
    ]
    heapq.heapify(heap)
    number = len(weights)
    while len(heap) > 1:
        _, _, first = heapq.heappop(heap)
        _, _, second = heapq.heappop(heap)
        parts = _merged(first, second, num_parts)
        spread = (parts[-1][0] if len(parts) == num_parts else 0) - parts[0][0]
        heapq.heappush(heap, (-spread, number, parts))
        number += 1
    found = [sorted(_leaves(tree)) for *_, tree in heap[0][2]]
    return found + [[] for _ in range(num_parts - len(found))]


_Tree = int | tuple[Any, Any]
"""An index, or two trees: joining two parts takes no longer however much they hold."""

_Part = tuple[int, int, _Tree]
"""A part as minus its sum, its first index and its indices, so that parts sort heaviest first as they are.

A division is kept as its non-empty parts only, so that early merges of single numbers are short.
"""


def _merged(first: list[_Part], second: list[_Part], num_parts: int) -> list[_Part]:
    """Put the heaviest part of one with the lightest of the other, empty ones included, and so on."""
    overlap = max(0, len(first) + len(second) - num_parts)
    alone_first, alone_second = len(first) - overlap, len(second) - overlap
    parts = first[:alone_first] + second[:alone_second]
    lightest_first = reversed(second[alone_second:])
    parts += [
        (heavy[0] + light[0], heavy[1], (heavy[2], light[2]))
        for heavy, light in zip(first[alone_first:], lightest_first, strict=True)
    ]
    parts.sort()
    return parts


def _leaves(tree: _Tree) -> list[int]:
    found, left = [], [tree]
    while left:
        node = left.pop()
        if isinstance(node, int):
            found.append(node)
        else:
            left += node
    return found


def largest_differencing(strategy: Strategy, items: Items, weigh: Weigh) -> Dispatched:
    """Balance sequences over replicas, then each replica's over as few micro-batches as caps allow.

    Parameters
    ----------
    strategy
        Replicas; the method knows nothing of unlike ones, so that they get equal shares of the weight, and sequences
        that one cannot hold go to the lightest that can.
    items
        Single sequences.
    weigh
        Weight of a sequence by its length.
    """
    kinds = strategy.replicas
    weights = [weigh(length) for length in items.tokens]
    held = _fitting([kind.max_tokens for kind in kinds], karmarkar_karp(weights, len(kinds)), items.tokens, weights)
    bins = [
        _micro_batches(own, items.tokens, weights, kind.max_tokens) if own else []
        for kind, own in zip(kinds, held, strict=True)
    ]
    return packed_as_given(kinds, items, bins)


def _fitting(
    limits: Sequence[int], parts: list[list[int]], tokens: Sequence[int], weights: Sequence[int]
) -> list[list[int]]:
    """Give the parts with the longest sequences to the largest replicas, and move what still does not fit."""
    by_limit = sorted(range(len(limits)), key=lambda j: -limits[j])
    by_longest = sorted(parts, key=lambda part: -max((tokens[item] for item in part), default=0))
    held: list[list[int]] = [[] for _ in limits]
    for j, part in zip(by_limit, by_longest, strict=True):
        held[j] = part
    loads = [sum(weights[item] for item in own) for own in held]
    for j, own in enumerate(held):
        for item in [item for item in own if tokens[item] > limits[j]]:
            target = min((t for t in range(len(limits)) if limits[t] >= tokens[item]), key=lambda t: (loads[t], t))
            held[j] = [other for other in held[j] if other != item]
            held[target] = [*held[target], item]
            loads[j] -= weights[item]
            loads[target] += weights[item]
    return held


def _micro_batches(own: list[int], tokens: Sequence[int], weights: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Divide a replica's sequences into the fewest micro-batches that largest differencing keeps within the cap.

    Where even one more than first-fit needs breaks the cap, first-fit is what remains.
    """
    fitted = first_fit(sorted(own, key=lambda item: -tokens[item]), tokens, max_tokens)
    fewest = -(-sum(tokens[item] for item in own) // max_tokens)
    for count in range(fewest, len(fitted) + 2):
        parts = karmarkar_karp([weights[item] for item in own], count)
        bins = [[own[index] for index in part] for part in parts if part]
        if all(sum(tokens[item] for item in items) <= max_tokens for items in bins):
            return bins
    return fitted
