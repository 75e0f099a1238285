"""Which strategy: candidates pruned by their bounds, a first plan for each of the rest, and the search on the best.

Search effort is counted in steps and in CP-SAT's deterministic time; the wall clock only guards.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from planner_service.core.baselines.balanced_next_fit import balanced_next_fit
from planner_service.core.bounds import (
    CapacityClass,
    Fleet,
    Weights,
    all_strategies_bound,
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
from planner_service.core.differencing import largest_differencing, tokens_of, work_of
from planner_service.core.dispatch import Dispatched, LongPart, first_assignment, long_parts, pack_all
from planner_service.core.effort import Effort
from planner_service.core.items import MAX_ITEMS, Items, Workload, bundle_tokens, items_of
from planner_service.core.length_table import RANKING_GROUPS, LengthTable
from planner_service.core.local_search import Improver
from planner_service.core.longest_first import longest_first
from planner_service.core.pack import packing_of
from planner_service.core.place import place
from planner_service.core.prices import charges
from planner_service.core.problem import Problem, Strategy
from planner_service.core.repack import repack_slowest
from planner_service.core.rules import PackingRules
from planner_service.core.screen import Screened
from planner_service.core.solution import Bounds, Solution, finish

LOCAL_SEARCH_STEPS, FEWEST_STEPS, ITEMS_SEARCHED = 400, 20, 1_600_000
"""Steps of the local search: as many as look at so many items, within limits, for a step takes longer with more."""

NEARLY_BEST = 0.02
"""Candidates within this share of the best are balanced by largest differencing too."""

DEEP_PIPELINE = 4
MOST_REPACKED = 1000
"""Stages from which a replica, and items up to which a batch, is repacked for simulated time."""

FINISHING_MS = 0.08
"""Kept for ordering, placing, validating and writing a plan, for each micro-batch of the largest that was built."""

NEARLY_CHEAPEST = 0.05
"""A kind that charges an item this share more than the cheapest kind may still take it."""

FEW_ITEMS = 32
KICKS = 24
STEPS_AFTER_KICK = 40
"""Up to this few items the local search is repeated from so many random changes of its best assignment."""


@dataclass(frozen=True)
class Candidate:
    """A strategy with its bound (ms) and the best assignment to it so far.

    ``by_cp_sat`` tells that CP-SAT found the assignment; ``weights`` are the proof of the bound where it has several
    groups of replicas; ``is_balanced`` tells that simple balancers' plans have been tried, ``is_refined`` that it has
    been bounded and improved.
    """

    strategy: Strategy
    bound_ms: float
    dispatched: Dispatched
    by_cp_sat: bool = False
    weights: Weights | None = None
    is_balanced: bool = False
    is_refined: bool = False


class Search:
    """State of one solve: the batch in items, the incumbent, and what is left of the budget."""

    def __init__(self, problem: Problem, screened: Screened, effort: Effort) -> None:
        self.problem = problem
        self.batch = screened.batch
        self.screened = screened
        self.effort = effort
        self.cut = False
        self._finishing_ms = 0.0
        self.table = LengthTable.of(problem.kinds, self.batch)
        self.ranking = LengthTable.of(problem.kinds, self.batch, RANKING_GROUPS)
        self.num_occupied = self.batch.num_occupied_tokens
        self.all_ms = all_strategies_bound(self.ranking, problem.pools, (0.0, 1.0))  # a first one, from few groups
        self.scope_is_all = not problem.candidates
        self.rules = PackingRules.of(problem.options)
        self._items: dict[int, Items] = {}
        self._workloads: dict[Strategy, Workload] = {}

    def may_go_on(self, finishing_ms: float = 0.0) -> bool:
        """Whether the wall clock allows more; where it does not, the plan counts as cut.

        ``finishing_ms`` is what must be left, where that is more than plans built so far need.
        """
        if self.effort.remaining_ms() > max(self._finishing_ms, finishing_ms):
            return True
        self.cut = True
        return False

    def work(self, strategy: Strategy) -> Workload:
        """Items of the batch, bundled for the strategy's limits where there are very many, with their costs."""
        if strategy not in self._workloads:
            is_large = self.batch.num_sequences > MAX_ITEMS
            most = bundle_tokens(self.num_occupied, strategy, self.rules) if is_large else 0
            if most not in self._items:
                self._items[most] = items_of(
                    self.batch, most, groups=self.screened.groups, is_padded=self.rules.is_padded
                )
            kinds = tuple(kind for kind, _ in strategy.groups)
            self._workloads[strategy] = Workload.of(self._items[most], kinds, self.rules)
        return self._workloads[strategy]

    def target_ms(self, candidate: Candidate) -> float:
        """Makespan at which a candidate is good enough.

        A homogeneous strategy is judged by its own bound, so that it ends no worse than if it had been the only one.
        """
        is_mixed = len(candidate.strategy.groups) > 1
        bound = self.all_ms if self.scope_is_all and is_mixed else candidate.bound_ms
        return max(bound, candidate.bound_ms) * (1 + self.problem.options.target_gap)

    def may_be_placed(self, strategy: Strategy) -> bool:
        """Whether a strategy can be laid out; cheap where every tensor-parallel degree divides the next larger."""
        for pool in self.problem.pools:
            own = [(kind, num) for kind, num in strategy.groups if kind.device == pool.device]
            sizes = sorted({kind.layout.tp for kind, _ in own} | {pool.gpus_per_node})
            nested = all(larger % smaller == 0 for smaller, larger in pairwise(sizes))
            if not nested or not pool.has_whole_nodes:
                return place(strategy.replicas, self.problem.pools) is not None
            if sum(kind.num_ranks * num for kind, num in own) > pool.num_gpus:
                return False
        return True

    def first(self, strategy: Strategy, bound_ms: float, *, is_needed: bool = False) -> Candidate | None:
        """Build a first plan for a strategy; None if it cannot run the batch, or could not be finished in time.

        One that ``is_needed``, for want of any other, takes the time that it takes.
        """
        expected_ms = FINISHING_MS * self.num_occupied / strategy.mean_max_tokens
        if is_needed:
            dispatched = first_assignment(strategy, self.work(strategy))
        elif self.may_go_on(expected_ms):
            dispatched = first_assignment(strategy, self.work(strategy), lambda: self.may_go_on(expected_ms))
        else:
            return None
        if dispatched is None:
            return None
        num_micro_batches = sum(len(packing.micro_batches) for packing in dispatched.packings)
        self._finishing_ms = max(self._finishing_ms, FINISHING_MS * num_micro_batches)
        return Candidate(strategy, bound_ms, dispatched)

    def balanced(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Take simple balancers' plans where they are better than longest first's; best candidates first.

        Among equal replicas they can be the better by a tenth of a percent or so when sequences are many, so that only
        candidates within `NEARLY_BEST` of the best are worth the try.
        """
        near_ms = candidates[0].dispatched.makespan_ms * (1 + NEARLY_BEST)
        tried = [
            self._balanced(one) if one.dispatched.makespan_ms <= near_ms and (not index or self.may_go_on()) else one
            for index, one in enumerate(candidates)
        ]
        return sorted(tried, key=lambda found: (found.dispatched.makespan_ms, str(found.strategy)))

    def _balanced(self, candidate: Candidate) -> Candidate:
        work = self.work(candidate.strategy)
        if candidate.is_balanced or len(candidate.strategy.groups) > 1:
            return candidate
        if not work.rules.is_free or not work.items.are_single:
            return candidate
        found = [largest_differencing(candidate.strategy, work.items, weigh) for weigh in (work_of, tokens_of)]
        found.append(balanced_next_fit(candidate.strategy, work.items))
        best = min([candidate.dispatched, *found], key=lambda one: one.makespan_ms)
        return replace(candidate, dispatched=best, is_balanced=True)

    def guided(self, strategy: Strategy, weights: Weights, time_ms: float) -> Dispatched | None:
        """Dispatch longest first, each item only to kinds on which it is charged hardly more than on the cheapest.

        Parameters
        ----------
        strategy
            The strategy.
        weights
            Weights over its groups, from a linear program: the charges of a length are its costs in terms of what
            replicas are worth, so that no item takes a kind from those that need it more.
        time_ms
            The time that the weights were found for.
        """
        work = self.work(strategy)
        if not work.rules.is_free:
            return None
        table = self.ranking.rows(strategy)
        charged = charges(table, weights, time_ms)
        charged = np.where(np.isfinite(table.alone_ms), charged, np.inf)
        near = charged <= charged.min(axis=0) * (1 + NEARLY_CHEAPEST)
        groups = [[int(group) for group in np.flatnonzero(column)] for column in near.T]
        lengths, last = table.lengths.tolist(), len(groups) - 1
        longest = work.items.longest

        def allowed(item: int) -> Sequence[int]:
            return groups[min(last, bisect_left(lengths, longest[item]))]

        return pack_all(strategy, work, longest_first(strategy, work, allowed))

    def construct(self, strategies: Sequence[Strategy], report: Callable[[Candidate], None]) -> list[Candidate]:
        """Build a first plan for each strategy that its bound does not rule out, likeliest first; best first.

        ``report`` hears of the very first plan, before anything that takes longer is computed.
        """
        candidates: list[Candidate] = []
        best = float("inf")
        ranked = [(quick_strategy_bound(strategy, self.ranking.rows(strategy)), strategy) for strategy in strategies]
        for bound, strategy in sorted(ranked, key=lambda pair: (pair[0], str(pair[1]))):
            if bound >= best or (candidates and not self.may_go_on()):
                break
            found = self.first(strategy, bound, is_needed=not candidates)
            if found is None:
                continue
            candidates.append(found)
            if len(candidates) == 1:
                report(found)
                self.all_ms = all_strategies_bound(self.table, self.problem.pools, known_ms=self.all_ms)
            best = min(best, found.dispatched.makespan_ms)
        return sorted(candidates, key=lambda found: (found.dispatched.makespan_ms, str(found.strategy)))

    def bound_homogeneous(self, candidates: Sequence[Candidate]) -> None:
        """Bound all homogeneous strategies by the least of their own bounds; those left out are ruled out."""
        bounds = [self.bound(candidate).bound_ms for candidate in candidates]
        least = min([*bounds, candidates[0].dispatched.makespan_ms])
        self.all_ms = max(self.all_ms, least)

    def bound(self, candidate: Candidate) -> Candidate:
        """Tighten a candidate's bound by linear programming."""
        if not self.may_go_on():
            return candidate
        proofs: list[Weights] = []

        def choose(
            fleet: Fleet, table: LengthTable, classes: tuple[CapacityClass, ...], time_ms: float
        ) -> Weights | None:
            weights = weights_by_lp(fleet, table, classes, time_ms)
            if weights is not None:
                proofs.append(weights)
            return weights

        enough_ms = candidate.dispatched.makespan_ms / (1 + self.problem.options.target_gap)
        value = strategy_bound(candidate.strategy, self.table.rows(candidate.strategy), choose, enough_ms)
        weights = proofs[-1] if proofs and len(candidate.strategy.groups) > 1 else None
        return replace(candidate, bound_ms=max(candidate.bound_ms, value), weights=weights)

    def refined(self, candidate: Candidate, best_ms: float = float("inf")) -> Candidate:
        """Bound a candidate and, unless its bound shows that it cannot beat the best makespan, improve it; once."""
        if candidate.is_refined:
            return candidate
        bounded = self.bound(candidate)
        if bounded.bound_ms >= best_ms:
            return bounded
        if bounded.dispatched.makespan_ms > self.target_ms(bounded):
            bounded = self._balanced(bounded)
        return replace(self.improve(bounded), is_refined=True)

    def improve(self, candidate: Candidate) -> Candidate:
        """Improve a candidate's plan, or one guided by the weights of its bound where that comes out better."""
        improved = self.improve_locally(candidate)
        if candidate.weights is None or not self.may_go_on():
            return improved
        if improved.dispatched.makespan_ms <= self.target_ms(improved):
            return improved
        guided = self.guided(candidate.strategy, candidate.weights, candidate.bound_ms)
        if guided is None:
            return improved
        other = self.improve_locally(replace(candidate, dispatched=guided))
        return min(improved, other, key=lambda found: found.dispatched.makespan_ms)

    def improve_locally(self, candidate: Candidate) -> Candidate:
        """Move and swap items from the slowest replica; from there again after random kicks while items are few."""
        work, target_ms = self.work(candidate.strategy), self.target_ms(candidate)
        steps = min(LOCAL_SEARCH_STEPS, max(FEWEST_STEPS, ITEMS_SEARCHED // max(1, len(work.items))))
        best = Improver(work, candidate.dispatched, self.may_go_on).run(target_ms, steps)
        generator = np.random.default_rng(self.problem.options.seed)
        for _ in range(KICKS if len(work.items) <= FEW_ITEMS else 0):
            if best.makespan_ms <= target_ms or not self.may_go_on():
                break
            kicked = pack_all(candidate.strategy, work, _kicked(best, work, generator))
            found = Improver(work, kicked, self.may_go_on).run(target_ms, STEPS_AFTER_KICK)
            if found.makespan_ms < best.makespan_ms * (1 - 1e-12):
                best = found
        return replace(candidate, dispatched=best)

    def is_unsettled(self, candidate: Candidate) -> bool:
        """Whether a better plan than the candidate's is worth a long search."""
        return candidate.dispatched.makespan_ms > self.target_ms(candidate)

    def improve_by_cp_sat(self, candidate: Candidate, deterministic_s: float) -> Candidate:
        """Search with CP-SAT from the candidate as hint: the joint model where it is small, else dispatch."""
        dispatched, work = candidate.dispatched, self.work(candidate.strategy)
        if not self.is_unsettled(candidate) or dispatched.makespan_ms > MAX_MODEL_MS or not self.may_go_on():
            return candidate
        limits = Limits(deterministic_s, self.effort.remaining_ms() / 1000, self.problem.options.seed)
        if self.rules.is_free and joint_size(dispatched, work.items) <= MAX_JOINT_VARIABLES:
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
        fits = self.rules.is_free and all(
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

    def ordered_well(self, candidate: Candidate) -> Candidate:
        """Repack deep pipelines for less simulated time at the same closed form, where that is worth its time.

        Measured on published profiles: 0.3 % on average and up to 2.5 % with four stages or more, next to nothing with
        two; tens of milliseconds.
        """
        deep = any(kind.pp >= DEEP_PIPELINE for kind, _ in candidate.strategy.groups)
        work, dispatched = self.work(candidate.strategy), candidate.dispatched
        if not deep or not work.rules.is_free or len(work.items) > MOST_REPACKED or not self.may_go_on():
            return candidate
        packings = repack_slowest(
            dispatched.kinds,
            dispatched.packings,
            work.costs_ms,
            work.items.tokens,
            dispatched.makespan_ms,
            self.may_go_on,
        )
        return replace(candidate, dispatched=Dispatched(dispatched.kinds, packings))

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
