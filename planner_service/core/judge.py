"""How long strategies take for a batch, judged cheaply and alike: what proposals and windows choose by."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from planner_service.core.dispatch import Dispatched, first_assignment
from planner_service.core.effort import Effort
from planner_service.core.faults import PlanningFault
from planner_service.core.homogeneous import homogeneous
from planner_service.core.items import MAX_ITEMS, Items, Workload, bundle_tokens, items_of
from planner_service.core.local_search import Improver
from planner_service.core.problem import Batch, Floats, Problem, Strategy
from planner_service.core.rules import PackingRules
from planner_service.core.screen import screen
from planner_service.core.solution import Bounds, Solution, finish
from planner_service.core.solve import solve

NEAR = 1.05
"""First plans that take at most so many times the best plan known are improved by local search; others cannot win."""

IMPROVING_STEPS = 40
"""Moves and swaps of that local search."""


class Judge:
    """Judges strategies on the batch of one problem.

    Parameters
    ----------
    problem
        The cluster, the batch and what constrains plans. Its candidates, if any, are the only strategies it may use.
    effort
        How hard to search; once no time is left, local search is left out.

    Raises
    ------
    PlanningFault
        If nothing can run the batch.
    """

    def __init__(self, problem: Problem, effort: Effort) -> None:
        self._problem = problem
        self._effort = effort
        self._screened = screen(problem)
        self._rules = PackingRules.of(problem.options)
        self._items: dict[int, Items] = {}
        self._known: dict[Strategy, float] = {}
        self.best: Solution = solve(problem, effort)
        self._usable = {self.best.strategy: True}

    @property
    def batch(self) -> Batch:
        """The sequences that are placed; those that the over-long policy drops are left out."""
        return self._screened.batch

    def sources(self) -> tuple[Strategy, ...]:
        """List the best strategy and what it was chosen among: the candidates, or else the homogeneous strategies."""
        others = self.usable(self._problem.candidates)
        if not self._problem.candidates:
            others = tuple(homogeneous(self._problem, self._screened))
        return tuple(dict.fromkeys((self.best.strategy, *others)))

    def usable(self, strategies: Sequence[Strategy]) -> tuple[Strategy, ...]:
        """Select the strategies that can be laid out and hold every sequence that any strategy could."""
        holding = [strategy for strategy in strategies if strategy.max_tokens >= self.batch.longest]
        new = tuple(strategy for strategy in dict.fromkeys(holding) if strategy not in self._usable)
        if new:
            try:
                found = set(screen(replace(self._problem, candidates=new)).usable)
            except PlanningFault:  # what screening says where none of the candidates is usable
                found = set()
            self._usable |= {strategy: strategy in found for strategy in new}
        return tuple(strategy for strategy in holding if self._usable[strategy])

    def makespan_ms(self, strategy: Strategy) -> float:
        """Makespan of a quick plan on a strategy; infinite if it cannot run the batch under the constraints."""
        if strategy not in self._known:
            self._known[strategy] = self._judged(strategy) if self.usable([strategy]) else float("inf")
        return self._known[strategy]

    def row(self, strategies: Sequence[Strategy]) -> Floats:
        """Judge several strategies. Shape (len(strategies),)."""
        self.usable(strategies)
        return np.array([self.makespan_ms(strategy) for strategy in strategies])

    def quick_plan(self, strategy: Strategy) -> Solution:
        """Return the plan that a strategy is judged by.

        Raises
        ------
        ValueError
            If the strategy cannot run the batch.
        """
        if strategy == self.best.strategy:
            return self.best
        found = self._dispatched(strategy)
        if found is None or not np.isfinite(self.makespan_ms(strategy)):
            raise ValueError(f"strategy {strategy} cannot run the batch")
        bound_ms = self.best.all_strategies_bound_ms
        scope: Literal["strategy", "all-strategies"] = "strategy" if self._problem.candidates else "all-strategies"
        bounds = Bounds(bound_ms, scope, bound_ms, "heuristic", cut_by_wall_clock=not self._may_go_on())
        return finish(self._problem, self._screened, strategy, found, self._items_for(strategy), bounds)

    def _judged(self, strategy: Strategy) -> float:
        if strategy == self.best.strategy or not self.batch.num_sequences:
            return self.best.makespan_ms
        found = self._dispatched(strategy)
        return float("inf") if found is None else found.makespan_ms

    def _dispatched(self, strategy: Strategy) -> Dispatched | None:
        """Dispatch longest first, and improve what comes near the best plan known."""
        kinds = tuple(kind for kind, _ in strategy.groups)
        work = Workload.of(self._items_for(strategy), kinds, self._rules)
        found = first_assignment(strategy, work)
        if found is None or found.makespan_ms > NEAR * self.best.makespan_ms:
            return found
        return Improver(work, found, self._may_go_on).run(self.best.makespan_ms, IMPROVING_STEPS)

    def _items_for(self, strategy: Strategy) -> Items:
        most = 0
        if self.batch.num_sequences > MAX_ITEMS:
            most = bundle_tokens(self.batch.num_occupied_tokens, strategy, self._rules)
        if most not in self._items:
            groups, is_padded = self._screened.groups, self._rules.is_padded
            self._items[most] = items_of(self.batch, most, groups=groups, is_padded=is_padded)
        return self._items[most]

    def _may_go_on(self) -> bool:
        return self._effort.remaining_ms() > 0
