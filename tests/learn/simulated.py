"""Machines with known costs, slow ranks, noise and outliers, and replicas that run on them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner_service.core.learn.decide import Decision, decide, published
from planner_service.core.learn.measured import Cost, Kind, Registered, Run, Sample
from planner_service.core.learn.observe import observe
from planner_service.core.learn.state import LearnerState
from planner_service.core.problem import Layout

WIDE = Kind("gpu", Layout(8, 1, 1))
HALF = Kind("gpu", Layout(4, 1, 1))
COSTS = {WIDE: Cost(2e-6, 0.015, 4.0), HALF: Cost(3e-6, 0.027, 3.0)}


def registered(num_ranks: int = 32) -> Registered:
    return Registered(COSTS, {"gpu": tuple(range(num_ranks))})


@dataclass
class Machines:
    """What micro-batches truly take.

    Attributes
    ----------
    costs
        Of each kind, on ranks like most.
    factors
        Of slow ranks.
    noise, outliers
        Relative scatter, and the share of micro-batches that take ten times as long.
    """

    costs: dict[Kind, Cost]
    factors: dict[int, float] = field(default_factory=dict)
    noise: float = 0.05
    outliers: float = 0.01
    generator: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def run(self, iteration: int, kind: Kind, ranks: Sequence[int], batches: Sequence[Sequence[int]]) -> Run:
        """Run micro-batches with these lengths."""
        slowest = max(self.factors.get(rank, 1.0) for rank in ranks)
        return Run(iteration, kind, tuple(ranks), tuple(self._sample(kind, slowest, lengths) for lengths in batches))

    def _sample(self, kind: Kind, slowest: float, lengths: Sequence[int]) -> Sample:
        squares, tokens = float(sum(s * s for s in lengths)), float(sum(lengths))
        scatter = self.generator.lognormal(0.0, self.noise)
        outlier = 10.0 if self.generator.random() < self.outliers else 1.0
        return squares, tokens, self.costs[kind].time_ms(squares, tokens) * slowest * scatter * outlier

    def batches(self, num: int, most: int = 32_768) -> list[list[int]]:
        """Draw micro-batches: one long sequence, many short ones, full and less full."""
        found = []
        for _ in range(num):
            length = int(np.exp(self.generator.uniform(np.log(64), np.log(most))))
            found.append([length] * int(self.generator.integers(1, max(2, most // length))))
        return found


@dataclass
class Loop:
    """A job without its service: what is measured is taken in, and decided on, iteration by iteration."""

    known: Registered
    state: LearnerState = field(default_factory=LearnerState)
    decisions: dict[int, Decision] = field(default_factory=dict)
    number: int = 0

    def take(self, runs: Sequence[Run]) -> None:
        """Take one report in."""
        self.number += 1
        self.state = observe(self.state, self.known, runs, self.number)
        decision = decide(self.state, self.known)
        if decision is not None:
            self.state = published(self.state, decision)
            self.decisions[runs[0].iteration] = decision

    def cost(self, kind: Kind) -> Cost:
        """Return the cost that plans are made with."""
        held = {own.kind: own.cost for own in self.state.published}
        return held.get(kind, self.known.costs[kind])

    def slow(self) -> dict[int, float]:
        """Return the slow ranks that plans are made with."""
        return {own.rank: own.factor for own in self.state.published_slow}


def step(machines: Machines, iteration: int, num_micro_batches: int = 3) -> list[Run]:
    """Run (8,1) on each of the 32 ranks' nodes but the last, and (4,1) twice on that."""
    places = [(WIDE, range(first, first + 8)) for first in (0, 8, 16)]
    places += [(HALF, range(first, first + 4)) for first in (24, 28)]
    return [machines.run(iteration, kind, tuple(ranks), machines.batches(num_micro_batches)) for kind, ranks in places]


def slower(costs: dict[Kind, Cost], factor: float) -> dict[Kind, Cost]:
    return {kind: cost.times(factor) for kind, cost in costs.items()}


__all__ = ["COSTS", "HALF", "WIDE", "Loop", "Machines", "registered", "replace", "slower", "step"]
