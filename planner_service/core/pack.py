"""Phase 2: a replica's items into micro-batches, with strict caps.

The makespan of v micro-batches is ``S + c v + (pp - 1) max t``: without a pipeline the fewest micro-batches are best
(bin packing); with one, more and evener micro-batches shorten the bubble, so v is searched.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from planner_service.core.cost import replica_ms
from planner_service.core.problem import ReplicaKind

MAX_COUNTS_TRIED = 12
"""Most numbers of micro-batches tried for one replica."""

MANY_ITEMS = 512
"""Above this many items of one replica only the two likeliest numbers of micro-batches are tried."""

MAX_FULL_PASSED = 64
"""Full micro-batches passed over for one item before a balanced division of that many counts as not to be had."""


@dataclass(frozen=True, slots=True)
class Packing:
    """Micro-batches of one replica as tuples of items, their times and the replica's makespan, in ms."""

    micro_batches: tuple[tuple[int, ...], ...]
    times_ms: tuple[float, ...]
    makespan_ms: float


EMPTY = Packing((), (), 0.0)


def packing_of(kind: ReplicaKind, costs_ms: Sequence[float], micro_batches: Sequence[Sequence[int]]) -> Packing:
    """Time a division into micro-batches."""
    times = tuple(kind.c + math.fsum(costs_ms[item] for item in items) for items in micro_batches)
    return Packing(tuple(tuple(items) for items in micro_batches), times, replica_ms(kind.pp, times))


def fewest_micro_batches(items: Sequence[int], tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Pack by first-fit decreasing, or best-fit decreasing where that needs fewer.

    A first fit is found through a tournament tree over the rooms left, so that many micro-batches stay cheap.
    """
    descending = sorted(items, key=lambda item: -tokens[item])
    fewest = -(-sum(tokens[item] for item in items) // max_tokens)
    first = first_fit(descending, tokens, max_tokens)
    if len(first) <= max(fewest, 1) or len(descending) > MANY_ITEMS:
        return first
    best = _best_fit(descending, tokens, max_tokens)
    filled = _fullest_fit(descending, tokens, max_tokens)
    return min(first, best, filled, key=len)


def first_fit(items: Sequence[int], tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Put each item, in the order given, into the first micro-batch with room (tokens)."""
    size = 1
    while size < len(items):
        size *= 2
    room = [max_tokens] * (2 * size)  # room[1] is the most room anywhere; leaf j belongs to micro-batch j
    bins: list[list[int]] = []
    for item in items:
        need = tokens[item]
        node = 1
        while node < size:
            node *= 2
            if room[node] < need:
                node += 1
        index = node - size
        while len(bins) <= index:
            bins.append([])
        bins[index].append(item)
        room[node] -= need
        node //= 2
        while node:
            room[node] = max(room[2 * node], room[2 * node + 1])
            node //= 2
    return bins


def _best_fit(descending: Sequence[int], tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item in descending:
        need = tokens[item]
        fitting = [(room, index) for index, room in enumerate(rooms) if room >= need]
        if fitting:
            _, index = min(fitting)
            bins[index].append(item)
            rooms[index] -= need
        else:
            bins.append([item])
            rooms.append(max_tokens - need)
    return bins


def _fullest_fit(descending: Sequence[int], tokens: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Fill one micro-batch after another as full as a subset of what is left allows, largest item first.

    Reachable sums are the set bits of an integer, coarsened to about 2000 steps; sums are rounded up, so caps hold.
    """
    step = max(1, max_tokens // 2000)
    left = list(descending)
    bins: list[list[int]] = []
    while left:
        largest = left.pop(0)
        room = (max_tokens - tokens[largest]) // step
        mask = (1 << (room + 1)) - 1
        reachable = [1]
        for item in left:
            reachable.append((reachable[-1] | (reachable[-1] << -(-tokens[item] // step))) & mask)
        total = reachable[-1].bit_length() - 1
        chosen = [largest]
        for position in range(len(left) - 1, -1, -1):
            if not reachable[position] >> total & 1:
                total -= -(-tokens[left[position]] // step)
                chosen.append(left.pop(position))
        bins.append(chosen)
    return bins


def balanced(
    descending: Sequence[int], costs_ms: Sequence[float], tokens: Sequence[int], max_tokens: int, count: int
) -> list[list[int]] | None:
    """Costliest item first into the least loaded micro-batch with room; None if some item finds no room."""
    heap = [(0.0, 0, index) for index in range(count)]
    bins: list[list[int]] = [[] for _ in range(count)]
    for item in descending:
        need = tokens[item]
        full: list[tuple[float, int, int]] = []
        while heap and heap[0][1] + need > max_tokens and len(full) <= MAX_FULL_PASSED:
            full.append(heapq.heappop(heap))
        if not heap or len(full) > MAX_FULL_PASSED:
            return None
        time, used, index = heapq.heappop(heap)
        bins[index].append(item)
        heapq.heappush(heap, (time + costs_ms[item], used + need, index))
        for entry in full:
            heapq.heappush(heap, entry)
    return bins


def even_out(
    bins: list[list[int]], costs_ms: Sequence[float], tokens: Sequence[int], max_tokens: int, most_steps: int = 60
) -> None:
    """Lower the costliest micro-batch by moving or swapping one item with another micro-batch, in place."""
    times = [math.fsum(costs_ms[item] for item in items) for items in bins]
    used = [sum(tokens[item] for item in items) for items in bins]
    for _ in range(most_steps):
        worst = max(range(len(bins)), key=times.__getitem__)
        step = _best_exchange(worst, bins, times, used, costs_ms, tokens, max_tokens)
        if step is None:
            return
        other, given, taken = step
        bins[worst].remove(given)
        bins[other].append(given)
        gain, moved = costs_ms[given], tokens[given]
        if taken is not None:
            bins[other].remove(taken)
            bins[worst].append(taken)
            gain, moved = gain - costs_ms[taken], moved - tokens[taken]
        times[worst] -= gain
        times[other] += gain
        used[worst] -= moved
        used[other] += moved


def _best_exchange(  # noqa: PLR0913, PLR0917 - one step of `even_out`, on its local state
    worst: int,
    bins: list[list[int]],
    times: list[float],
    used: list[int],
    costs_ms: Sequence[float],
    tokens: Sequence[int],
    max_tokens: int,
) -> tuple[int, int, int | None] | None:
    """Find the exchange after which the larger of the two micro-batches is least: (other, given, taken or None)."""
    best_peak = times[worst] * (1 - 1e-12)
    best: tuple[int, int, int | None] | None = None
    for other, items in enumerate(bins):
        if other == worst:
            continue
        for given in bins[worst]:
            for taken in (None, *items):
                gain = costs_ms[given] - (0.0 if taken is None else costs_ms[taken])
                if gain <= 0:
                    continue
                peak = max(times[worst] - gain, times[other] + gain)
                if peak >= best_peak:
                    continue
                moved = tokens[given] - (0 if taken is None else tokens[taken])
                if used[other] + moved <= max_tokens and used[worst] - moved <= max_tokens:
                    best_peak, best = peak, (other, given, taken)
    return best


def _counts_to_try(kind: ReplicaKind, work_ms: float, largest_ms: float, fewest: int, most: int) -> list[int]:
    """Numbers of micro-batches by ascending optimistic makespan."""

    def optimistic(count: int) -> float:
        return kind.c * (count + kind.pp - 1) + (kind.pp - 1) * max(work_ms / count, largest_ms)

    peak = math.sqrt((kind.pp - 1) * work_ms / kind.c) if kind.c > 0 else float(most)
    useful = math.ceil(work_ms / largest_ms) if largest_ms > 0 else fewest
    centre = max(fewest, min(most, round(peak), useful))
    span = range(max(fewest, centre - MAX_COUNTS_TRIED), min(most, centre + MAX_COUNTS_TRIED) + 1)
    return sorted(span, key=lambda count: (optimistic(count), count))[:MAX_COUNTS_TRIED]


def pack(kind: ReplicaKind, items: Sequence[int], costs_ms: Sequence[float], tokens: Sequence[int]) -> Packing:
    """Pack a replica's items into the number of micro-batches with the least makespan found.

    Parameters
    ----------
    kind
        Replica kind; every item fits its limit.
    items
        The replica's items.
    costs_ms, tokens
        Cost on this kind and occupied tokens of every item of the batch.
    """
    if not items:
        return EMPTY
    tightest = fewest_micro_batches(items, tokens, kind.max_tokens)
    best = packing_of(kind, costs_ms, tightest)
    if kind.pp == 1:
        return best
    work = math.fsum(costs_ms[item] for item in items)
    largest = max(costs_ms[item] for item in items)
    fewest = max(1, -(-sum(tokens[item] for item in items) // kind.max_tokens))
    descending = sorted(items, key=lambda item: -costs_ms[item])
    even_steps = 60 if len(items) <= 96 else 0
    counts = _counts_to_try(kind, work, largest, fewest, len(items))[: 2 if len(items) > MANY_ITEMS else None]
    if len(tightest) not in counts:
        counts.append(len(tightest))
    for count in counts:
        floor = work + kind.c * (count + kind.pp - 1) + (kind.pp - 1) * max(work / count, largest)
        if floor >= best.makespan_ms:
            continue
        bins = balanced(descending, costs_ms, tokens, kind.max_tokens, count)
        if bins is None:
            if count != len(tightest):
                continue
            bins = tightest
        if even_steps:
            even_out(bins, costs_ms, tokens, kind.max_tokens, even_steps)
        packing = packing_of(kind, costs_ms, [items for items in bins if items])
        if packing.makespan_ms < best.makespan_ms:
            best = packing
    return best
