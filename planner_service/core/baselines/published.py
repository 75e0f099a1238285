"""Hydraulis as published (arXiv 2412.07894), from its description: for comparison.

Over a list of strategies prepared beforehand: dispatch by the best of 100 greedy assignments, each in another random
order of the sequences; then, for each replica and each number v of micro-batches, an integer program that makes the
largest micro-batch as small as possible, and the number with the least ``(max + c)(pp - 1 + v)``; the strategy whose
slowest replica is fastest by that estimate. The estimate charges every micro-batch as the largest, so that it differs
from the common measure that results are compared by.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

from planner_service.core.cpsat import Limits, pack_min_max
from planner_service.core.differencing import packed_as_given
from planner_service.core.dispatch import Dispatched
from planner_service.core.faults import PlanningFault
from planner_service.core.items import Items
from planner_service.core.pack import first_fit
from planner_service.core.problem import ReplicaKind, Strategy

NUM_TRIALS = 100
"""Random orders of the sequences that are tried."""

EFFORT_A_PROGRAM_S = 1.0
"""CP-SAT's deterministic budget for one packing program, about 2 s of one core; the best division known then is taken.

It is repeatable, so that the same request gives the same plan; the wall clock only ends the method as a whole. The
method's time is about proportional to it, so it is the least of those tried that costs no quality to speak of: on 32B,
64 GPUs and 200,000 tokens five times as much lowers makespans by 0.06 % at most, a tenth raises one by 3 %.
"""

MORE_MICRO_BATCHES = 8
"""Numbers of micro-batches tried beyond the fewest that the cap allows."""


def estimate_ms(kind: ReplicaKind, largest_ms: float, count: int) -> float:
    """Time of a replica as the method estimates it: ``(max + c)(pp - 1 + v)``."""
    return (largest_ms + kind.c) * (kind.pp - 1 + count)


class Published:
    """The method on one batch.

    Parameters
    ----------
    items
        Single sequences.
    seed
        Seed of the random orders and of the solver.
    remaining_ms
        Wall-clock time left; the method has no answer before it ends.
    """

    def __init__(self, items: Items, seed: int, remaining_ms: Callable[[], float]) -> None:
        self._items = items
        self._seed = seed
        self._remaining_ms = remaining_ms
        self._costs: dict[ReplicaKind, list[float]] = {}

    def plan(self, strategies: Sequence[Strategy]) -> tuple[Strategy, Dispatched]:
        """Choose the strategy with the least estimate, and assign the batch to it.

        Raises
        ------
        PlanningFault
            Code ``deadline-exceeded`` if time ends first.
        """
        planned = [(*self._packed(strategy, self._dispatched(strategy)), strategy) for strategy in strategies]
        _, bins, strategy = min(planned, key=lambda entry: entry[0])
        return strategy, packed_as_given(strategy.replicas, self._items, bins)

    def _cost_of(self, kind: ReplicaKind) -> list[float]:
        if kind not in self._costs:
            self._costs[kind] = self._items.costs_ms(kind)
        return self._costs[kind]

    def _check_time(self) -> None:
        if self._remaining_ms() <= 0:
            raise _did_not_end()

    def _dispatched(self, strategy: Strategy) -> list[list[int]]:
        """Take the best of many greedy assignments, each in a random order of the sequences."""
        generator = np.random.default_rng(self._seed)
        best: tuple[float, list[list[int]]] | None = None
        for _ in range(NUM_TRIALS):
            self._check_time()
            found = self._greedy(strategy, [int(item) for item in generator.permutation(len(self._items))])
            if best is None or found[0] < best[0]:
                best = found
        assert best is not None  # noqa: S101 - there is always a trial
        return best[1]

    def _greedy(self, strategy: Strategy, order: Sequence[int]) -> tuple[float, list[list[int]]]:
        """Give each sequence to the replica that would end first, by accumulated cost and its part of a bubble."""
        kinds = strategy.replicas
        costs = [self._cost_of(kind) for kind in kinds]
        tokens = self._items.tokens
        loads, largest, used = [0.0] * len(kinds), [0.0] * len(kinds), [0] * len(kinds)
        held: list[list[int]] = [[] for _ in kinds]
        for item in order:
            best, best_end = -1, math.inf
            for j, kind in enumerate(kinds):
                if tokens[item] <= kind.max_tokens:
                    end = self._end(
                        kind, loads[j] + costs[j][item], used[j] + tokens[item], max(largest[j], costs[j][item])
                    )
                    if end < best_end:
                        best, best_end = j, end
            held[best].append(item)
            loads[best] += costs[best][item]
            used[best] += tokens[item]
            largest[best] = max(largest[best], costs[best][item])
        return max(map(self._end, kinds, loads, used, largest)), held

    @staticmethod
    def _end(kind: ReplicaKind, load_ms: float, num_tokens: int, largest_ms: float) -> float:
        fewest = -(-num_tokens // kind.max_tokens)
        return load_ms + kind.c * fewest + (kind.pp - 1) * (largest_ms + kind.c) if num_tokens else 0.0

    def _packed(self, strategy: Strategy, held: Sequence[Sequence[int]]) -> tuple[float, list[list[list[int]]]]:
        bins: list[list[list[int]]] = []
        slowest = 0.0
        for kind, own in zip(strategy.replicas, held, strict=True):
            estimate, micro_batches = self._pack(kind, own) if own else (0.0, [])
            slowest = max(slowest, estimate)
            bins.append(micro_batches)
        return slowest, bins

    def _pack(self, kind: ReplicaKind, own: Sequence[int]) -> tuple[float, list[list[int]]]:
        costs, tokens = self._cost_of(kind), self._items.tokens
        fitted = first_fit(sorted(own, key=lambda item: -tokens[item]), tokens, kind.max_tokens)
        best = (self._estimated(kind, fitted), fitted)
        fewest = -(-sum(tokens[item] for item in own) // kind.max_tokens)
        for count in range(fewest, min(len(own), max(fewest, len(fitted)) + MORE_MICRO_BATCHES) + 1):
            self._check_time()
            limits = Limits(EFFORT_A_PROGRAM_S, self._remaining_ms() / 1000, self._seed)
            found = pack_min_max(own, costs, tokens, kind.max_tokens, count, limits)
            if found.cut_by_wall_clock:
                raise _did_not_end()
            if found.micro_batches is not None:
                entry = (self._estimated(kind, found.micro_batches), found.micro_batches)
                best = min(best, entry, key=lambda entry: entry[0])
        return best

    def _estimated(self, kind: ReplicaKind, bins: Sequence[Sequence[int]]) -> float:
        costs = self._cost_of(kind)
        return estimate_ms(kind, max(math.fsum(costs[item] for item in items) for items in bins), len(bins))


def _did_not_end() -> PlanningFault:
    return PlanningFault(
        "deadline-exceeded",
        "the published method did not end within the deadline",
        "give it a longer deadline_ms, a smaller batch, or fewer strategies",
    )
