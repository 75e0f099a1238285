"""Dispatch and packing in one exact model, for few items."""

from ortools.sat.python import cp_model

from planner_service.core.cpsat.running import (
    FINE,
    Clock,
    EqualItems,
    Improved,
    Limits,
    busiest_first,
    most_micro_batches,
    run_model,
)
from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items, Workload
from planner_service.core.pack import Packing
from planner_service.core.problem import ReplicaKind

MAX_JOINT_VARIABLES = 1500
"""Largest joint model (runs of equal items x slots) that is worth building."""


def joint_size(dispatched: Dispatched, items: Items) -> int:
    """Variables of the joint model of dispatch and packing."""
    return len(items.alike) * sum(most_micro_batches(kind, items) for kind in dispatched.kinds)


def solve_jointly(dispatched: Dispatched, work: Workload, limits: Limits) -> Improved:
    """Dispatch and pack in one exact model, from the hint of a known plan.

    Rules: each item is placed once; a micro-batch holds at most its replica's limit; a replica's makespan is the sum of
    its micro-batches plus (pp - 1) times the largest; used micro-batches come first, costlier before cheaper; of two
    equal replicas the first is the busier.
    """
    model = cp_model.CpModel()
    runs = EqualItems(work.items)
    clock = Clock.for_makespan(dispatched.makespan_ms, FINE)
    horizon = clock.ticks(dispatched.makespan_ms) + 1
    makespan = model.new_int_var(0, horizon, "makespan")
    slots: list[list[list[cp_model.IntVar]]] = []
    order = busiest_first(dispatched)
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
    done = run_model(model, limits)
    assigned: list[list[list[int]]] | None = None
    if done.found:
        assigned = [[] for _ in order]
        for replica, counts in zip(order, slots, strict=True):
            for slot in counts:
                held = [
                    item for index in range(len(runs.runs)) for item in runs.take(index, done.solver.value(slot[index]))
                ]
                if held:
                    assigned[replica].append(held)
    return Improved(assigned, done.bound_ms(clock), done.cut)


def _joint_replica(  # noqa: PLR0913, PLR0917 - one part of the joint model
    model: cp_model.CpModel,
    clock: Clock,
    kind: ReplicaKind,
    work: Workload,
    runs: EqualItems,
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
    for index in range(most_micro_batches(kind, work.items)):
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
        for which, variable in enumerate(slot):
            model.add_hint(variable, runs.count_in(which, held))
        counts.append(slot)
        times.append(time)
    model.add(end == sum(times) + (kind.pp - 1) * largest)
    return counts, end
