"""How a fallback fills one replica's micro-batches: pure, greedy, deterministic."""

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from typing import NamedTuple

from planner_client.errors import FallbackImpossible
from planner_client.rates import Rates

MOST_TRIED = 8
"""Least busy micro-batches that are looked at for room before the emptiest one is searched for."""


class Item(NamedTuple):
    """One sequence, or one atomic group, which is never divided.

    Attributes
    ----------
    tokens
        What it takes of a micro-batch by itself, padding included.
    longest
        Its longest sequence, padding included (tokens).
    source
        Who holds it.
    lengths
        Its sequences' own lengths, ascending (tokens).
    charged
        Their lengths with alignment, in the same order.
    """

    tokens: int
    longest: int
    source: str
    lengths: tuple[int, ...]
    charged: tuple[int, ...]


Bin = list[Item]
"""What one micro-batch holds."""


class Stages(NamedTuple):
    """The replica that items are packed for.

    Attributes
    ----------
    pp
        Pipeline stages.
    max_tokens
        Most tokens of a micro-batch.
    rates
        Cost of micro-batches.
    is_padded
        Whether each sequence is charged as the longest of its micro-batch.
    """

    pp: int
    max_tokens: int
    rates: Rates
    is_padded: bool

    def item_ms(self, item: Item) -> float:
        """Return the cost of an item by itself, without the fixed one of its micro-batch."""
        if len(item.charged) == 1:
            return self.rates.sequence_ms(item.longest)
        if self.is_padded:
            return len(item.charged) * self.rates.sequence_ms(item.longest)
        return math.fsum(self.rates.sequence_ms(length) for length in item.charged)

    def micro_batch_ms(self, held: Bin) -> float:
        """Return the predicted time of one micro-batch."""
        if self.is_padded:
            longest = max(item.longest for item in held)
            return self.rates.c_ms + sum(len(item.charged) for item in held) * self.rates.sequence_ms(longest)
        return self.rates.c_ms + math.fsum(self.item_ms(item) for item in held)

    def makespan_ms(self, times_ms: Sequence[float]) -> float:
        """Return the time of a replica by the closed form: all micro-batches, and the longest once a further stage."""
        return math.fsum(times_ms) + (self.pp - 1) * max(times_ms, default=0.0)

    def estimate_ms(self, work_ms: float, num_tokens: float, largest_ms: float) -> float:
        """Estimate the makespan of a replica before it is packed.

        With v micro-batches of which the longest takes as long as the average, or as the costliest item:
        ``work + c (v + pp - 1) + (pp - 1) max(work / v, largest)``, at the better of the v that tokens ask for
        and the v at which the derivative vanishes.
        """
        fewest = max(1.0, num_tokens / self.max_tokens)
        if self.pp == 1:
            return work_ms + self.rates.c_ms * fewest
        useful = self._count(work_ms, largest_ms, fewest)
        return min(self._with_count_ms(fewest, work_ms, largest_ms), self._with_count_ms(useful, work_ms, largest_ms))

    def count_for(self, items: Sequence[Item]) -> int:
        """Return the number of micro-batches at which the estimate for these items is least."""
        work_ms = math.fsum(self.item_ms(item) for item in items)
        largest_ms = max(self.item_ms(item) for item in items)
        fewest = max(1, -(-sum(item.tokens for item in items) // self.max_tokens))
        if self.pp == 1:
            return fewest
        count = int(self._count(work_ms, largest_ms, float(fewest)))
        best = min((count, count + 1, fewest), key=lambda v: (self._with_count_ms(v, work_ms, largest_ms), v))
        return min(best, len(items))

    def _with_count_ms(self, v: float, work_ms: float, largest_ms: float) -> float:
        return work_ms + self.rates.c_ms * (v + self.pp - 1) + (self.pp - 1) * max(work_ms / v, largest_ms)

    def _count(self, work_ms: float, largest_ms: float, fewest: float) -> float:
        useful = work_ms / largest_ms if largest_ms > 0 else 1.0
        if self.rates.c_ms > 0:
            useful = min(useful, math.sqrt((self.pp - 1) * work_ms / self.rates.c_ms))
        return max(fewest, useful)


def pack(items: Sequence[Item], stages: Stages) -> list[Bin]:
    """Divide a replica's items into micro-batches within its limit.

    Parameters
    ----------
    items
        Largest first; each fits the replica by itself.
    stages
        The replica.
    """
    if not items:
        return []
    if stages.is_padded:
        return _runs(items, stages.max_tokens)
    tight = _tight(items, stages.max_tokens)
    if stages.pp == 1:
        return tight
    balanced = _balanced(items, stages, stages.count_for(items))
    return min((balanced, tight), key=lambda bins: stages.makespan_ms([stages.micro_batch_ms(held) for held in bins]))


def split_to(bins: list[Bin], count: int, stages: Stages, whose: str) -> list[Bin]:
    """Divide micro-batches until there are ``count``; each part of one fits where the whole did.

    Raises
    ------
    FallbackImpossible
        If there are more already, or fewer items than that.
    """
    num_items = sum(len(held) for held in bins)
    if len(bins) > count or num_items < count:
        raise FallbackImpossible(
            f"{whose} would have to run {count} micro-batches but has {num_items} sequences or groups for them in "
            f"{len(bins)}; without the planner this constraint on numbers of micro-batches cannot be kept"
        )
    order = [(-stages.micro_batch_ms(held), number) for number, held in enumerate(bins) if len(held) > 1]
    heapq.heapify(order)
    divided = [list(held) for held in bins]
    while len(divided) < count:
        _, number = heapq.heappop(order)
        held = divided[number]
        divided[number] = held[::2]
        divided.append(held[1::2])
        for part in (number, len(divided) - 1):
            if len(divided[part]) > 1:
                heapq.heappush(order, (-stages.micro_batch_ms(divided[part]), part))
    return divided


def _runs(items: Sequence[Item], max_tokens: int) -> list[Bin]:
    """Fill micro-batches with consecutive items by falling longest sequence, which all of one are charged at."""
    bins: list[Bin] = []
    longest, num_held = 0, 0
    for item in sorted(items, key=lambda item: (-item.longest, item)):
        num_held += len(item.charged)
        if not bins or longest * num_held > max_tokens:
            bins.append([])
            longest, num_held = item.longest, len(item.charged)
        bins[-1].append(item)
    return bins


def _tight(items: Sequence[Item], max_tokens: int) -> list[Bin]:
    """Put each item where it leaves least room: few micro-batches."""
    bins: list[Bin] = []
    rooms: list[tuple[int, int]] = []
    for item in items:
        at = bisect_left(rooms, (item.tokens, -1))
        if at < len(rooms):
            room, number = rooms.pop(at)
            bins[number].append(item)
        else:
            room, number = max_tokens, len(bins)
            bins.append([item])
        insort(rooms, (room - item.tokens, number))
    return bins


class _Open:
    """Micro-batches that are being filled, by how busy they are and by how much room they have."""

    def __init__(self, count: int, max_tokens: int) -> None:
        self.bins: list[Bin] = []
        self._max_tokens = max_tokens
        self._work_ms: list[float] = []
        self._rooms: list[int] = []
        self._by_work: list[tuple[float, int]] = []
        self._by_room: list[tuple[int, int]] = []
        for _ in range(count):
            self._add()

    def put(self, item: Item, item_ms: float) -> None:
        """Put an item into the least busy one with room; if the least busy are full into the emptiest, or a new one."""
        number = self._least_busy(item.tokens)
        if number is None:
            room, number = self._by_room[-1] if self._by_room else (0, 0)
            if room < item.tokens:
                number = self._add()
        room = self._rooms[number]
        self._rooms[number] = room - item.tokens
        del self._by_room[bisect_left(self._by_room, (room, number))]
        insort(self._by_room, (room - item.tokens, number))
        self.bins[number].append(item)
        self._work_ms[number] += item_ms
        heapq.heappush(self._by_work, (self._work_ms[number], number))

    def _add(self) -> int:
        number = len(self.bins)
        self.bins.append([])
        self._work_ms.append(0.0)
        self._rooms.append(self._max_tokens)
        heapq.heappush(self._by_work, (0.0, number))
        insort(self._by_room, (self._max_tokens, number))
        return number

    def _least_busy(self, num_tokens: int) -> int | None:
        full: list[tuple[float, int]] = []
        found: int | None = None
        while self._by_work and len(full) < MOST_TRIED and found is None:
            work_ms, number = heapq.heappop(self._by_work)
            if work_ms != self._work_ms[number]:
                continue  # an entry of before the micro-batch last grew
            if self._rooms[number] >= num_tokens:
                found = number
            else:
                full.append((work_ms, number))
        for entry in full:
            heapq.heappush(self._by_work, entry)
        return found


def _balanced(items: Sequence[Item], stages: Stages, count: int) -> list[Bin]:
    """Put each item into the least busy of ``count`` micro-batches with room; into a further one if there is none."""
    opened = _Open(count, stages.max_tokens)
    for item in items:
        opened.put(item, stages.item_ms(item))
    return [held for held in opened.bins if held]
