"""The packing program of the method published with Hydraulis: the least largest micro-batch for a given number."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from planner_service.core.cpsat.running import Limits

TICKS_PER_MS = 1000.0

RELATIVE_GAP = 1e-4
"""A program ends when its division is proven to be this near to the best, as many integer solvers do unasked.

Times are those of a fitted model; what is left of them is microseconds, and hunting for these took most of the time.
"""


@dataclass(frozen=True)
class MinMaxPacking:
    """Micro-batches, and whether they are proven to have the least largest cost (within `RELATIVE_GAP`).

    ``micro_batches`` is None where none were found in time, or where caps allow none (``is_proven`` tells which);
    ``cut_by_wall_clock`` says that the search ended before its repeatable budget did.
    """

    micro_batches: list[list[int]] | None
    is_proven: bool
    cut_by_wall_clock: bool


def pack_min_max(  # noqa: PLR0913, PLR0917 - the program's own data
    items: Sequence[int],
    costs_ms: Sequence[float],
    tokens: Sequence[int],
    max_tokens: int,
    count: int,
    limits: Limits,
) -> MinMaxPacking:
    """Divide items into ``count`` micro-batches so that the costliest is as cheap as possible.

    Rules: each item is in one micro-batch; a micro-batch holds at most ``max_tokens``; none is empty; a micro-batch
    costs at most the largest. One boolean for each item and micro-batch, as published: equal items are not merged.

    Parameters
    ----------
    items
        What to divide.
    costs_ms, tokens
        Of every item of the batch.
    max_tokens
        Cap.
    count
        Number of micro-batches.
    limits
        Repeatable budget, the wall clock as its guard, and seed.
    """
    model = cp_model.CpModel()
    ticks = [math.ceil(costs_ms[item] * TICKS_PER_MS) for item in items]
    sizes = [tokens[item] for item in items]
    placed = [[model.new_bool_var("") for _ in range(count)] for _ in items]
    largest = model.new_int_var(0, sum(ticks), "")
    for row in placed:
        model.add_exactly_one(row)
    for slot in range(count):
        column = [row[slot] for row in placed]
        model.add(cp_model.LinearExpr.weighted_sum(column, sizes) <= max_tokens)
        model.add(cp_model.LinearExpr.weighted_sum(column, ticks) <= largest)
        model.add_at_least_one(column)
    model.minimize(largest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = limits.seed
    solver.parameters.relative_gap_limit = RELATIVE_GAP
    solver.parameters.max_deterministic_time = limits.deterministic_s
    solver.parameters.max_time_in_seconds = max(limits.wall_s, 1e-3)
    status = solver.solve(model)
    is_proven = status in {cp_model.OPTIMAL, cp_model.INFEASIBLE}
    cut = not is_proven and solver.response_proto.deterministic_time < limits.deterministic_s * 0.999
    if status not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return MinMaxPacking(None, is_proven, cut)
    bins: list[list[int]] = [[] for _ in range(count)]
    for item, row in zip(items, placed, strict=True):
        bins[next(slot for slot, variable in enumerate(row) if solver.boolean_value(variable))].append(item)
    return MinMaxPacking(bins, is_proven, cut)
