"""Phase 1 under rules: an assignment in which every replica can be packed as the rules want it.

Longest first again, charged by the permitted numbers of micro-batches; then items change hands until every replica has
enough of them for the micro-batches it must run, and few enough for their limits. Where that fails, the items go one
by one into the micro-batches themselves, best fit first.
"""

import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner_service.core.fill import fill
from planner_service.core.items import Workload
from planner_service.core.longest_first import Dispatched
from planner_service.core.pack import EMPTY
from planner_service.core.pack_rules import fewest_by_rules, is_packable, pack_by_rules, unpackable
from planner_service.core.problem import ReplicaKind, Strategy

MAX_COMMON_COUNTS = 6
"""Most numbers of micro-batches that are tried where all replicas run the same."""

MAX_BUSY_CHOICES = 5
MAX_PARTNERS = 16
MAX_DISTINCT = 8

MAX_SUBSETS = 24
"""Up to this many sets of busy replicas all are tried."""

Held = list[list[int]]
"""Items of each replica."""


def pack_all_by_rules(strategy: Strategy, work: Workload, assigned: Sequence[Sequence[int]]) -> Dispatched:
    """Pack every replica's items; those that cannot be packed by the rules come out as infinitely slow."""
    kinds = strategy.replicas
    if not len(work.items):
        return Dispatched(kinds, (EMPTY,) * len(kinds))
    choices = _common_counts(strategy, work) or [work.rules.common(strategy)] if work.rules.equal_counts else [None]
    tried = [_packed(kinds, work, assigned, exactly) for exactly in choices]
    return min(tried, key=lambda found: (sum(not is_packable(p) for p in found.packings), found.makespan_ms))


def _packed(
    kinds: Sequence[ReplicaKind], work: Workload, assigned: Sequence[Sequence[int]], exactly: int | None
) -> Dispatched:
    packings = tuple(
        pack_by_rules(kind, sorted(items), work, exactly) or unpackable(items)
        for kind, items in zip(kinds, assigned, strict=True)
    )
    return Dispatched(tuple(kinds), packings)


def first_by_rules(strategy: Strategy, work: Workload) -> Dispatched | None:
    """Assign and pack under the workload's rules; None if no way to keep them was found."""
    kinds, rules = strategy.replicas, work.rules
    if not len(work.items):
        return Dispatched(kinds, (EMPTY,) * len(kinds)) if rules.idle_allowed else None
    if work.items.most_tokens > strategy.max_tokens:
        return None
    tasks = [
        _Task(kinds, work, busy, exactly)
        for busy in _busy_choices(strategy, work)
        for exactly in (_common_counts(strategy, work) if rules.equal_counts else (None,))
    ]
    best: Dispatched | None = None
    for task in tasks:
        if best is None or task.least_ms() < best.makespan_ms:
            found = task.balanced()
            if found is not None and (best is None or found.makespan_ms < best.makespan_ms):
                best = found
    if best is None:
        filled = [found for task in tasks if (found := task.filled()) is not None]
        best = min(filled, key=lambda found: found.makespan_ms, default=None)
    return best


def _common_counts(strategy: Strategy, work: Workload) -> list[int]:
    """Numbers of micro-batches worth trying in all replicas alike, by ascending bound (`_least_ms`)."""
    rules, kinds = work.rules, strategy.replicas
    room = sum(kind.max_tokens for kind in kinds)
    fewest = rules.common(strategy, -(-sum(work.items.tokens) // room))
    most = len(work.items) // len(kinds)
    step = rules.count_multiple
    permitted = [rules.common(strategy, count) for count in range(fewest, min(most, fewest + 64 * step) + 1, step)]
    permitted = [count for count in dict.fromkeys(permitted) if count <= most]
    likeliest = sorted(permitted, key=lambda count: (_least_ms(kinds, work, count), count))[:MAX_COMMON_COUNTS]
    return likeliest + [count for count in permitted[:2] if count not in likeliest]


def _least_ms(kinds: Sequence[ReplicaKind], work: Workload, count: int) -> float:
    """Bound the makespan where each of these replicas runs so many micro-batches.

    Replica j does the share x_j of the work in at least ``x_j W_j (V + pp_j - 1) / V + c_j (V + pp_j - 1)``, since the
    largest micro-batch is no less than the average; all end at once at the earliest, and not before the longest item.
    """
    totals = {kind: max(math.fsum(work.costs_ms[kind]), 1e-9) for kind in set(kinds)}
    fixed = sum(kind.c * count / totals[kind] for kind in kinds)
    speed = sum(count / ((count + kind.pp - 1) * totals[kind]) for kind in kinds)
    alone = min(
        (
            kind.pp * work.costs_ms[kind][0] + kind.c * (count + kind.pp - 1)
            for kind in totals
            if kind.max_tokens >= work.items.tokens[0]
        ),
        default=math.inf,
    )
    return max((1 + fixed) / speed, alone)


def _busy_choices(strategy: Strategy, work: Workload) -> Iterator[list[int]]:
    """Yield sets of replicas that may be busy: all of them, or where that may not be the likeliest others."""
    kinds, num_items, rules = strategy.replicas, len(work.items), work.rules
    everyone = list(range(len(kinds)))
    needed = [rules.permitted(kind.pp) for kind in kinds]
    if not rules.may_idle or (sum(needed) <= num_items and max(needed) == 1):
        yield everyone
        return
    fitting = [
        busy
        for busy in (_all_subsets(strategy) or _likely_subsets(strategy, work, needed))
        if sum(needed[j] for j in busy) <= num_items
        and any(kinds[j].max_tokens >= work.items.most_tokens for j in busy)
    ]
    yield from (list(busy) for busy in dict.fromkeys(fitting))


def _all_subsets(strategy: Strategy) -> list[tuple[int, ...]]:
    """List every choice of how many replicas of each kind are busy, most first; nothing if they are too many."""
    if math.prod(num + 1 for _, num in strategy.groups) > MAX_SUBSETS:
        return []
    first = [0]
    for _, num in strategy.groups:
        first.append(first[-1] + num)
    choices = itertools.product(*(range(num, -1, -1) for _, num in strategy.groups))
    return [
        tuple(j for begin, num in zip(first, choice, strict=False) for j in range(begin, begin + num))
        for choice in choices
        if any(choice)
    ]


def _likely_subsets(strategy: Strategy, work: Workload, needed: Sequence[int]) -> list[tuple[int, ...]]:
    """Take replicas while items suffice, those that ask for fewest or are fastest first, then some fewer of them."""
    kinds = strategy.replicas
    speed = [math.fsum(work.costs_ms[kind]) for kind in kinds]
    everyone = range(len(kinds))
    holding = [j for j in everyone if kinds[j].max_tokens >= work.items.most_tokens]
    subsets: list[tuple[int, ...]] = []
    for order in (
        sorted(everyone, key=lambda j: (needed[j], speed[j], j)),
        sorted(everyone, key=lambda j: (speed[j], needed[j], j)),
    ):
        chosen: list[int] = []
        left = len(work.items)
        for j in [*sorted(holding, key=lambda j: needed[j])[:1], *order]:
            if j not in chosen and needed[j] <= left:
                chosen.append(j)
                left -= needed[j]
        sizes = [len(chosen) - less for less in range(min(len(chosen), MAX_BUSY_CHOICES))]
        subsets += [tuple(sorted(chosen[:size])) for size in (*sizes, 1)]
    return subsets


@dataclass(frozen=True)
class _Task:
    """One way to keep the rules: which replicas are busy, and with how many micro-batches where that is prescribed."""

    kinds: tuple[ReplicaKind, ...]
    work: Workload
    busy: Sequence[int]
    exactly: int | None

    def least_ms(self) -> float:
        """Bound on what this can come to; 0 if nothing is known."""
        return 0.0 if self.exactly is None else _least_ms(self.kinds, self.work, self.exactly)

    def balanced(self) -> Dispatched | None:
        """Assign longest first and mend what cannot be packed."""
        held = self._longest_first()
        if held is None or not self._mend(held):
            return None
        dispatched = _packed(self.kinds, self.work, held, self.exactly)
        return dispatched if all(map(is_packable, dispatched.packings)) else None

    def _charge(self, kind: ReplicaKind, load_ms: float, num_tokens: int, largest_ms: float) -> float:
        count: float
        if self.exactly is not None:
            count = self.exactly
        elif kind.pp == 1:
            count = max(self.work.rules.permitted(1), num_tokens / kind.max_tokens)
        else:
            useful = load_ms / largest_ms if largest_ms > 0 else 1.0
            best = math.sqrt((kind.pp - 1) * load_ms / kind.c) if kind.c > 0 else useful
            least = max(-(-num_tokens // kind.max_tokens), int(min(best, useful)))
            count = self.work.rules.permitted(kind.pp, least)
        return load_ms + kind.c * (count + kind.pp - 1) + (kind.pp - 1) * max(load_ms / count, largest_ms)

    def _longest_first(self) -> Held | None:
        """Give each item to the busy replica that would end first, among those with room for it."""
        tokens = self.work.items.tokens
        heaps: dict[ReplicaKind, list[tuple[float, int]]] = {}
        for j in self.busy:
            heaps.setdefault(self.kinds[j], []).append((0.0, j))
        loads = [(0.0, 0, 0.0)] * len(self.kinds)
        held: Held = [[] for _ in self.kinds]
        for item in range(len(self.work.items)):
            best: tuple[float, ReplicaKind, int] | None = None
            for kind, heap in heaps.items():
                place = self._first_with_room(kind, heap, loads, tokens[item])
                if place is None:
                    continue
                load, used, largest = loads[heap[place][1]]
                cost = self.work.costs_ms[kind][item]
                end = self._charge(kind, load + cost, used + tokens[item], max(largest, cost))
                if best is None or end < best[0]:
                    best = end, kind, place
            if best is None:
                return None
            end, kind, place = best
            j = heaps[kind][place][1]
            load, used, largest = loads[j]
            cost = self.work.costs_ms[kind][item]
            loads[j] = load + cost, used + tokens[item], max(largest, cost)
            held[j].append(item)
            heaps[kind][place] = (end, j)
            heapq.heapify(heaps[kind]) if place else heapq.heapreplace(heaps[kind], (end, j))
        return held

    def _first_with_room(
        self, kind: ReplicaKind, heap: list[tuple[float, int]], loads: Sequence[tuple[float, int, float]], need: int
    ) -> int | None:
        """Find the place in the heap of the least loaded replica whose micro-batches together have room."""
        if need > kind.max_tokens:
            return None
        if self.exactly is None:
            return 0
        room = kind.max_tokens * self.exactly - need
        if loads[heap[0][1]][1] <= room:
            return 0
        return min(
            (place for place, (_, j) in enumerate(heap) if loads[j][1] <= room), key=lambda p: heap[p], default=None
        )

    def _excess(self, j: int, items: Sequence[int]) -> int:
        """Micro-batches too many for the limits or items too few for the micro-batches; 0 if it can be packed."""
        rules, kind = self.work.rules, self.kinds[j]
        if not items:
            return 0 if rules.may_idle else self.exactly or rules.permitted(kind.pp)
        fewest = fewest_by_rules(kind, items, self.work)
        if self.exactly is not None:
            return max(fewest - self.exactly, 0) + max(self.exactly - len(items), 0)
        return max(rules.permitted(kind.pp, fewest) - len(items), 0)

    def _mend(self, held: Held) -> bool:
        """Move and swap items until every replica can be packed, in place; False if that did not come about."""
        excess = {j: self._excess(j, held[j]) for j in self.busy}
        while any(excess.values()):
            worst = max(self.busy, key=lambda j: (excess[j], -j))
            change = self._best_change(held, excess, worst)
            if change is None:
                return False
            other, given, taken = change
            held[worst] = [item for item in held[worst] if item != given] + [i for i in (taken,) if i is not None]
            held[other] = [item for item in held[other] if item != taken] + [i for i in (given,) if i is not None]
            excess[worst], excess[other] = self._excess(worst, held[worst]), self._excess(other, held[other])
        return True

    def _best_change(self, held: Held, excess: dict[int, int], worst: int) -> tuple[int, int | None, int | None] | None:
        """Find a move, or else a swap, that lowers the excess of two replicas: (other, given, taken).

        The first partner that helps is taken, and of what helps with it what leaves the two most even.
        """
        lacking = len(held[worst]) < (self.exactly or self.work.rules.permitted(self.kinds[worst].pp))
        partners = self._partners(held, worst, lacking=lacking)
        for changes in (self._takes, self._gives, self._swaps) if lacking else (self._gives, self._takes, self._swaps):
            for other in partners:
                before = excess[worst] + excess[other]
                ranked: list[tuple[float, int, tuple[int, int | None, int | None]]] = []
                for given, taken in changes(held, worst, other):
                    mine = [item for item in held[worst] if item != given] + [i for i in (taken,) if i is not None]
                    theirs = [item for item in held[other] if item != taken] + [i for i in (given,) if i is not None]
                    after = self._excess(worst, mine) + self._excess(other, theirs)
                    if after < before:
                        load = max(self._load(worst, mine), self._load(other, theirs))
                        ranked.append((load, after, (other, given, taken)))
                if ranked:
                    return min(ranked, key=lambda entry: entry[:2])[2]
        return None

    def _takes(self, held: Held, worst: int, other: int) -> Iterator[tuple[int | None, int | None]]:
        room = self.kinds[worst].max_tokens
        return ((None, item) for item in self._distinct(held[other]) if self.work.items.tokens[item] <= room)

    def _gives(self, held: Held, worst: int, other: int) -> Iterator[tuple[int | None, int | None]]:
        room = self.kinds[other].max_tokens
        return ((item, None) for item in self._distinct(held[worst]) if self.work.items.tokens[item] <= room)

    def _swaps(self, held: Held, worst: int, other: int) -> Iterator[tuple[int | None, int | None]]:
        tokens = self.work.items.tokens
        for given in self._distinct(held[worst]):
            for taken in self._distinct(held[other]):
                fits = tokens[given] <= self.kinds[other].max_tokens and tokens[taken] <= self.kinds[worst].max_tokens
                if fits and tokens[given] != tokens[taken]:
                    yield given, taken

    def _partners(self, held: Held, worst: int, *, lacking: bool) -> list[int]:
        """Order the other busy replicas: those to take from, if items are lacking, else those to give to, first."""
        others = sorted((j for j in self.busy if j != worst), key=lambda j: (self._load(j, held[j]), j))
        if lacking:
            others.reverse()
        if len(others) <= MAX_PARTNERS:
            return others
        return others[: MAX_PARTNERS // 2] + others[-MAX_PARTNERS // 2 :]

    def _load(self, j: int, items: Sequence[int]) -> float:
        if not items:
            return 0.0
        kind = self.kinds[j]
        costs = [self.work.costs_ms[kind][item] for item in items]
        return self._charge(kind, math.fsum(costs), sum(self.work.items.tokens[item] for item in items), max(costs))

    def _distinct(self, items: Sequence[int]) -> list[int]:
        distinct = sorted({self.work.items.tokens[item]: item for item in sorted(items)}.values())
        return distinct[:: -(-len(distinct) // MAX_DISTINCT) or 1]

    def filled(self) -> Dispatched | None:
        """Put the items into the micro-batches themselves, where balancing the replicas found no way."""
        return fill(self.kinds, self.work, self.busy, self.exactly)
