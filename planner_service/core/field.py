"""Strategies in competition: each judged on every batch, and what a choice of few of them is worth."""

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest

import numpy as np

from planner_service.core.choose import Chosen, choose, set_value
from planner_service.core.judge import Judge
from planner_service.core.neighbours import Cluster
from planner_service.core.place import place
from planner_service.core.problem import Floats, Pool, Problem, Strategy


@dataclass(frozen=True)
class Proposed:
    """A proposed strategy.

    Attributes
    ----------
    share
        Share of the batches, by weight, on which it is the fastest of the set.
    mean_ms
        Its mean makespan over all batches; infinite if it cannot run all of them.
    """

    strategy: Strategy
    share: float
    mean_ms: float


@dataclass(frozen=True)
class Proposal:
    """Strategies to keep, those that win most batches first, and what they are worth.

    Makespans are those of quick plans (see `planner_service.core.judge`), means are over the batches by their weights.

    Attributes
    ----------
    mean_ms
        With the best strategy of the set on each batch; infinite if no set within the limits runs all of them.
    single, single_ms
        The one strategy that is best for all batches, and its mean; None and infinite if none can run all of them.
    all_ms
        With the best of all strategies found.
    bound_ms
        Of the batches' lower bounds over all strategies.
    num_batches, num_considered
        Batches drawn and strategies judged.
    num_process_groups
        Process groups of two ranks or more that the set needs, those that strategies share counted once.
    """

    strategies: tuple[Proposed, ...]
    mean_ms: float
    single: Strategy | None
    single_ms: float
    all_ms: float
    bound_ms: float
    num_batches: int
    num_considered: int
    num_process_groups: int


def process_groups_of(strategy: Strategy, pools: Sequence[Pool]) -> frozenset[tuple[int, ...]]:
    """List the process groups of two ranks or more that a strategy needs where it is placed.

    Raises
    ------
    ValueError
        If it cannot be placed.
    """
    ranks = place(strategy.replicas, pools)
    if ranks is None:
        raise ValueError(f"strategy {strategy} cannot be placed")
    groups: set[tuple[int, ...]] = set()
    for kind, own in zip(strategy.replicas, ranks, strict=True):
        layout = kind.layout
        grid = np.array(own).reshape(layout.pp, layout.cp, layout.tp)
        for axis, size in enumerate(grid.shape):
            if size > 1:
                groups |= {tuple(group) for group in np.moveaxis(grid, axis, -1).reshape(-1, size).tolist()}
    return frozenset(groups)


def varied(cluster: Cluster, strategies: Sequence[Strategy], known: Container[Strategy]) -> Iterator[Strategy]:
    """Yield strategies that are not known yet, by exchanging replicas of these, of each in turn."""
    near = [cluster.neighbours(cluster.counts(strategy)) for strategy in strategies]
    seen: set[Strategy] = set()
    for counts in chain.from_iterable(zip_longest(*near)):
        strategy = None if counts is None else cluster.strategy(counts)
        if strategy is not None and strategy.groups and strategy not in known and strategy not in seen:
            seen.add(strategy)
            yield strategy


class Field:
    """All strategies considered, with the makespan of each batch on each of them.

    Parameters
    ----------
    problem
        The cluster and its limits.
    judges
        One for each batch.
    weights
        Weight of each batch; all positive, their sum is 1. Shape (B,).
    published
        Strategies of the published program; what is chosen is not worse than the best of these alone.
    longest
        Longest sequence (tokens) to hold besides.
    """

    def __init__(
        self,
        problem: Problem,
        judges: Sequence[Judge],
        weights: Floats,
        published: Sequence[Strategy],
        longest: int,
    ) -> None:
        alignment = problem.batch.alignment
        self._longest = -(-longest // alignment) * alignment
        self._problem = problem
        self._judges = judges
        self._weights = weights
        self._published = published
        self._cluster = Cluster(problem.kinds, problem.pools)
        self._strategies: list[Strategy] = []
        self._number: dict[Strategy, int] = {}
        self._groups: list[frozenset[tuple[int, ...]]] = []
        self._makespans_ms: Floats = np.empty((len(judges), 0))
        self._charged: Floats = np.empty((len(judges) + 1, 0))

    def add(self, strategies: Iterable[Strategy], tell: Callable[[int, int], None] | None = None) -> None:
        """Judge new strategies on every batch; those that run none of them are left out."""
        new = [strategy for strategy in dict.fromkeys(strategies) if strategy not in self._number]
        rows = []
        for index, judge in enumerate(self._judges):
            if tell is not None:
                tell(index, len(self._judges))
            rows.append(judge.row(new))
        columns = np.array(rows)
        able = np.isfinite(columns).any(axis=0)
        for strategy in (new[column] for column in np.flatnonzero(able)):
            self._number[strategy] = len(self._strategies)
            self._strategies.append(strategy)
            self._groups.append(process_groups_of(strategy, self._problem.pools))
        self._makespans_ms = np.concatenate([self._makespans_ms, columns[:, able]], axis=1)
        holds = [0.0 if strategy.max_tokens >= self._longest else np.inf for strategy in self._strategies]
        self._charged = np.vstack(
            [self._makespans_ms * self._weights[:, None], holds]
        )  # as if one more batch had the longest sequence alone

    def choose(self, most: int, start: Chosen) -> Chosen:
        """Choose strategies; not worse than the start, nor than what is best of the published ones alone."""
        columns = sorted(self._number[strategy] for strategy in self._published if strategy in self._number)
        starts = [start] if start else []
        if columns:
            of_published = choose(
                self._charged[:, columns],
                most,
                lambda chosen: self._keeps_limit(tuple(columns[number] for number in chosen)),
            )
            starts.append(tuple(columns[number] for number in of_published))
        return choose(self._charged, most, self._keeps_limit, starts)

    def neighbours(self, columns: Chosen) -> Iterator[Strategy]:
        """Vary some strategies by exchanging replicas, in turn."""
        return varied(self._cluster, [self._strategies[column] for column in columns], self._number)

    def proposal(self, chosen: Chosen) -> Proposal:
        """Say what a choice is worth."""
        own = self._makespans_ms[:, list(chosen)]
        winners = own.argmin(axis=1)
        means = self._weights @ self._makespans_ms
        single = self.single
        serves_all = set_value(self._charged, (single,))[0] == 0
        proposed = [
            Proposed(self._strategies[column], float(self._weights[winners == number].sum()), float(means[column]))
            for number, column in enumerate(chosen)
        ]
        return Proposal(
            strategies=tuple(sorted(proposed, key=lambda entry: (-entry.share, entry.mean_ms, str(entry.strategy)))),
            mean_ms=float(self._weights @ own.min(axis=1)),
            single=self._strategies[single] if serves_all else None,
            single_ms=float(means[single]) if serves_all else float("inf"),
            all_ms=float(self._weights @ self._makespans_ms.min(axis=1)),
            bound_ms=float(self._weights @ np.array([judge.best.all_strategies_bound_ms for judge in self._judges])),
            num_batches=len(self._judges),
            num_considered=len(self._strategies),
            num_process_groups=self._num_groups(chosen),
        )

    @property
    def single(self) -> int:
        """Number of the strategy that is best for all batches."""
        allowed = (column for column in range(len(self._strategies)) if self._keeps_limit((column,)))
        return min(allowed, key=lambda column: (set_value(self._charged, (column,)), column))

    def _num_groups(self, chosen: Chosen) -> int:
        return len(frozenset[tuple[int, ...]]().union(*(self._groups[column] for column in chosen)))

    def _keeps_limit(self, chosen: Chosen) -> bool:
        most = self._problem.options.max_process_groups
        return most is None or self._num_groups(chosen) <= most
