"""The one module that speaks to OR-Tools: linear programs by GLOP, integer programs by CP-SAT."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.linear_solver import pywraplp
from ortools.sat.python import cp_model

from planner_service.core.bounds import CapacityClass, Fleet, LengthTable, Weights, capacity_ms
from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items, Workload
from planner_service.core.pack import Packing
from planner_service.core.problem import ReplicaKind

LP_TIME_LIMIT_MS = 2000

LP_COLUMNS = 40
"""Groups of neighbouring lengths in the linear program; its duals are proofs whatever the grouping."""


def _grouped_lengths(table: LengthTable) -> list[tuple[slice, int]]:
    """Divide the lengths into at most `LP_COLUMNS` runs of about equal work: (run, its longest length's index)."""
    share = (table.work_ms * table.counts).sum(axis=0) + 1e-12
    edges = np.searchsorted(np.cumsum(share) / share.sum(), np.linspace(0, 1, LP_COLUMNS + 1)[1:-1])
    starts = sorted({0, *(int(edge) for edge in edges if edge < len(share))})
    ends = [*starts[1:], len(share)]
    return [(slice(start, end), end - 1) for start, end in zip(starts, ends, strict=True)]


def weights_by_lp(
    fleet: Fleet, table: LengthTable, classes: tuple[CapacityClass, ...], time_ms: float
) -> Weights | None:
    """Find weights that prove ``time_ms`` too short for a fleet, as duals of a fractional placement.

    The program gives each class a fractional number of replicas, places every group of lengths fractionally on the
    classes that admit it, and scales the replicas (or GPUs) there are by the least common factor that suffices; a
    factor of at most 1 means that the time may be long enough.

    Parameters
    ----------
    fleet
        The replicas; the table's rows are its kinds.
    table
        Costs of the batch.
    classes
        Division of each kind's replicas by their number of micro-batches.
    time_ms
        Time to prove too short.
    """
    solver = pywraplp.Solver("weights", pywraplp.Solver.GLOP_LINEAR_PROGRAMMING)
    solver.SetTimeLimit(LP_TIME_LIMIT_MS)
    scale = solver.NumVar(0, solver.infinity(), "scale")
    supply = [solver.Constraint(-solver.infinity(), 0) for _ in (fleet.counts or (None,))]
    for row, there_are in zip(supply, fleet.counts or (fleet.num_gpus,), strict=True):
        row.SetCoefficient(scale, -float(there_are))
    limits = [_ClassLimits.of(fleet.kinds[entry.group], entry, time_ms) for entry in classes]
    rows = []
    for entry, limit in zip(classes, limits, strict=True):
        replicas = solver.NumVar(0, solver.infinity(), "")
        if fleet.counts is None:
            supply[0].SetCoefficient(replicas, float(fleet.kinds[entry.group].num_ranks))
        else:
            supply[entry.group].SetCoefficient(replicas, 1.0)
        pair = (solver.Constraint(-solver.infinity(), 0), solver.Constraint(-solver.infinity(), 0))
        pair[0].SetCoefficient(replicas, -limit.work)
        pair[1].SetCoefficient(replicas, -limit.mixed)
        rows.append(pair)
    for run, last in _grouped_lengths(table):
        counts = table.counts[run]
        placed = solver.Constraint(1, 1)
        tokens = float(table.lengths[run] @ counts)
        for entry, limit, pair in zip(classes, limits, rows, strict=True):
            if limit.work > 0 and table.alone_ms[entry.group, last] <= time_ms:
                work = float(table.work_ms[entry.group, run] @ counts)
                part = solver.NumVar(0, solver.infinity(), "")
                placed.SetCoefficient(part, 1.0)
                pair[0].SetCoefficient(part, work)
                pair[1].SetCoefficient(part, limit.of_work * work + limit.of_token * tokens)
    solver.Minimize(scale)
    if solver.Solve() != pywraplp.Solver.OPTIMAL or scale.solution_value() <= 1 + 1e-7:
        return None
    duals = [(max(0.0, -pair[0].dual_value()), max(0.0, -pair[1].dual_value())) for pair in rows]
    return Weights(
        classes,
        tuple(alpha + beta * limit.of_work for (alpha, beta), limit in zip(duals, limits, strict=True)),
        tuple(beta * limit.of_token for (_, beta), limit in zip(duals, limits, strict=True)),
    )


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


LEAST_TICKS_PER_MS = 1000.0
"""CP-SAT works in whole ticks of a microsecond, or finer ones where times are short."""

FINE, COARSE = 1e8, 1e6
"""Ticks that the known makespan has at least: in the joint model rounding down must cost far less than the gap that
counts as none; the dispatch model, larger and less exact by itself, does without."""

MAX_MODEL_MS = 1e10
"""Longest makespan that is modelled; products of ticks and micro-batch counts must stay within 64 bits."""

MAX_JOINT_VARIABLES = 1500
"""Largest joint model (runs of equal items x slots) that is worth building."""

MAX_DISPATCH_VARIABLES = 2500
"""Largest dispatch model (runs of equal items x replicas) that is worth building."""


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
class _Clock:
    """Turns milliseconds into ticks, rounding down, so that objective values never exceed the true time."""

    ticks_per_ms: float

    @classmethod
    def for_makespan(cls, makespan_ms: float, least_ticks: float) -> "_Clock":
        return cls(max(LEAST_TICKS_PER_MS, least_ticks / makespan_ms if makespan_ms > 0 else 0.0))

    def ticks(self, milliseconds: float) -> int:
        return math.floor(milliseconds * self.ticks_per_ms)


@dataclass(frozen=True, slots=True)
class _Run:
    """A finished CP-SAT run."""

    solver: cp_model.CpSolver
    found: bool
    cut: bool

    def bound_ms(self, clock: _Clock) -> float:
        return max(0.0, self.solver.best_objective_bound / clock.ticks_per_ms)


def _run(model: cp_model.CpModel, limits: Limits) -> _Run:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed
    solver.parameters.max_deterministic_time = limits.deterministic_s
    solver.parameters.max_time_in_seconds = max(limits.wall_s, 1e-3)
    status = solver.solve(model)
    found = status in {cp_model.OPTIMAL, cp_model.FEASIBLE}
    ended = status in {cp_model.OPTIMAL, cp_model.INFEASIBLE}
    cut = not ended and solver.response_proto.deterministic_time < limits.deterministic_s * 0.999
    return _Run(solver, found, cut)


class _Runs:
    """Runs of equal items handed out one by one, to turn counts back into items."""

    def __init__(self, items: Items) -> None:
        self.runs = items.alike
        self._next = [first for first, _ in self.runs]

    def take(self, run: int, count: int) -> list[int]:
        first = self._next[run]
        self._next[run] += count
        return list(range(first, first + count))

    def count_in(self, run: int, held: Sequence[int]) -> int:
        first, count = self.runs[run]
        return sum(first <= item < first + count for item in held)


def _most_micro_batches(kind: ReplicaKind, items: Items) -> int:
    """Micro-batches beyond which no plan of a replica gets better.

    Without a pipeline two micro-batches that fit together are merged at no loss, so all but one pair are more than
    half full.
    """
    if kind.pp > 1:
        return len(items)
    return min(len(items), 2 * sum(items.tokens) // kind.max_tokens + 1)


def joint_size(dispatched: Dispatched, items: Items) -> int:
    """Variables of the joint model of dispatch and packing."""
    return len(items.alike) * sum(_most_micro_batches(kind, items) for kind in dispatched.kinds)


def solve_jointly(dispatched: Dispatched, work: Workload, limits: Limits) -> Improved:
    """Dispatch and pack in one exact model, from the hint of a known plan.

    Rules: each item is placed once; a micro-batch holds at most its replica's limit; a replica's makespan is the sum of
    its micro-batches plus (pp - 1) times the largest; used micro-batches come first, costlier before cheaper; of two
    equal replicas the first is the busier.
    """
    model = cp_model.CpModel()
    runs = _Runs(work.items)
    clock = _Clock.for_makespan(dispatched.makespan_ms, FINE)
    horizon = clock.ticks(dispatched.makespan_ms) + 1
    makespan = model.new_int_var(0, horizon, "makespan")
    slots: list[list[list[cp_model.IntVar]]] = []
    order = _busiest_first(dispatched)
    previous: tuple[ReplicaKind, cp_model.IntVar] | None = None
    for replica in order:
        kind = dispatched.kinds[replica]
        counts, end = _joint_replica(model, clock, kind, work, runs, dispatched.packings[replica], horizon)
        model.add(end <= makespan)
        if previous is not None and previous[0] == kind:
            model.add(previous[1] >= end)
        previous = (kind, end)
        slots.append(counts)
    for index, (_, count) in enumerate(runs.runs):
        model.add(sum(slot[index] for counts in slots for slot in counts) == count)
    model.minimize(makespan)
    run = _run(model, limits)
    assigned: list[list[list[int]]] | None = None
    if run.found:
        assigned = [[] for _ in order]
        for replica, counts in zip(order, slots, strict=True):
            for slot in counts:
                held = [
                    item for index in range(len(runs.runs)) for item in runs.take(index, run.solver.value(slot[index]))
                ]
                if held:
                    assigned[replica].append(held)
    return Improved(assigned, run.bound_ms(clock), run.cut)


def _busiest_first(dispatched: Dispatched) -> list[int]:
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


def _joint_replica(  # noqa: PLR0913, PLR0917 - one part of the joint model
    model: cp_model.CpModel,
    clock: _Clock,
    kind: ReplicaKind,
    work: Workload,
    runs: _Runs,
    known: Packing,
    horizon: int,
) -> tuple[list[list[cp_model.IntVar]], cp_model.IntVar]:
    costs = [clock.ticks(work.costs_ms[kind][first]) for first, _ in runs.runs]
    tokens = [work.items.tokens[first] for first, _ in runs.runs]
    known_slots = [items for _, items in sorted(zip(known.times_ms, known.micro_batches, strict=True), reverse=True)]
    counts: list[list[cp_model.IntVar]] = []
    times: list[cp_model.IntVar] = []
    end = model.new_int_var(0, horizon, "")
    largest = model.new_int_var(0, horizon, "")
    for index in range(_most_micro_batches(kind, work.items)):
        used = model.new_bool_var("")
        slot = [
            model.new_int_var(0, count if tokens[run] <= kind.max_tokens else 0, "")
            for run, (_, count) in enumerate(runs.runs)
        ]
        time = model.new_int_var(0, horizon, "")
        model.add(time == clock.ticks(kind.c) * used + cp_model.LinearExpr.weighted_sum(slot, costs))
        model.add(cp_model.LinearExpr.weighted_sum(slot, tokens) <= kind.max_tokens * used)
        model.add(largest >= time)
        if times:
            model.add(times[-1] >= time)
        held = known_slots[index] if index < len(known_slots) else ()
        model.add_hint(used, bool(held))
        for run, variable in enumerate(slot):
            model.add_hint(variable, runs.count_in(run, held))
        counts.append(slot)
        times.append(time)
    model.add(end == sum(times) + (kind.pp - 1) * largest)
    return counts, end


def dispatch_size(num_replicas: int, items: Items) -> int:
    """Variables of the dispatch model."""
    return len(items.alike) * num_replicas


def solve_dispatch(dispatched: Dispatched, work: Workload, limits: Limits) -> Improved:
    """Dispatch counts of equal items to replicas, charging each the least time that any packing could take.

    Rules: each item is placed once; a replica's micro-batches hold its tokens; with v of them it takes at least
    ``S + c v + (pp - 1)(S / v + c)``; of two equal replicas the first is the busier. Packing can only add to that time,
    so the model's bound is a bound on the makespan.
    """
    model = cp_model.CpModel()
    runs = _Runs(work.items)
    clock = _Clock.for_makespan(dispatched.makespan_ms, COARSE)
    horizon = clock.ticks(dispatched.makespan_ms) + 1
    makespan = model.new_int_var(0, horizon, "makespan")
    order = _busiest_first(dispatched)
    placed: list[list[cp_model.IntVar]] = []
    previous: tuple[ReplicaKind, cp_model.IntVar] | None = None
    for replica in order:
        kind = dispatched.kinds[replica]
        held = [item for items in dispatched.packings[replica].micro_batches for item in items]
        counts, load = _dispatch_replica(model, clock, kind, work, runs, held, makespan)
        if previous is not None and previous[0] == kind:
            model.add(previous[1] >= load)
        previous = (kind, load)
        placed.append(counts)
    for index, (_, count) in enumerate(runs.runs):
        model.add(sum(counts[index] for counts in placed) == count)
    model.minimize(makespan)
    run = _run(model, limits)
    assigned: list[list[list[int]]] | None = None
    if run.found:
        assigned = [[] for _ in order]
        for replica, counts in zip(order, placed, strict=True):
            assigned[replica] = [
                [item for index in range(len(runs.runs)) for item in runs.take(index, run.solver.value(counts[index]))]
            ]
    return Improved(assigned, run.bound_ms(clock), run.cut)


def _dispatch_replica(  # noqa: PLR0913, PLR0917 - one part of the dispatch model
    model: cp_model.CpModel,
    clock: _Clock,
    kind: ReplicaKind,
    work: Workload,
    runs: _Runs,
    held: Sequence[int],
    makespan: cp_model.IntVar,
) -> tuple[list[cp_model.IntVar], cp_model.IntVar]:
    costs = [clock.ticks(work.costs_ms[kind][first]) for first, _ in runs.runs]
    tokens = [work.items.tokens[first] for first, _ in runs.runs]
    c = clock.ticks(kind.c)
    most = min(_most_micro_batches(kind, work.items), 4 + 4 * sum(work.items.tokens) // kind.max_tokens)
    counts = [
        model.new_int_var(0, count if tokens[run] <= kind.max_tokens else 0, "")
        for run, (_, count) in enumerate(runs.runs)
    ]
    load = model.new_int_var(0, sum(cost * count for cost, (_, count) in zip(costs, runs.runs, strict=True)), "")
    model.add(load == cp_model.LinearExpr.weighted_sum(counts, costs))
    used_tokens = cp_model.LinearExpr.weighted_sum(counts, tokens)
    batches = model.new_int_var(0, most, "")
    model.add(kind.max_tokens * batches >= used_tokens)
    stages_more = kind.pp - 1
    if stages_more == 0:
        model.add(load + c * batches <= makespan)
    else:
        for v in range(1, most + 1):
            is_v = model.new_bool_var("")
            model.add(batches == v).only_enforce_if(is_v)
            model.add(batches != v).only_enforce_if(is_v.negated())
            if v < most or most == len(work.items):
                needed = load * (v + stages_more) + c * v * (v + stages_more) <= makespan * v
            else:  # stands for every larger number too, so the bubble of the work itself is left out
                needed = load + c * (v + stages_more) <= makespan
            model.add(needed).only_enforce_if(is_v)
    for run, variable in enumerate(counts):
        model.add_hint(variable, runs.count_in(run, held))
    return counts, load
