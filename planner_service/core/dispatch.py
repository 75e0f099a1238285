"""Phase 1: items to replicas, longest first, then improved by moving and swapping items.

Unrelated-machines makespan: replicas of unlike kinds take unlike times for the same item. Inside a kind only the
replica that would end first matters, so a choice costs one comparison for each kind, not for each replica.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner_service.core.cost import least_replica_ms
from planner_service.core.items import Workload
from planner_service.core.pack import EMPTY, Packing, pack
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


@dataclass(frozen=True)
class LongPart:
    """The longest items of a dispatched batch, with the only replicas that can hold them.

    A bound on the makespan of this part is one on the whole, since the shorter items can only add to it.

    Attributes
    ----------
    replicas
        The replicas, as indices into the whole.
    num_items
        How many items, from the longest on.
    dispatched
        Those items on those replicas; times are those of the whole.
    work
        Those items and their costs.
    """

    replicas: tuple[int, ...]
    num_items: int
    dispatched: Dispatched
    work: Workload


def long_parts(dispatched: Dispatched, work: Workload) -> Iterator[LongPart]:
    """Yield parts from the largest to the smallest: for each limit, the items over it and the replicas over it."""
    for limit in sorted({kind.max_tokens for kind in dispatched.kinds}):
        num_items = sum(longest > limit for longest in work.items.longest)
        replicas = tuple(j for j, kind in enumerate(dispatched.kinds) if kind.max_tokens > limit)
        if num_items and replicas:
            kinds = tuple(dispatched.kinds[j] for j in replicas)
            packings = tuple(
                replace(
                    dispatched.packings[j],
                    micro_batches=tuple(
                        tuple(item for item in items if item < num_items)
                        for items in dispatched.packings[j].micro_batches
                    ),
                )
                for j in replicas
            )
            part = Workload.of(work.items.longest_ones(num_items), tuple(dict.fromkeys(kinds)))
            yield LongPart(replicas, num_items, Dispatched(kinds, packings), part)


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


def pack_all(strategy: Strategy, work: Workload, assigned: Sequence[Sequence[int]]) -> Dispatched:
    """Pack every replica's items."""
    packings = tuple(
        pack(kind, items, work.costs_ms[kind], work.items.tokens) if items else EMPTY
        for kind, items in zip(strategy.replicas, assigned, strict=True)
    )
    return Dispatched(strategy.replicas, packings)


class Improver:
    """Local search on an assignment: the slowest replica gives or swaps an item, judged by packing both replicas anew.

    Parameters
    ----------
    work
        Items and their costs.
    dispatched
        Where to start.
    may_go_on
        Asked between steps; False ends the search.
    """

    MAX_PARTNERS = 12
    MAX_TRIALS = 24
    MAX_DISTINCT = 96

    def __init__(self, work: Workload, dispatched: Dispatched, may_go_on: Callable[[], bool]) -> None:
        self._work = work
        self._kinds = dispatched.kinds
        self._packings = list(dispatched.packings)
        self._held = [[item for items in packing.micro_batches for item in items] for packing in self._packings]
        self._may_go_on = may_go_on
        self._packed: dict[tuple[ReplicaKind, tuple[int, ...]], Packing] = {}

    def run(self, target_ms: float, most_steps: int) -> Dispatched:
        """Improve until the target, a local optimum, or ``most_steps`` accepted steps."""
        for _ in range(most_steps):
            worst = max(range(len(self._packings)), key=lambda replica: self._packings[replica].makespan_ms)
            if self._packings[worst].makespan_ms <= target_ms or not self._may_go_on():
                break
            if not self._relieve(worst):
                break
        return Dispatched(self._kinds, tuple(self._packings))

    def _pack(self, replica: int, items: list[int]) -> Packing:
        kind = self._kinds[replica]
        ordered = tuple(sorted(items))
        key = (kind, ordered)
        packing = self._packed.get(key)
        if packing is None:
            packing = pack(kind, ordered, self._work.costs_ms[kind], self._work.items.tokens)
            self._packed[key] = packing
        return packing

    def _estimate(self, replica: int, items: Sequence[int], gives: int | None, takes: int | None) -> float:
        kind = self._kinds[replica]
        costs, tokens = self._work.costs_ms[kind], self._work.items.tokens
        kept = [item for item in items if item != gives]
        if takes is not None:
            kept.append(takes)
        if not kept:
            return 0.0
        return least_replica_ms(
            kind,
            sum(costs[item] for item in kept),
            sum(tokens[item] for item in kept),
            max(costs[item] for item in kept),
        )

    def _relieve(self, worst: int) -> bool:
        """Find one move or swap that lowers the worst replica below its makespan, its partner staying below too."""
        peak = self._packings[worst].makespan_ms
        trials: list[tuple[float, int, int, int | None]] = []
        for other in self._partners(worst):
            trials += self._promising(worst, other, peak)
        trials.sort(key=lambda trial: trial[0])
        for _, other, given, taken in trials[: self.MAX_TRIALS]:
            if not self._may_go_on():
                return False
            mine = [item for item in self._held[worst] if item != given] + ([] if taken is None else [taken])
            theirs = [item for item in self._held[other] if item != taken] + [given]
            after_other = self._pack(other, theirs)
            if after_other.makespan_ms >= peak * (1 - 1e-9):
                continue
            after_worst = self._pack(worst, mine)
            if after_worst.makespan_ms >= peak * (1 - 1e-9):
                continue
            self._held[worst], self._held[other] = mine, theirs
            self._packings[worst], self._packings[other] = after_worst, after_other
            return True
        return False

    def _partners(self, worst: int) -> list[int]:
        """List the least loaded replicas of each kind, since not every kind holds every item."""
        by_kind: dict[ReplicaKind, list[int]] = {}
        for replica, kind in enumerate(self._kinds):
            if replica != worst:
                by_kind.setdefault(kind, []).append(replica)
        of_each = max(3, self.MAX_PARTNERS // max(1, len(by_kind)))
        return [
            replica
            for replicas in by_kind.values()
            for replica in heapq.nsmallest(of_each, replicas, key=lambda r: (self._packings[r].makespan_ms, r))
        ]

    def _promising(self, worst: int, other: int, peak: float) -> list[tuple[float, int, int, int | None]]:
        """List exchanges whose estimate stays below the peak as (estimate, other, given, taken)."""
        tokens = self._work.items.tokens
        mine, theirs = self._held[worst], self._held[other]
        own_kind, other_kind = self._kinds[worst], self._kinds[other]
        own, foreign = self._work.costs_ms[own_kind], self._work.costs_ms[other_kind]
        load_other = self._packings[other].makespan_ms
        found: list[tuple[float, int, int, int | None]] = []
        for given in self._distinct(mine):
            if tokens[given] > other_kind.max_tokens:
                continue
            for taken in (None, *self._distinct(theirs)):
                if taken is not None:
                    if tokens[taken] > own_kind.max_tokens or own[taken] >= own[given]:
                        continue
                    linear = load_other + foreign[given] - foreign[taken]
                else:
                    linear = load_other + foreign[given]
                if linear >= peak + other_kind.c:
                    continue
                rest = peak - own[given] + (0.0 if taken is None else own[taken])
                found.append((max(linear, rest), other, given, taken))
        found.sort(key=lambda trial: trial[0])
        judged: list[tuple[float, int, int, int | None]] = []
        for _, partner, given, taken in found[: self.MAX_TRIALS]:
            after = max(
                self._estimate(worst, mine, given, taken),
                self._estimate(other, theirs, taken, given),
            )
            if after < peak * (1 - 1e-9):
                judged.append((after, partner, given, taken))
        return judged

    def _distinct(self, items: Sequence[int]) -> list[int]:
        """One item of each cost, so that equal sequences are tried once; of very many an even sample."""
        seen: dict[tuple[int, int], int] = {}
        for item in items:
            seen.setdefault((self._work.items.tokens[item], self._work.items.squares[item]), item)
        distinct = list(seen.values())
        return distinct[:: -(-len(distinct) // self.MAX_DISTINCT) or 1]
