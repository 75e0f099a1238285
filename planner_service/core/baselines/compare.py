"""Plan by a method that serves for comparison, and bound what it does like any other plan."""

from collections.abc import Sequence

from planner_service.core.baselines.arrival import items_in_arrival_order, named_as_they_came, without_over_long
from planner_service.core.baselines.balanced_next_fit import balanced_next_fit
from planner_service.core.baselines.loader import pass_through, plain_loader
from planner_service.core.baselines.published import Published
from planner_service.core.bounds import all_strategies_bound, strategy_bound
from planner_service.core.cpsat import weights_by_lp
from planner_service.core.differencing import largest_differencing, tokens_of, work_of
from planner_service.core.dispatch import Dispatched
from planner_service.core.effort import Effort
from planner_service.core.homogeneous import homogeneous
from planner_service.core.items import Items, items_of
from planner_service.core.length_table import LengthTable
from planner_service.core.problem import Problem, Strategy
from planner_service.core.screen import Screened
from planner_service.core.solution import Bounds, Solution, finish


def compare(problem: Problem, screened: Screened, effort: Effort) -> Solution:
    """Assign the batch by the method that the problem names.

    The published method chooses among the candidates, or the homogeneous strategies if there are none; all others run
    on the first usable candidate or the smallest homogeneous strategy that fits.

    Raises
    ------
    PlanningFault
        Code ``deadline-exceeded`` if the published method does not end in time.
    """
    batch = screened.batch
    strategies = screened.usable or homogeneous(problem, screened)
    if problem.arrival:
        items = items_in_arrival_order(batch, problem.arrival)
    else:
        items = items_of(batch, 0, max_items=batch.num_sequences)
    strategy, dispatched = _assigned(problem, strategies, items, effort)
    table = LengthTable.of(problem.kinds, batch)
    bounds = Bounds(
        strategy_bound(strategy, table.rows(strategy), weights_by_lp),
        "strategy",
        all_strategies_bound(table, problem.pools),
        "heuristic",
        cut_by_wall_clock=False,
    )
    solution = finish(problem, screened, strategy, dispatched, items, bounds, keep_order=True)
    if problem.arrival:
        return named_as_they_came(solution, dispatched, without_over_long(batch, problem.arrival))
    return solution


def _assigned(
    problem: Problem, strategies: Sequence[Strategy], items: Items, effort: Effort
) -> tuple[Strategy, Dispatched]:
    strategy, method = strategies[0], problem.options.method
    if method == "published":
        return Published(items, problem.options.seed, effort.remaining_ms).plan(strategies)
    if method == "off":
        return strategy, pass_through(strategy, items)
    if method == "next-fit":
        return strategy, balanced_next_fit(strategy, items)
    if method in {"karmarkar-karp-tokens", "karmarkar-karp-work"}:
        weigh = tokens_of if method == "karmarkar-karp-tokens" else work_of
        return strategy, largest_differencing(strategy, items, weigh)
    return strategy, plain_loader(strategy, items)
