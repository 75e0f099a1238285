"""Phase 1: items to replicas, longest first, then improved by moving and swapping items."""

import heapq
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner_service.core.cost import least_replica_ms
from planner_service.core.dispatch_rules import first_by_rules, pack_all_by_rules
from planner_service.core.items import Workload
from planner_service.core.longest_first import Dispatched, Preference, longest_first
from planner_service.core.pack import EMPTY, Packing, pack
from planner_service.core.pack_rules import is_packable, pack_by_rules, unpackable
from planner_service.core.problem import ReplicaKind, Strategy

LEVEL = 1.25
LEVEL_STEPS = 12
"""A first assignment under rules takes so many steps at most while its slowest replica is so far over the mean."""

__all__ = [
    "Dispatched",
    "Improver",
    "LongPart",
    "Preference",
    "first_assignment",
    "keeps_rules",
    "long_parts",
    "longest_first",
    "pack_all",
]


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


def pack_all(strategy: Strategy, work: Workload, assigned: Sequence[Sequence[int]]) -> Dispatched:
    """Pack every replica's items; one that cannot be packed by the workload's rules comes out as infinitely slow."""
    if not work.rules.is_free:
        return pack_all_by_rules(strategy, work, assigned)
    packings = tuple(
        pack(kind, items, work.costs_ms[kind], work.items.tokens) if items else EMPTY
        for kind, items in zip(strategy.replicas, assigned, strict=True)
    )
    return Dispatched(strategy.replicas, packings)


def first_assignment(strategy: Strategy, work: Workload) -> Dispatched | None:
    """Dispatch longest first and pack; None if the strategy cannot run the batch under the rules it is packed by."""
    if not work.rules.is_free:
        found = first_by_rules(strategy, work)
        return None if found is None else _levelled(found, work)
    if work.items.most_tokens > strategy.max_tokens:
        return None
    return pack_all(strategy, work, longest_first(strategy, work))


def _levelled(dispatched: Dispatched, work: Workload) -> Dispatched:
    """Relieve replicas that keeping the rules has left far over the others, so that strategies compare fairly."""
    busy = [packing.makespan_ms for packing in dispatched.packings if packing.micro_batches]
    if not busy:
        return dispatched
    return Improver(work, dispatched, lambda: True).run(LEVEL * sum(busy) / len(busy), LEVEL_STEPS)


def keeps_rules(dispatched: Dispatched, work: Workload) -> bool:
    """Whether every replica is packed within its limit, into a permitted number of micro-batches, none empty."""
    rules, items = work.rules, work.items
    counts = [len(packing.micro_batches) for packing in dispatched.packings]
    if rules.equal_counts and len(set(counts)) > 1:
        return False
    for kind, packing in zip(dispatched.kinds, dispatched.packings, strict=True):
        if any(counts) and not rules.permits(kind.pp, len(packing.micro_batches)):
            return False
        if not is_packable(packing) or not all(packing.micro_batches):
            return False
        for held in packing.micro_batches:
            taken = sum(items.tokens[item] for item in held)
            if rules.is_padded:
                taken = max(items.longest[item] for item in held) * sum(items.num_sequences[item] for item in held)
            if taken > kind.max_tokens:
                return False
    return True


class Improver:
    """Local search on an assignment: the slowest replica gives or swaps an item, judged by packing both replicas anew.

    The rules of the workload are kept; where all replicas run equally many micro-batches, as many as at the start.

    Parameters
    ----------
    work
        Items, their costs and rules.
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
        counts = (len(packing.micro_batches) for packing in self._packings)
        self._exactly = max(counts, default=None) if work.rules.equal_counts else None

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
            if self._work.rules.is_free:
                packing = pack(kind, ordered, self._work.costs_ms[kind], self._work.items.tokens)
            else:
                packing = pack_by_rules(kind, ordered, self._work, self._exactly) or unpackable(ordered)
            self._packed[key] = packing
        return packing

    def _may_give(self, replica: int) -> bool:
        """Whether a replica has an item more than it has to keep."""
        left = len(self._held[replica]) - 1
        needed = self._exactly or self._work.rules.permitted(self._kinds[replica].pp)
        return left >= needed or (left == 0 and self._work.rules.may_idle)

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
        moves: tuple[int | None, ...] = (None,) if self._may_give(worst) else ()
        found: list[tuple[float, int, int, int | None]] = []
        for given in self._distinct(mine):
            if tokens[given] > other_kind.max_tokens:
                continue
            for taken in (*moves, *self._distinct(theirs)):
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
