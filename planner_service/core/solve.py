"""From a problem to a solution: screen, bound, select, dispatch, pack, improve, order and place.

An incumbent exists before any search starts, every later one is better, and the best is returned with its bound when
the target gap, the search budget or the deadline is reached. The same problem gives the same solution, unless the wall
clock had to end the search, and then the solution says so.
"""

from collections.abc import Callable, Sequence

from planner_service.core.baselines import items_in_arrival_order, plain_loader
from planner_service.core.bounds import LengthTable, all_strategies_bound, strategy_bound
from planner_service.core.cpsat import weights_by_lp
from planner_service.core.dispatch import pack_all
from planner_service.core.faults import PlanningFault
from planner_service.core.items import Items, Workload
from planner_service.core.place import most_placeable
from planner_service.core.problem import Batch, Problem, Strategy
from planner_service.core.propose import generate
from planner_service.core.screen import MAX_MICRO_BATCHES, Screened, screen
from planner_service.core.select import Candidate, Effort, Search
from planner_service.core.solution import Bounds, Solution, finish

MOST_CANDIDATES_IMPROVED = 4


def solve(problem: Problem, effort: Effort, on_incumbent: Callable[[Solution], None] | None = None) -> Solution:
    """Plan one iteration.

    Parameters
    ----------
    problem
        What to plan.
    effort
        How hard to search.
    on_incumbent
        Called with the first solution and with each better one that follows a phase of the search.

    Raises
    ------
    PlanningFault
        If no candidate can run the batch.
    """
    screened = screen(problem)
    if not screened.batch.num_sequences:
        return _all_idle(problem, screened)
    if problem.options.method == "plain":
        return _plain(problem, screened)
    search = Search(problem, screened, effort)

    def report(candidate: Candidate) -> None:
        if on_incumbent is not None:
            on_incumbent(search.solution(candidate))

    candidates = search.construct(screened.usable or _homogeneous(problem, screened.batch), report)
    if not screened.usable and search.may_go_on():
        generated = [
            strategy
            for strategy in generate(search.ranking, problem.num_gpus)
            if search.may_be_placed(strategy) and search.num_occupied <= MAX_MICRO_BATCHES * strategy.mean_max_tokens
        ]
        candidates = search.construct(generated, report, candidates)
        search.bound_all_strategies()
    contenders: list[Candidate] = []
    best_ms = candidates[0].dispatched.makespan_ms
    for candidate in candidates[:MOST_CANDIDATES_IMPROVED]:
        bounded = search.bound(candidate)
        if contenders and bounded.bound_ms >= best_ms:
            continue
        improved = search.improve_locally(bounded)
        contenders.append(improved)
        best_ms = min(best_ms, improved.dispatched.makespan_ms)
    contenders.sort(key=lambda found: (found.dispatched.makespan_ms, str(found.strategy)))
    report(contenders[0])
    return search.solution(_polish(search, contenders))


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
        share /= 2
    return best


def _homogeneous(problem: Problem, batch: Batch) -> list[Strategy]:
    """Homogeneous strategies that hold the batch, of as many replicas as can be placed, smallest replicas first.

    Raises
    ------
    PlanningFault
        If there are none.
    """
    kinds = sorted(problem.kinds, key=lambda kind: (kind.num_ranks, kind.layout))
    strategies: list[Strategy] = []
    for kind in kinds:
        if batch.longest <= kind.max_tokens and batch.num_occupied_tokens <= MAX_MICRO_BATCHES * kind.max_tokens:
            num_replicas = most_placeable(kind, problem.num_gpus, problem.gpus_per_node)
            if num_replicas:
                strategies.append(Strategy.of([(kind, num_replicas)]))
    if not strategies:
        raise PlanningFault(
            "no-usable-strategy",
            f"no layout that holds the longest sequence, of {batch.longest} tokens, can be placed on "
            f"{problem.num_gpus} GPUs in nodes of {problem.gpus_per_node}",
            "use more GPUs, or layouts whose tensor-parallel groups fit into nodes",
            num_gpus=problem.num_gpus,
        )
    return strategies


def _all_idle(problem: Problem, screened: Screened) -> Solution:
    """Plan an empty batch: every replica is declared idle."""
    strategy = (screened.usable or _homogeneous(problem, screened.batch))[0]
    nothing = Items((), (), (), ())
    dispatched = pack_all(strategy, Workload.of(nothing, strategy.replicas), [[]] * strategy.num_replicas)
    bounds = Bounds(0.0, "strategy", 0.0, "heuristic", cut_by_wall_clock=False)
    return finish(problem, screened, strategy, dispatched, nothing, bounds)


def _plain(problem: Problem, screened: Screened) -> Solution:
    """Do what a plain data loader does, on the first usable candidate or the smallest homogeneous one that fits."""
    batch = screened.batch
    strategy = (screened.usable or _homogeneous(problem, batch))[0]
    items = items_in_arrival_order(batch, problem.arrival)
    table = LengthTable.of(problem.kinds, batch)
    bounds = Bounds(
        strategy_bound(strategy, table.rows(strategy), weights_by_lp),
        "strategy",
        all_strategies_bound(table, problem.num_gpus),
        "heuristic",
        cut_by_wall_clock=False,
    )
    return finish(problem, screened, strategy, plain_loader(strategy, items), items, bounds, keep_order=True)
