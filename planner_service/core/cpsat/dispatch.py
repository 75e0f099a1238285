"""Dispatch alone, by counts of equal items, for more items than the joint model takes."""

from collections.abc import Sequence

from ortools.sat.python import cp_model

from planner_service.core.cpsat.running import (
    COARSE,
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
from planner_service.core.problem import ReplicaKind

MAX_DISPATCH_VARIABLES = 2500
"""Largest dispatch model (runs of equal items x replicas) that is worth building."""


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
    runs = EqualItems(work.items)
    clock = Clock.for_makespan(dispatched.makespan_ms, COARSE)
    horizon = clock.ticks(dispatched.makespan_ms) + 1
    makespan = model.new_int_var(0, horizon, "makespan")
    order = busiest_first(dispatched)
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
    done = run_model(model, limits)
    assigned: list[list[list[int]]] | None = None
    if done.found:
        assigned = [[] for _ in order]
        for replica, counts in zip(order, placed, strict=True):
            assigned[replica] = [
                [item for index in range(len(runs.runs)) for item in runs.take(index, done.solver.value(counts[index]))]
            ]
    return Improved(assigned, done.bound_ms(clock), done.cut)


def _dispatch_replica(  # noqa: PLR0913, PLR0917 - one part of the dispatch model
    model: cp_model.CpModel,
    clock: Clock,
    kind: ReplicaKind,
    work: Workload,
    runs: EqualItems,
    held: Sequence[int],
    makespan: cp_model.IntVar,
) -> tuple[list[cp_model.IntVar], cp_model.IntVar]:
    costs = [clock.ticks(work.costs_ms[kind][first]) for first, _ in runs.runs]
    tokens = [work.items.tokens[first] for first, _ in runs.runs]
    c = clock.ticks(kind.c)
    most = min(most_micro_batches(kind, work.items), 4 + 4 * sum(work.items.tokens) // kind.max_tokens)
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
    for which, variable in enumerate(counts):
        model.add_hint(variable, runs.count_in(which, held))
    return counts, load
