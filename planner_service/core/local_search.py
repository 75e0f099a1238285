"""Local search on an assignment: the slowest replica gives or swaps an item, step by step.

A step looks at very many exchanges: they are ranked by what they come to at least, all at once, the most promising are
estimated, and only of those few replicas are packed anew.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.cost import least_replica_ms
from planner_service.core.items import Workload
from planner_service.core.longest_first import Dispatched
from planner_service.core.pack import Packing, pack
from planner_service.core.pack_rules import pack_by_rules, unpackable
from planner_service.core.problem import Floats, Ints, ReplicaKind

MAX_PARTNERS = 12
MAX_TRIALS = 24
MAX_DISTINCT = 96
"""Replicas that the slowest one exchanges with in a step, exchanges tried with each, and items of each looked at."""


@dataclass(frozen=True)
class _Held:
    """What a replica holds: sums over its items, its two costliest, and one item of each cost.

    Attributes
    ----------
    cost_ms, num_tokens
        Sums on the replica's own kind.
    largest
        Its costliest items, the costliest first: (cost in ms, item).
    distinct
        One item of each cost; of very many an even sample.
    """

    cost_ms: float
    num_tokens: int
    num_items: int
    largest: tuple[tuple[float, int], ...]
    distinct: Ints


@dataclass(frozen=True)
class _Exchange:
    """The slowest replica gives an item and perhaps takes one; ``estimate_ms`` is the worse of both after that."""

    estimate_ms: float
    other: int
    given: int
    taken: int | None


class Improver:
    """Local search on an assignment, judged by packing both replicas of an exchange anew.

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

    def __init__(self, work: Workload, dispatched: Dispatched, may_go_on: Callable[[], bool]) -> None:
        self._work = work
        self._kinds = dispatched.kinds
        self._packings = list(dispatched.packings)
        self._items = [[item for items in packing.micro_batches for item in items] for packing in self._packings]
        self._may_go_on = may_go_on
        self._packed: dict[tuple[ReplicaKind, tuple[int, ...]], Packing] = {}
        self._held: dict[int, _Held] = {}
        self._costs: Mapping[ReplicaKind, Floats] = {
            kind: np.array(work.costs_ms[kind]) for kind in dict.fromkeys(dispatched.kinds)
        }
        self._tokens = np.array(work.items.tokens, dtype=np.int64)
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

    def _relieve(self, worst: int) -> bool:
        """Find one move or swap that lowers the worst replica below its makespan, its partner staying below too."""
        peak = self._packings[worst].makespan_ms
        trials = [trial for other in self._partners(worst) for trial in self._promising(worst, other, peak)]
        trials.sort(key=lambda trial: trial.estimate_ms)
        for trial in trials[:MAX_TRIALS]:
            if not self._may_go_on():
                return False
            if self._adopt(worst, trial, peak):
                return True
        return False

    def _adopt(self, worst: int, trial: _Exchange, peak: float) -> bool:
        """Exchange if both replicas, packed anew, end before the peak."""
        other, given, taken = trial.other, trial.given, trial.taken
        mine = [item for item in self._items[worst] if item != given] + ([] if taken is None else [taken])
        theirs = [item for item in self._items[other] if item != taken] + [given]
        after_other = self._pack(other, theirs)
        if after_other.makespan_ms >= peak * (1 - 1e-9):
            return False
        after_worst = self._pack(worst, mine)
        if after_worst.makespan_ms >= peak * (1 - 1e-9):
            return False
        for replica, items, packing in ((worst, mine, after_worst), (other, theirs, after_other)):
            self._items[replica], self._packings[replica] = items, packing
            self._held.pop(replica, None)
        return True

    def _partners(self, worst: int) -> list[int]:
        """List the least loaded replicas of each kind, since not every kind holds every item."""
        by_kind: dict[ReplicaKind, list[int]] = {}
        for replica, kind in enumerate(self._kinds):
            if replica != worst:
                by_kind.setdefault(kind, []).append(replica)
        of_each = max(3, MAX_PARTNERS // max(1, len(by_kind)))
        return [
            replica
            for replicas in by_kind.values()
            for replica in heapq.nsmallest(of_each, replicas, key=lambda r: (self._packings[r].makespan_ms, r))
        ]

    def _promising(self, worst: int, other: int, peak: float) -> list[_Exchange]:
        """List exchanges whose estimate stays below the peak."""
        judged = []
        for given, taken in self._ranked(worst, other, peak):
            after = max(self._estimate(worst, given, taken), self._estimate(other, taken, given))
            if after < peak * (1 - 1e-9):
                judged.append(_Exchange(after, other, given, taken))
        return judged

    def _ranked(self, worst: int, other: int, peak: float) -> list[tuple[int, int | None]]:
        """List the likeliest (given, taken), by what the two replicas come to if micro-batches stay as they are."""
        own_kind, other_kind = self._kinds[worst], self._kinds[other]
        own, foreign = self._costs[own_kind], self._costs[other_kind]
        mine = self._of(worst).distinct
        mine = mine[self._tokens[mine] <= other_kind.max_tokens]
        theirs = self._of(other).distinct
        theirs = theirs[self._tokens[theirs] <= own_kind.max_tokens]
        if not len(mine):
            return []
        load_other = self._packings[other].makespan_ms
        # The first column is to take nothing.
        linear = load_other + foreign[mine][:, None] - np.concatenate([[0.0], foreign[theirs]])
        rest = peak - own[mine][:, None] + np.concatenate([[0.0], own[theirs]])
        value = np.maximum(linear, rest)
        possible = linear < peak + other_kind.c
        possible[:, 1:] &= own[theirs] < own[mine][:, None]
        possible[:, 0] &= self._may_give(worst)
        value[~possible] = np.inf
        flat = value.ravel()
        if len(flat) > MAX_TRIALS:
            limit = np.partition(flat, MAX_TRIALS - 1)[MAX_TRIALS - 1]
            chosen = np.flatnonzero(flat <= limit)
        else:
            chosen = np.arange(len(flat))
        chosen = chosen[np.argsort(flat[chosen], kind="stable")][:MAX_TRIALS]
        return [
            (int(mine[row]), int(theirs[column - 1]) if column else None)
            for row, column in (divmod(int(index), len(theirs) + 1) for index in chosen[np.isfinite(flat[chosen])])
        ]

    def _may_give(self, replica: int) -> bool:
        """Whether a replica has an item more than it has to keep."""
        left = len(self._items[replica]) - 1
        needed = self._exactly or self._work.rules.permitted(self._kinds[replica].pp)
        return left >= needed or (left == 0 and self._work.rules.may_idle)

    def _estimate(self, replica: int, gives: int | None, takes: int | None) -> float:
        kind, held = self._kinds[replica], self._of(replica)
        costs, tokens = self._work.costs_ms[kind], self._work.items.tokens
        num_items, cost_ms, num_tokens = held.num_items, held.cost_ms, held.num_tokens
        largest = max((cost for cost, item in held.largest if item != gives), default=0.0)
        if gives is not None:
            num_items, cost_ms, num_tokens = num_items - 1, cost_ms - costs[gives], num_tokens - tokens[gives]
        if takes is not None:
            num_items, cost_ms, num_tokens = num_items + 1, cost_ms + costs[takes], num_tokens + tokens[takes]
            largest = max(largest, costs[takes])
        return least_replica_ms(kind, cost_ms, num_tokens, largest) if num_items else 0.0

    def _of(self, replica: int) -> _Held:
        if replica not in self._held:
            items, costs = self._items[replica], self._work.costs_ms[self._kinds[replica]]
            self._held[replica] = _Held(
                cost_ms=sum(costs[item] for item in items),
                num_tokens=sum(self._work.items.tokens[item] for item in items),
                num_items=len(items),
                largest=tuple(heapq.nlargest(2, ((costs[item], item) for item in items))),
                distinct=np.array(self._distinct(items), dtype=np.int64),
            )
        return self._held[replica]

    def _distinct(self, items: Sequence[int]) -> list[int]:
        """One item of each cost, so that equal sequences are tried once; of very many an even sample."""
        seen: dict[tuple[int, int], int] = {}
        for item in items:
            seen.setdefault((self._work.items.tokens[item], self._work.items.squares[item]), item)
        distinct = list(seen.values())
        return distinct[:: -(-len(distinct) // MAX_DISTINCT) or 1]
