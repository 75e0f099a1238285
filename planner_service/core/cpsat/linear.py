"""Weights that prove bounds, as duals of linear programs solved by GLOP."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp

from planner_service.core.bounds import CapacityClass, Fleet, Weights, capacity_ms
from planner_service.core.length_table import LengthTable
from planner_service.core.problem import ReplicaKind

LP_TIME_LIMIT_MS = 60_000
"""Only a guard: programs take milliseconds, and one that a starved machine cut short would change the plan."""

LP_COLUMNS = 24
"""Groups of neighbouring lengths in the linear program; its duals are proofs whatever the grouping."""


def _grouped_lengths(table: LengthTable, num_columns: int) -> list[tuple[slice, int]]:
    """Divide the lengths into at most ``num_columns`` runs of about equal work: (run, its longest length's index)."""
    share = (table.work_ms * table.counts).sum(axis=0) + 1e-12
    edges = np.searchsorted(np.cumsum(share) / share.sum(), np.linspace(0, 1, num_columns + 1)[1:-1])
    starts = sorted({0, *(int(edge) for edge in edges if edge < len(share))})
    ends = [*starts[1:], len(share)]
    return [(slice(start, end), end - 1) for start, end in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Fractional:
    """A fractional placement of a batch on a fleet within some time.

    Attributes
    ----------
    scale
        How many times the replicas and GPUs there are it takes; over 1 the time is too short.
    replicas
        Replicas of each of the fleet's kinds that it uses.
    weights
        Proof that the time is too short, where ``scale`` is over 1.
    """

    scale: float
    replicas: tuple[float, ...]
    weights: Weights


class FractionalPlacement:
    """Places a batch fractionally on as little of a fleet as suffices in some time; the duals are weights of a bound.

    The program gives each class a fractional number of replicas, places every group of lengths fractionally on the
    classes that admit it, and scales the replicas and GPUs there are by the least common factor that suffices. It is
    built once and solved for many fleets that differ in the numbers of replicas allowed.

    Parameters
    ----------
    fleet
        The replicas; the table's rows are its kinds.
    table
        Costs of the batch.
    classes
        Division of each kind's replicas by their number of micro-batches.
    time_ms
        Time that every replica has.
    num_columns
        Groups of neighbouring lengths.
    """

    def __init__(
        self,
        fleet: Fleet,
        table: LengthTable,
        classes: tuple[CapacityClass, ...],
        time_ms: float,
        num_columns: int = LP_COLUMNS,
    ) -> None:
        self._kinds = fleet.kinds
        self._classes = classes
        self._limits = [_ClassLimits.of(fleet.kinds[entry.group], entry, time_ms) for entry in classes]
        self._solver = pywraplp.Solver("placement", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
        self._solver.SetTimeLimit(LP_TIME_LIMIT_MS)
        self._scale = self._solver.NumVar(0, self._solver.infinity(), "scale")
        self._supply(fleet)
        self._replicas, self._rows = self._classes_of()
        self._place(table, time_ms, num_columns)
        self._solver.Minimize(self._scale)

    def _supply(self, fleet: Fleet) -> None:
        """Keep each kind's replicas within those there are of it, and these within ``scale`` times the GPUs."""
        of_pool = {}
        for pool in fleet.pools:
            of_pool[pool.device] = self._at_most_zero()
            of_pool[pool.device].SetCoefficient(self._scale, -float(pool.num_gpus))
        self._there_are = []
        self._used = []
        self._fewest_rows = []
        self._most_rows = []
        for kind in fleet.kinds:
            there_are = self._solver.NumVar(0, self._solver.infinity(), "")
            used, fewest, most = self._at_most_zero(), self._at_most_zero(), self._at_most_zero()
            used.SetCoefficient(there_are, -1.0)
            fewest.SetCoefficient(there_are, -1.0)
            if kind.device in of_pool:
                of_pool[kind.device].SetCoefficient(there_are, float(kind.num_ranks))
            self._there_are.append(there_are)
            self._used.append(used)
            self._fewest_rows.append(fewest)
            self._most_rows.append(most)

    def _at_most_zero(self) -> pywraplp.Constraint:
        row: pywraplp.Constraint = self._solver.Constraint(-self._solver.infinity(), 0)
        return row

    def _classes_of(
        self,
    ) -> tuple[list[pywraplp.Variable], list[tuple[pywraplp.Constraint, pywraplp.Constraint]]]:
        """Give each class its replicas, and rows that keep its work and its tokens within what they can do."""
        replicas_of, rows = [], []
        for entry, limit in zip(self._classes, self._limits, strict=True):
            replicas = self._solver.NumVar(0, self._solver.infinity(), "")
            self._used[entry.group].SetCoefficient(replicas, 1.0)
            pair = (self._at_most_zero(), self._at_most_zero())
            pair[0].SetCoefficient(replicas, -limit.work)
            pair[1].SetCoefficient(replicas, -limit.mixed)
            replicas_of.append(replicas)
            rows.append(pair)
        return replicas_of, rows

    def _place(self, table: LengthTable, time_ms: float, num_columns: int) -> None:
        """Place every group of lengths on the classes that its longest length admits."""
        for run, last in _grouped_lengths(table, num_columns):
            counts = table.counts[run]
            placed = self._solver.Constraint(1, 1)
            tokens = float(table.lengths[run] @ counts)
            works = table.work_ms[:, run] @ counts
            admits = table.alone_ms[:, last] <= time_ms
            for entry, limit, pair in zip(self._classes, self._limits, self._rows, strict=True):
                if limit.work > 0 and admits[entry.group]:
                    work = float(works[entry.group])
                    part = self._solver.NumVar(0, self._solver.infinity(), "")
                    placed.SetCoefficient(part, 1.0)
                    pair[0].SetCoefficient(part, work)
                    pair[1].SetCoefficient(part, limit.of_work * work + limit.of_token * tokens)

    def solve(self, fewest: Sequence[int], most: Sequence[int | None]) -> Fractional | None:
        """Solve for a fleet with so many replicas of each kind at least, and at most.

        Returns
        -------
        Fractional | None
            None if the solver fails, or some group of lengths runs nowhere in this time.
        """
        for k, (low, high) in enumerate(zip(fewest, most, strict=True)):
            self._fewest_rows[k].SetCoefficient(self._scale, float(low))
            self._most_rows[k].SetCoefficient(self._there_are[k], 0.0 if high is None else 1.0)
            self._most_rows[k].SetCoefficient(self._scale, 0.0 if high is None else -float(high))
        if self._solver.Solve() != pywraplp.Solver.OPTIMAL:
            return None
        duals = [(max(0.0, -pair[0].dual_value()), max(0.0, -pair[1].dual_value())) for pair in self._rows]
        replicas_of = [0.0] * len(self._kinds)
        for entry, variable in zip(self._classes, self._replicas, strict=True):
            replicas_of[entry.group] += variable.solution_value()
        weights = _weights(self._classes, list(self._limits), duals)
        return Fractional(self._scale.solution_value(), tuple(replicas_of), weights)


def _weights(
    classes: tuple[CapacityClass, ...], limits: "list[_ClassLimits]", duals: list[tuple[float, float]]
) -> Weights:
    for number, limit in enumerate(limits):
        # A class that cannot run in this time has no duals of its own; once time allows it, those before it fit.
        if number and limit.work <= 0 and classes[number].group == classes[number - 1].group:
            duals[number], limits[number] = duals[number - 1], limits[number - 1]
    return Weights(
        classes,
        tuple(alpha + beta * limit.of_work for (alpha, beta), limit in zip(duals, limits, strict=True)),
        tuple(beta * limit.of_token for (_, beta), limit in zip(duals, limits, strict=True)),
    )


def weights_by_lp(
    fleet: Fleet, table: LengthTable, classes: tuple[CapacityClass, ...], time_ms: float
) -> Weights | None:
    """Find weights that prove ``time_ms`` too short for a fleet; None if it may be long enough."""
    found = FractionalPlacement(fleet, table, classes, time_ms).solve(fleet.fewest, fleet.most)
    return found.weights if found is not None and found.scale > 1 + 1e-7 else None


@dataclass(frozen=True, slots=True)
class _ClassLimits:
    """Right sides of one replica of a class: of its work, and of ``of_work * work + of_token * tokens``."""

    work: float
    mixed: float
    of_work: float
    of_token: float

    @classmethod
    def of(cls, kind: ReplicaKind, entry: CapacityClass, time_ms: float) -> "_ClassLimits":
        work = capacity_ms(kind, time_ms, 1.0, 0.0, entry.low, entry.high)
        if entry.high is not None:
            return cls(work, float(entry.high * kind.max_tokens), 0.0, 1.0)
        charge = kind.c / kind.max_tokens
        return cls(work, capacity_ms(kind, time_ms, 1.0, charge, entry.low, None), 1.0, charge)
