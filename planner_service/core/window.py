"""Strategies for several iterations whose batches are known: a change of strategy has to pay for what it costs.

Every iteration's batch is judged on every strategy that is best for some iteration, and on the homogeneous ones. A
dynamic program over the iterations (Viterbi's) then finds the sequence of strategies with the least sum of makespans
and costs of changes; the iterations are planned in full on the strategies of that sequence.

A change is charged by what it changes between, and by whether the next strategy is kept warm, not by which strategies
the window used before: going back to one costs as much as any change unless the caller's `SwitchCost` says otherwise.
The limit on process groups holds for each strategy, not for those of the window together.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise

import numpy as np

from planner_service.core.effort import Effort
from planner_service.core.field import varied
from planner_service.core.judge import Judge
from planner_service.core.neighbours import Cluster
from planner_service.core.problem import Floats, Ints, Problem, Strategy
from planner_service.core.solution import OPTIMAL_GAP, Solution
from planner_service.core.solve import solve

REFINING_STEPS = 3
REFINED = 32
"""While changes cost something so many strategies near those in use are judged, too, so many times."""

SwitchCost = Callable[[Strategy, Strategy], float]
"""Cost in ms of going from one strategy to another, unlike one."""


@dataclass(frozen=True)
class Window:
    """Plans of consecutive iterations.

    Attributes
    ----------
    solutions
        Plan of each iteration; unless the iterations have candidates its bound is that over all strategies, so that the
        gap shows what staying with a strategy costs.
    total_ms
        Their makespans and the costs of the changes between them, also of the first from what ran before.
    num_switches
        How many changes that is.
    judged_ms
        The same total by the quick plans that the strategies were chosen by; at most the two that follow.
    greedy_ms
        Total, judged alike, if each iteration ran on its own best strategy.
    never_ms
        Total, judged alike, on the one strategy that is best if none may follow it; infinite if none can run all.
    """

    solutions: tuple[Solution, ...]
    total_ms: float
    num_switches: int
    judged_ms: float
    greedy_ms: float
    never_ms: float

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Strategy of each iteration."""
        return tuple(solution.strategy for solution in self.solutions)


@dataclass(frozen=True)
class Path:
    """A sequence of strategies, by number, with its total and its number of changes from one to another."""

    states: tuple[int, ...]
    total_ms: float
    num_switches: int


def cheapest_path(makespans_ms: Floats, switches_ms: Floats, before_ms: Floats) -> Path:
    """Find the strategies of consecutive iterations with the least total.

    Infinite costs are taken only where no finite total exists, and then as few as possible.

    Parameters
    ----------
    makespans_ms
        Makespan of each iteration (row) on each strategy (column), infinite where it cannot run it. Shape (W, S).
    switches_ms
        Cost of going from one strategy (row) to another (column), 0 on the diagonal. Shape (S, S).
    before_ms
        Cost of beginning with each strategy, given what ran before. Shape (S,).

    Returns
    -------
    Path
        Of equal totals the one with fewer changes, then of lower numbers.
    """
    num_iterations, num_strategies = makespans_ms.shape
    if not num_iterations:
        return Path((), 0.0, 0)
    is_switch = 1 - np.eye(num_strategies, dtype=int)
    ended = _Cost.of(makespans_ms[0]) + _Cost.of(before_ms)
    step = _Cost.of(switches_ms) + _Cost.switches(is_switch)
    came_from = []
    for row in makespans_ms[1:]:
        through = _Cost(*(part[:, None] for part in ended.parts)) + step
        best = through.first_least()
        came_from.append(best)
        ended = through.picked(best) + _Cost.of(row)
    state = int(_Cost(*(part[:, None] for part in ended.parts)).first_least()[0])
    total, num_switches = ended.at(state)
    states = [state]
    for best in reversed(came_from):
        state = int(best[state])
        states.append(state)
    return Path(tuple(reversed(states)), total, num_switches)


@dataclass(frozen=True)
class _Cost:
    """Costs that compare by the number of infinite terms, then by the finite sum, then by the number of changes."""

    num_infinite: Floats
    finite_ms: Floats
    num_switches: Floats

    @classmethod
    def of(cls, costs_ms: Floats) -> "_Cost":
        infinite = ~np.isfinite(costs_ms)
        return cls(infinite.astype(float), np.where(infinite, 0.0, costs_ms), np.zeros(costs_ms.shape))

    @classmethod
    def switches(cls, counts: Ints) -> "_Cost":
        return cls(np.zeros(counts.shape), np.zeros(counts.shape), counts.astype(float))

    @property
    def parts(self) -> tuple[Floats, Floats, Floats]:
        return self.num_infinite, self.finite_ms, self.num_switches

    def __add__(self, other: "_Cost") -> "_Cost":
        return _Cost(*(mine + theirs for mine, theirs in zip(self.parts, other.parts, strict=True)))

    def first_least(self) -> Ints:
        """Row of the least cost of each column, the first of equal ones."""
        ascending: Ints = np.lexsort((self.num_switches, self.finite_ms, self.num_infinite), axis=0)
        least: Ints = ascending[0]
        return least

    def picked(self, rows: Ints) -> "_Cost":
        """Cost of each column at the row given for it."""
        return _Cost(*(part[rows, np.arange(part.shape[1])] for part in self.parts))

    def at(self, state: int) -> tuple[float, int]:
        total = float("inf") if self.num_infinite[state] else float(self.finite_ms[state])
        return total, int(self.num_switches[state])


def plan_window(  # noqa: PLR0913 - what changes cost is given by name
    problems: Sequence[Problem],
    switch_ms: float,
    effort: Effort,
    *,
    initial: Strategy | None = None,
    warm: Collection[Strategy] = (),
    warm_switch_ms: float = 0.0,
    switch_cost: SwitchCost | None = None,
    candidates: Sequence[Strategy] = (),
    report: Callable[[int, int], None] | None = None,
) -> Window:
    """Plan consecutive iterations so that their makespans and changes of strategy take least together.

    With free changes every iteration is at least as fast as planned alone; with infinitely costly ones all run on the
    strategy that is best for them together.

    Parameters
    ----------
    problems
        The iterations, in order; of one cluster and with the same options and candidates.
    switch_ms
        Cost of a change of strategy.
    effort
        How hard to search on each iteration; the wall clock is that of the whole window.
    initial
        Strategy that runs before the window; without one the first iteration may begin with any, free of cost.
    warm
        Strategies whose communicators exist.
    warm_switch_ms
        Cost of a change to one of those.
    switch_cost
        Cost of each change, in place of the three above.
    candidates
        Further strategies to consider, for instance those of a proposal. Where the problems have candidates only
        these are used.
    report
        Told how many of how many plans are done.

    Raises
    ------
    PlanningFault
        If an iteration cannot be planned.
    ValueError
        If the problems are of unlike clusters or options.
    """
    _check_alike(problems)
    tell = report or (lambda _done, _total: None)
    judges = []
    for index, problem in enumerate(problems):
        tell(index, 2 * len(problems))
        judges.append(Judge(problem, effort))
    is_listed = any(problem.candidates for problem in problems)

    def cost(previous: Strategy | None, following: Strategy) -> float:
        if previous is None or previous == following:
            return 0.0
        if switch_cost is not None:
            return switch_cost(previous, following)
        return warm_switch_ms if following in warm else switch_ms

    table = _Table(judges, initial, cost)
    table.add(strategy for judge in judges for strategy in judge.sources())
    table.add(() if is_listed else (*candidates, *([initial] if initial else [])))
    if problems and not is_listed and not problems[0].options.homogeneous:
        _refine(table, Cluster(problems[0].kinds, problems[0].pools), effort)
    path = table.path()
    solutions = []
    for index, (problem, judge, state) in enumerate(zip(problems, judges, path.states, strict=True)):
        tell(len(problems) + index, 2 * len(problems))
        solutions.append(_planned(problem, judge, table.strategies[state], effort))
    changes = list(pairwise([initial, *(solution.strategy for solution in solutions)]))
    switched = [cost(previous, following) for previous, following in changes if following is not None]
    return Window(
        solutions=tuple(solutions),
        total_ms=sum(solution.makespan_ms for solution in solutions) + sum(switched),
        num_switches=sum(previous not in {None, following} for previous, following in changes),
        judged_ms=path.total_ms,
        greedy_ms=table.total(table.greedy()),
        never_ms=table.total(table.never()),
    )


class _Table:
    """Makespans of the iterations on the strategies considered, and what changes between them cost."""

    def __init__(
        self,
        judges: Sequence[Judge],
        initial: Strategy | None,
        cost: Callable[[Strategy | None, Strategy], float],
    ) -> None:
        self._judges = judges
        self._initial = initial
        self._cost = cost
        self.strategies: list[Strategy] = []
        self._makespans_ms: Floats = np.empty((len(judges), 0))
        self._switches_ms: Floats = np.empty((0, 0))
        self._before_ms: Floats = np.empty(0)

    def add(self, strategies: Iterable[Strategy]) -> None:
        """Judge strategies that are new; those that can run no iteration are left out."""
        new = [strategy for strategy in dict.fromkeys(strategies) if strategy not in self.strategies]
        if not new or not self._judges:
            return
        columns = np.array([judge.row(new) for judge in self._judges])
        able = np.flatnonzero(np.isfinite(columns).any(axis=0))
        self.strategies += [new[column] for column in able]
        self._makespans_ms = np.concatenate([self._makespans_ms, columns[:, able]], axis=1)
        self._switches_ms = np.array([[self._cost(a, b) for b in self.strategies] for a in self.strategies])
        self._before_ms = np.array([self._cost(self._initial, strategy) for strategy in self.strategies])

    def path(self) -> Path:
        """Strategies with the least total."""
        return cheapest_path(self._makespans_ms, self._switches_ms, self._before_ms)

    def greedy(self) -> list[int]:
        """Best strategy of each iteration alone."""
        return [int(row.argmin()) for row in self._makespans_ms]

    def never(self) -> list[int]:
        """Find the one strategy that is best for all iterations."""
        alone = [[state] * len(self._judges) for state in range(len(self.strategies))]
        return min(alone, key=self.total, default=[])

    def total(self, states: Sequence[int]) -> float:
        """Makespans and costs of changes of a sequence of strategies."""
        if not states:
            return 0.0
        run = sum(float(row[state]) for row, state in zip(self._makespans_ms, states, strict=True))
        changes = sum(float(self._switches_ms[previous, state]) for previous, state in pairwise(states))
        return run + changes + float(self._before_ms[states[0]])

    def least_ms(self) -> float:
        """Total if changes were free."""
        return float(self._makespans_ms.min(axis=1).sum())


def _refine(table: _Table, cluster: Cluster, effort: Effort) -> None:
    """Consider strategies near those in use, while changes of strategy cost something: some suit several iterations."""
    for _ in range(REFINING_STEPS):
        path = table.path()
        if path.total_ms <= table.least_ms() * (1 + 1e-9) or effort.remaining_ms() <= 0:
            break
        near = dict.fromkeys([*path.states, *table.never()[:1]])
        table.add(islice(varied(cluster, [table.strategies[state] for state in near], table.strategies), REFINED))


def _check_alike(problems: Sequence[Problem]) -> None:
    for index, problem in enumerate(problems):
        first = problems[0]
        for what in ("pools", "kinds", "options", "candidates"):
            if getattr(problem, what) != getattr(first, what):
                raise ValueError(f"iteration {index} has other {what} than iteration 0; plan them in separate windows")


def _planned(problem: Problem, judge: Judge, strategy: Strategy, effort: Effort) -> Solution:
    """Plan an iteration in full on the strategy chosen for it, at least as well as it was judged."""
    if strategy == judge.best.strategy:
        return judge.best
    found = solve(replace(problem, candidates=(strategy,)), effort)
    if found.makespan_ms > judge.makespan_ms(strategy) * (1 + 1e-9):
        return judge.quick_plan(strategy)
    if problem.candidates:
        return found
    # Every strategy could have been chosen, so the plan is held against the bound over all of them.
    bound_ms = max(found.all_strategies_bound_ms, judge.best.all_strategies_bound_ms)
    return replace(
        found,
        lower_bound_ms=bound_ms,
        bound_scope="all-strategies",
        all_strategies_bound_ms=bound_ms,
        optimal=found.makespan_ms <= bound_ms * (1 + OPTIMAL_GAP),
    )
