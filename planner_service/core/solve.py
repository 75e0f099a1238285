"""From a problem to a solution: screen, bound, select, dispatch, pack, improve, order and place.

An incumbent exists before any search starts, every later one is better, and the best is returned with its bound when
the target gap, the search budget or the deadline is reached. The same problem gives the same solution, unless the wall
clock had to end the search, and then the solution says so.
"""

from collections.abc import Callable, Sequence

from planner_service.core.baselines import compare
from planner_service.core.dispatch import pack_all
from planner_service.core.effort import Effort
from planner_service.core.explore import search_all_strategies
from planner_service.core.homogeneous import homogeneous
from planner_service.core.infeasible import infeasible_fault
from planner_service.core.items import Items, Workload
from planner_service.core.problem import Problem
from planner_service.core.screen import Screened, screen
from planner_service.core.select import Candidate, Search
from planner_service.core.solution import Bounds, Solution, finish

MOST_CANDIDATES_IMPROVED = 3


def solve(problem: Problem, effort: Effort, on_incumbent: Callable[[Solution], None] | None = None) -> Solution:
    """Plan one iteration.

    Parameters
    ----------
    problem
        What to plan.
    effort
        How hard to search.
    on_incumbent
        Called with the first solution, unless it is early yet, and with each better one that a long phase follows.

    Raises
    ------
    PlanningFault
        If no candidate can run the batch.
    """
    screened = screen(problem)
    if not screened.batch.num_sequences:
        return _all_idle(problem, screened)
    if problem.options.method != "hydraulis":
        return compare(problem, screened, effort)
    search = Search(problem, screened, effort)

    def report(candidate: Candidate) -> None:
        if on_incumbent is not None and not effort.is_early():
            on_incumbent(search.solution(candidate))

    strategies = screened.usable or homogeneous(problem, screened)
    candidates = search.construct(strategies, report)
    if not candidates:
        raise infeasible_fault(screened.batch, screened.groups, search.rules, strategies)
    if search.scope_is_all:
        candidates = search.balanced(candidates)
        candidates = _with_best_homogeneous(search, candidates, report)
    contenders = _improved(search, candidates)
    if search.is_unsettled(contenders[0]) and on_incumbent is not None:
        on_incumbent(search.solution(contenders[0]))
    return search.solution(search.ordered_well(_polish(search, contenders)))


def _with_best_homogeneous(
    search: Search, candidates: list[Candidate], report: Callable[[Candidate], None]
) -> list[Candidate]:
    """Search all strategies; the best homogeneous one stays among the first, so that its refinement is never missed."""
    if search.problem.options.homogeneous:
        search.bound_homogeneous(candidates)
        return candidates
    homogeneous_best = candidates[0]
    found = search_all_strategies(search, candidates, report)
    first = found[: MOST_CANDIDATES_IMPROVED - 1]
    if all(candidate.strategy != homogeneous_best.strategy for candidate in first):
        first.append(homogeneous_best)
    return first


def _improved(search: Search, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Bound and improve the first candidates, passing over those whose bound rules them out; best first."""
    contenders: list[Candidate] = []
    best_ms = float("inf")
    for candidate in candidates[:MOST_CANDIDATES_IMPROVED]:
        improved = search.refined(candidate, best_ms)
        contenders.append(improved)
        best_ms = min(best_ms, improved.dispatched.makespan_ms)
    return sorted(contenders, key=lambda found: (found.dispatched.makespan_ms, str(found.strategy)))


def _polish(search: Search, contenders: Sequence[Candidate]) -> Candidate:
    """Spend the CP-SAT budget on the best candidate, then on those whose bound still lies below it."""
    best = contenders[0]
    share = search.effort.deterministic_s
    for index, candidate in enumerate(contenders):
        if index and candidate.bound_ms >= best.dispatched.makespan_ms:
            continue
        found = search.improve_by_cp_sat(candidate, share)
        if not index or found.dispatched.makespan_ms < best.dispatched.makespan_ms:
            best = found
        share /= 3
    return best


def _all_idle(problem: Problem, screened: Screened) -> Solution:
    """Plan an empty batch: every replica is declared idle."""
    strategy = (screened.usable or homogeneous(problem, screened))[0]
    nothing = Items((), (), (), ())
    dispatched = pack_all(strategy, Workload.of(nothing, strategy.replicas), [[]] * strategy.num_replicas)
    bounds = Bounds(0.0, "strategy", 0.0, "heuristic", cut_by_wall_clock=False)
    return finish(problem, screened, strategy, dispatched, nothing, bounds)
