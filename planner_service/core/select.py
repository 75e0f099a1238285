"""Which strategy: candidates pruned by their bounds, a first plan for each of the rest, and the search on the best.

Search effort is counted in steps and in CP-SAT's deterministic time; the wall clock only guards.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner_service.core.bounds import (
    RANKING_GROUPS,
    Fleet,
    LengthTable,
    all_strategies_bound,
    improved_bound,
    quick_strategy_bound,
    strategy_bound,
)
from planner_service.core.cpsat import (
    MAX_DISPATCH_VARIABLES,
    MAX_JOINT_VARIABLES,
    MAX_MODEL_MS,
    Improved,
    Limits,
    dispatch_size,
    joint_size,
    solve_dispatch,
    solve_jointly,
    weights_by_lp,
)
from planner_service.core.dispatch import Dispatched, Improver, LongPart, long_parts, longest_first, pack_all
from planner_service.core.items import MAX_ITEMS, Items, Workload, bundle_tokens, items_of
from planner_service.core.pack import packing_of
from planner_service.core.place import place
from planner_service.core.problem import Problem, Strategy
from planner_service.core.screen import Screened
from planner_service.core.solution import Bounds, Solution, finish

LOCAL_SEARCH_STEPS = 400

FEW_ITEMS = 32
KICKS = 24
STEPS_AFTER_KICK = 40
"""Up to this few items the local search is repeated from so many random changes of its best assignment."""


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    Attributes
    ----------
    deterministic_s
        CP-SAT's deterministic budget for the whole solve.
    remaining_ms
        Wall-clock time left; the search stops at 0.
    """

    deterministic_s: float
    remaining_ms: Callable[[], float]


@dataclass(frozen=True)
class Candidate:
    """A strategy with its bound (ms) and the best assignment to it so far.

    ``by_cp_sat`` tells that CP-SAT found the assignment.
    """

    strategy: Strategy
    bound_ms: float
    dispatched: Dispatched
    by_cp_sat: bool = False


class Search:
    """State of one solve: the batch in items, the incumbent, and what is left of the budget."""

    def __init__(self, problem: Problem, screened: Screened, effort: Effort) -> None:
        self.problem = problem
        self.batch = screened.batch
        self.screened = screened
        self.effort = effort
        self.cut = False
        self.table = LengthTable.of(problem.kinds, self.batch)
        self.ranking = LengthTable.of(problem.kinds, self.batch, RANKING_GROUPS)
        self.num_occupied = self.batch.num_occupied_tokens
        self.all_ms = all_strategies_bound(self.ranking, problem.num_gpus, (0.0, 1.0))  # a first one, from few groups
        self.scope_is_all = not problem.candidates
        self._items: dict[int, Items] = {}
        self._workloads: dict[Strategy, Workload] = {}

    def may_go_on(self) -> bool:
        """Whether the wall clock allows more; once it does not, the plan counts as cut."""
        if self.effort.remaining_ms() <= 0:
            self.cut = True
        return not self.cut

    def work(self, strategy: Strategy) -> Workload:
        """Items of the batch, bundled for the strategy's limits where there are very many, with their costs."""
        if strategy not in self._workloads:
            most = bundle_tokens(self.num_occupied, strategy) if self.batch.num_sequences > MAX_ITEMS else 0
            if most not in self._items:
                self._items[most] = items_of(self.batch, most)
            self._workloads[strategy] = Workload.of(self._items[most], tuple(kind for kind, _ in strategy.groups))
        return self._workloads[strategy]

    def target_ms(self, candidate: Candidate) -> float:
        """Makespan at which a candidate is good enough."""
        bound = self.all_ms if self.scope_is_all else candidate.bound_ms
        return max(bound, candidate.bound_ms) * (1 + self.problem.options.target_gap)

    def may_be_placed(self, strategy: Strategy) -> bool:
        """Whether a strategy can be laid out; cheap where every tensor-parallel degree divides the next larger."""
        node = self.problem.gpus_per_node
        sizes = sorted({kind.layout.tp for kind, _ in strategy.groups} | {node})
        nested = all(larger % smaller == 0 for smaller, larger in pairwise(sizes))
        if nested and self.problem.num_gpus % node == 0:
            return strategy.num_ranks <= self.problem.num_gpus
        return place(strategy.replicas, self.problem.num_gpus, node) is not None

    def construct(
        self, strategies: Sequence[Strategy], report: Callable[[Candidate], None], known: Sequence[Candidate] = ()
    ) -> list[Candidate]:
        """Build a first plan for each strategy that its bound does not rule out, likeliest first.

        The candidates ``known`` before are kept. ``report`` hears of the very first plan, before anything that takes
        longer is computed.
        """
        candidates = list(known)
        built = {candidate.strategy for candidate in known}
        best = min((candidate.dispatched.makespan_ms for candidate in known), default=float("inf"))
        ranked = [
            (quick_strategy_bound(strategy, self.ranking.rows(strategy)), strategy)
            for strategy in strategies
            if strategy not in built
        ]
        for bound, strategy in sorted(ranked, key=lambda pair: (pair[0], str(pair[1]))):
            if bound >= best or (candidates and not self.may_go_on()):
                break
            dispatched = pack_all(strategy, self.work(strategy), longest_first(strategy, self.work(strategy)))
            candidates.append(Candidate(strategy, bound, dispatched))
            if len(candidates) == 1:
                report(candidates[0])
                self.all_ms = max(self.all_ms, all_strategies_bound(self.table, self.problem.num_gpus))
            best = min(best, dispatched.makespan_ms)
        return sorted(candidates, key=lambda found: (found.dispatched.makespan_ms, str(found.strategy)))

    def bound_all_strategies(self) -> None:
        """Tighten the bound over all strategies by linear programming; pays where it is what the gap refers to."""
        if self.may_go_on():
            fleet = Fleet.of_cluster(self.table.kinds, self.problem.num_gpus)
            self.all_ms = improved_bound(fleet, self.ranking, self.all_ms, weights_by_lp)

    def bound(self, candidate: Candidate) -> Candidate:
        """Tighten a candidate's bound by linear programming."""
        if not self.may_go_on():
            return candidate
        value = strategy_bound(candidate.strategy, self.table.rows(candidate.strategy), weights_by_lp)
        return replace(candidate, bound_ms=max(candidate.bound_ms, value))

    def improve_locally(self, candidate: Candidate) -> Candidate:
        """Move and swap items from the slowest replica; from there again after random kicks while items are few."""
        work, target_ms = self.work(candidate.strategy), self.target_ms(candidate)
        best = Improver(work, candidate.dispatched, self.may_go_on).run(target_ms, LOCAL_SEARCH_STEPS)
        generator = np.random.default_rng(self.problem.options.seed)
        for _ in range(KICKS if len(work.items) <= FEW_ITEMS else 0):
            if best.makespan_ms <= target_ms or not self.may_go_on():
                break
            kicked = pack_all(candidate.strategy, work, _kicked(best, work, generator))
            found = Improver(work, kicked, self.may_go_on).run(target_ms, STEPS_AFTER_KICK)
            if found.makespan_ms < best.makespan_ms * (1 - 1e-12):
                best = found
        return replace(candidate, dispatched=best)

    def improve_by_cp_sat(self, candidate: Candidate, deterministic_s: float) -> Candidate:
        """Search with CP-SAT from the candidate as hint: the joint model where it is small, else dispatch."""
        dispatched, work = candidate.dispatched, self.work(candidate.strategy)
        makespan_ms = candidate.dispatched.makespan_ms
        if makespan_ms <= self.target_ms(candidate) or makespan_ms > MAX_MODEL_MS or not self.may_go_on():
            return candidate
        limits = Limits(deterministic_s, self.effort.remaining_ms() / 1000, self.problem.options.seed)
        if joint_size(dispatched, work.items) <= MAX_JOINT_VARIABLES:
            return self._adopt(candidate, solve_jointly(dispatched, work, limits))
        if dispatch_size(len(dispatched.kinds), work.items) <= MAX_DISPATCH_VARIABLES:
            return self.improve_locally(self._adopt(candidate, solve_dispatch(dispatched, work, limits)))
        for part in long_parts(dispatched, work):
            if dispatch_size(len(part.replicas), part.work.items) <= MAX_DISPATCH_VARIABLES:
                improved = solve_dispatch(part.dispatched, part.work, limits)
                return self.improve_locally(self._adopt(candidate, _with_the_rest(dispatched, part, improved)))
        return candidate

    def _adopt(self, candidate: Candidate, improved: Improved) -> Candidate:
        self.cut = self.cut or improved.cut_by_wall_clock
        if self.work(candidate.strategy).items.are_single:  # what holds for bundles need not hold for their sequences
            bound_ms = max(candidate.bound_ms, improved.bound_ms)
            candidate = replace(candidate, bound_ms=bound_ms)
        if improved.assigned is None:
            return candidate
        work, kinds = self.work(candidate.strategy), candidate.dispatched.kinds
        merged = [[item for items in held for item in items] for held in improved.assigned]
        packed = pack_all(candidate.strategy, work, merged)
        given = tuple(
            packing_of(kind, work.costs_ms[kind], held) for kind, held in zip(kinds, improved.assigned, strict=True)
        )
        fits = all(
            sum(work.items.tokens[item] for item in items) <= kind.max_tokens
            for kind, held in zip(kinds, improved.assigned, strict=True)
            for items in held
        )
        better = tuple(
            mine if fits and mine.makespan_ms < other.makespan_ms else other
            for mine, other in zip(given, packed.packings, strict=True)
        )
        found = Dispatched(kinds, better)
        if found.makespan_ms < candidate.dispatched.makespan_ms * (1 - 1e-12):
            return replace(candidate, dispatched=found, by_cp_sat=True)
        return candidate

    def solution(self, candidate: Candidate) -> Solution:
        """Place and order a candidate, with the bounds known so far."""
        lower = self.all_ms if self.scope_is_all else max(candidate.bound_ms, self.all_ms)
        bounds = Bounds(
            lower_ms=lower,
            scope="all-strategies" if self.scope_is_all else "strategy",
            all_strategies_ms=self.all_ms,
            solved_by="cp-sat" if candidate.by_cp_sat else "heuristic",
            cut_by_wall_clock=self.cut,
        )
        return finish(
            self.problem,
            self.screened,
            candidate.strategy,
            candidate.dispatched,
            self.work(candidate.strategy).items,
            bounds,
        )


def _kicked(dispatched: Dispatched, work: Workload, generator: np.random.Generator) -> list[list[int]]:
    """Move a few random items to random replicas that hold them."""
    held = [[item for items in packing.micro_batches for item in items] for packing in dispatched.packings]
    for item in generator.choice(len(work.items), size=min(3, len(work.items)), replace=False):
        able = [j for j, kind in enumerate(dispatched.kinds) if work.items.tokens[item] <= kind.max_tokens]
        for items in held:
            if item in items:
                items.remove(item)
        held[able[int(generator.integers(len(able)))]].append(int(item))
    return held


def _with_the_rest(dispatched: Dispatched, part: LongPart, improved: Improved) -> Improved:
    """Extend an assignment of the long part by all other items where they were."""
    if improved.assigned is None:
        return improved
    placed = dict(zip(part.replicas, improved.assigned, strict=True))
    whole = []
    for replica, packing in enumerate(dispatched.packings):
        shorter = [item for items in packing.micro_batches for item in items if item >= part.num_items]
        longer = [item for items in placed.get(replica, []) for item in items]
        whole.append([longer + shorter])
    return replace(improved, assigned=whole)
