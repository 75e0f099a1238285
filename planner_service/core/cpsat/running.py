"""What the CP-SAT models share: ticks, limits, one run of the solver, and runs of equal items."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.problem import ReplicaKind

LEAST_TICKS_PER_MS = 1000.0
"""CP-SAT works in whole ticks of a microsecond, or finer ones where times are short."""

FINE, COARSE = 1e8, 1e6
"""Ticks that the known makespan has at least: in the joint model rounding down must cost far less than the gap that
counts as none; the dispatch model, larger and less exact by itself, does without."""

MAX_MODEL_MS = 1e10
"""Longest makespan that is modelled; products of ticks and micro-batch counts must stay within 64 bits."""


@dataclass(frozen=True)
class Limits:
    """How long one CP-SAT search may last.

    ``deterministic_s`` is CP-SAT's own repeatable measure of effort; ``wall_s`` only guards.
    """

    deterministic_s: float
    wall_s: float
    seed: int


@dataclass(frozen=True)
class Improved:
    """What CP-SAT found.

    Attributes
    ----------
    assigned
        Items by replica and, in the joint model, by micro-batch (else one list a replica); None if nothing was found.
    bound_ms
        Proven lower bound on the makespan.
    cut_by_wall_clock
        Whether the wall clock ended the search before its deterministic budget did.
    """

    assigned: list[list[list[int]]] | None
    bound_ms: float
    cut_by_wall_clock: bool


@dataclass(frozen=True, slots=True)
class Clock:
    """Turns milliseconds into ticks, rounding down, so that objective values never exceed the true time."""

    ticks_per_ms: float

    @classmethod
    def for_makespan(cls, makespan_ms: float, least_ticks: float) -> "Clock":
        """Choose a tick such that a makespan has at least so many."""
        return cls(max(LEAST_TICKS_PER_MS, least_ticks / makespan_ms if makespan_ms > 0 else 0.0))

    def ticks(self, milliseconds: float) -> int:
        """Turn milliseconds into ticks."""
        return math.floor(milliseconds * self.ticks_per_ms)


@dataclass(frozen=True, slots=True)
class Run:
    """A finished CP-SAT run."""

    solver: cp_model.CpSolver
    found: bool
    cut: bool

    def bound_ms(self, clock: Clock) -> float:
        """Lower bound that was proven, in ms."""
        return max(0.0, self.solver.best_objective_bound / clock.ticks_per_ms)


def run_model(model: cp_model.CpModel, limits: Limits) -> Run:
    """Solve a model on one thread, within the limits."""
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_deterministic_time = limits.deterministic_s
    solver.parameters.max_time_in_seconds = max(limits.wall_s, 1e-3)
    status = solver.solve(model)
    found = status in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    ended = status in {cp_model.OPTIMAL, cp_model.INFEASIBLE}
    cut = not ended and solver.response_proto.deterministic_time < limits.deterministic_s * 0.999
    return Run(solver, found, cut)


class EqualItems:
    """Runs of equal items handed out one by one, to turn counts back into items."""

    def __init__(self, items: Items) -> None:
        self.runs = items.alike
        self._next = [first for first, _ in self.runs]

    def take(self, run: int, count: int) -> list[int]:
        """Hand out the next ``count`` items of a run."""
        first = self._next[run]
        self._next[run] += count
        return list(range(first, first + count))

    def count_in(self, run: int, held: Sequence[int]) -> int:
        """Count a run's items among those held."""
        first, count = self.runs[run]
        return sum(first <= item < first + count for item in held)


def busiest_first(dispatched: Dispatched) -> list[int]:
    """Order equal replicas by load, as the models' symmetry rule asks, keeping kinds together."""
    kinds = list(dict.fromkeys(dispatched.kinds))
    return sorted(
        range(len(dispatched.kinds)),
        key=lambda replica: (
            kinds.index(dispatched.kinds[replica]),
            -dispatched.packings[replica].makespan_ms,
            replica,
        ),
    )


def most_micro_batches(kind: ReplicaKind, items: Items) -> int:
    """Micro-batches beyond which no plan of a replica gets better.

    Without a pipeline two micro-batches that fit together are merged at no loss, so all but one pair are more than
    half full.
    """
    if kind.pp > 1:
        return len(items)
    return min(len(items), 2 * sum(items.tokens) // kind.max_tokens + 1)
