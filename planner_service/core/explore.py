"""The search over all strategies: from what linear programs use and what is homogeneous, by exchanging replicas.

Strategies are judged by a first plan of the batch; those that a bound rules out are not built. How many are built is
fixed by the size of the batch, so that the same request always explores the same strategies.
"""

from collections.abc import Callable, Iterable

import numpy as np

from planner_service.core.bounds import Fleet, Weights
from planner_service.core.certify import Certifier
from planner_service.core.homogeneous import keeps_group_limit
from planner_service.core.infeasible import Demand
from planner_service.core.neighbours import Cluster, Counts
from planner_service.core.prices import Prices, guessed_weights
from planner_service.core.problem import Strategy
from planner_service.core.screen import MAX_MICRO_BATCHES
from planner_service.core.select import Candidate, Search

HOMOGENEOUS_IMPROVED = 2
"""Homogeneous strategies that are refined before others are tried."""

NEAR_BOUND = 0.1
"""Homogeneous strategies are refined before others are tried where the best is within this share of the bound."""

MOST_BUILT, FEWEST_BUILT, ITEMS_BUILT = 50, 4, 10_000
"""First plans built in one exploration: as many as place so many items, within limits."""

MOST_SCALE = 16.0
"""The figures here are for a CP-SAT budget of `USUAL_EFFORT_S`; they grow with it, up to so many times."""

USUAL_EFFORT_S = 0.15

KIND_PENALTY = 0.02
"""Slack that a strategy must have more for each kind: of those that look alike the simpler are tried first."""

BUILT_AT_ONCE = 10
"""Neighbours of the best strategy that are built before the best of them is gone on from."""

PRICED_PROGRAMS = 3
"""Newest linear programs whose weights rank strategies."""

RELAXING_PROGRAMS = 6
PROVING_PROGRAMS = 30
PROGRAMS_A_PROBE = 10
"""Linear programs of the whole relaxation, of all probes of the branch-and-bound, and of one."""


class Explorer:
    """Candidates from all strategies of the cluster, and the bound over all of them.

    Parameters
    ----------
    search
        The solve that this is part of; its bound over all strategies is raised.
    candidates
        First plans of some strategies, at least one.
    """

    def __init__(self, search: Search, candidates: Iterable[Candidate]) -> None:
        self._search = search
        self._cluster = Cluster(search.table.kinds, search.problem.pools)
        fleet = Fleet.of_cluster(search.table.kinds, search.problem.pools)
        self._certifier = Certifier(fleet, search.table, search.all_ms, search.may_go_on)
        self._built = {self._cluster.counts(found.strategy): found for found in candidates}
        self._seen = set(self._built)
        self._num_units = Demand.of(search.batch, search.screened.groups, search.rules).num_units
        self._guesses = guessed_weights(search.ranking)
        self._expanded: set[Strategy] = set()
        self._num_rounded = 0
        num_items = max(len(search.work(found.strategy).items) for found in self._built.values())
        self._scale = min(MOST_SCALE, search.effort.deterministic_s / USUAL_EFFORT_S)
        self._budget = max(FEWEST_BUILT, round(self._scale * min(MOST_BUILT, ITEMS_BUILT / num_items)))

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates, best first."""
        return sorted(self._built.values(), key=lambda found: (found.dispatched.makespan_ms, str(found.strategy)))

    def relax(self) -> None:
        """Bound all strategies by linear programs, whose solutions are the first strategies to try."""
        self._certifier.relax(self._good_enough_ms(), RELAXING_PROGRAMS)
        self._search.all_ms = max(self._search.all_ms, self._certifier.bound_ms)

    def prove(self) -> None:
        """Raise the bound towards the best makespan by probing times in between, within a budget of programs."""
        allowed = self._certifier.num_programs + round(PROVING_PROGRAMS * max(1.0, self._scale))
        low, high = self._search.all_ms, self._good_enough_ms()
        probe = high
        while high > low * (1 + self._search.problem.options.target_gap) and self._certifier.num_programs < allowed:
            most = min(round(PROGRAMS_A_PROBE * max(1.0, self._scale)), allowed - self._certifier.num_programs)
            if not self._search.may_go_on():
                break
            if self._certifier.prove(probe, most):
                low = max(probe, self._certifier.bound_ms)
            else:
                high = probe
            probe = 0.5 * (low + high)
        self._search.all_ms = max(self._search.all_ms, self._certifier.bound_ms)

    def explore(self) -> None:
        """Try strategies that the linear programs' solutions round to, then neighbours of the best ones."""
        budget = self._budget
        fractional = self._certifier.tried[self._num_rounded :][::-1]
        self._num_rounded = len(self._certifier.tried)
        rounded = dict.fromkeys(counts for solution in fractional for counts in self._cluster.whole(solution.replicas))
        budget -= self._build(rounded, max(FEWEST_BUILT // 2, budget // 3))
        while budget > 0 and self._search.may_go_on() and not self.is_good_enough():
            centre = next((found for found in self.candidates if found.strategy not in self._expanded), None)
            if centre is None:
                break
            self._expanded.add(centre.strategy)
            near = dict.fromkeys(self._cluster.neighbours(self._cluster.counts(centre.strategy)))
            budget -= max(1, self._build(near, min(budget, BUILT_AT_ONCE)))

    def _best_ms(self) -> float:
        return min(found.dispatched.makespan_ms for found in self._built.values())

    def _good_enough_ms(self) -> float:
        return self._best_ms() / (1 + self._search.problem.options.target_gap)

    def is_good_enough(self) -> bool:
        """Whether the best makespan is within the target gap of the bound over all strategies."""
        return self._search.all_ms >= self._good_enough_ms()

    def refine_best(self) -> None:
        """Refine the best candidate, and where some sequence alone keeps it from getting better the best that may."""
        self.adopt(self._search.refined(self.candidates[0]))
        if not self.is_good_enough() and self._is_stuck(self.candidates[0].strategy):
            free = next((found for found in self.candidates if not self._is_stuck(found.strategy)), None)
            if free is not None:
                self.adopt(self._search.refined(free))

    def is_near_bound(self) -> bool:
        """Whether the best makespan is so near the bound that refining it may be worth more than other strategies."""
        return self._best_ms() <= self._search.all_ms * (1 + NEAR_BOUND)

    def adopt(self, candidate: Candidate) -> None:
        """Take over a better plan of a strategy."""
        self._built[self._cluster.counts(candidate.strategy)] = candidate

    def _build(self, tried: Iterable[Counts], most: int) -> int:
        """Build first plans of the likeliest new strategies that their bounds do not rule out; return how many."""
        fitting = tried if self._search.rules.may_idle else dict.fromkeys(map(self._trimmed, tried))
        new = [counts for counts in fitting if counts not in self._seen]
        if not new or not self._search.may_go_on():
            return 0
        slack = Prices(self._search.ranking, self._weights(), self._best_ms()).slack(new)
        num_built = 0
        num_kinds = np.array([sum(count > 0 for count in counts) for counts in new])
        for index in np.argsort(KIND_PENALTY * num_kinds - slack, kind="stable"):
            if num_built == most or slack[index] < 0 or not self._search.may_go_on():
                break
            counts, strategy = new[index], self._cluster.strategy(new[index])
            self._seen.add(counts)
            if not self._may_run(strategy) or self._is_stuck(strategy):
                continue
            num_built += 1
            found = self._search.first(strategy, self._search.all_ms)
            if found is not None:
                self._built[counts] = found
        return num_built

    def _is_stuck(self, strategy: Strategy) -> bool:
        """Whether some sequence alone takes a strategy as long as the best makespan, so that it cannot be better."""
        return self._search.ranking.rows(strategy).floor_ms >= self._best_ms() * (1 - 1e-9)

    def _trimmed(self, counts: Counts) -> Counts:
        """Take away the smallest replicas until there are no more than the batch can keep busy."""
        rules, kept = self._search.rules, list(counts)
        needed = [rules.permitted(kind.pp) for kind in self._cluster.kinds]
        over = sum(count * each for count, each in zip(kept, needed, strict=True)) - self._num_units
        for k in sorted(range(len(kept)), key=lambda k: (self._cluster.kinds[k].num_ranks, k)):
            while over > 0 and kept[k] and sum(kept) > 1:
                kept[k] -= 1
                over -= needed[k]
        return tuple(kept)

    def _weights(self) -> list[Weights]:
        """Weights to rank strategies by: guesses, and those of the newest linear programs."""
        return [*self._guesses, *(found.weights for found in self._certifier.tried[-PRICED_PROGRAMS:])]

    def _may_run(self, strategy: Strategy) -> bool:
        search = self._search
        return (
            bool(strategy.groups)
            and strategy.max_tokens >= search.batch.longest
            and search.num_occupied <= MAX_MICRO_BATCHES * strategy.mean_max_tokens
            and keeps_group_limit(strategy, search.problem.options.max_process_groups)
            and search.may_be_placed(strategy)
        )


def search_all_strategies(
    search: Search, candidates: list[Candidate], report: Callable[[Candidate], None]
) -> list[Candidate]:
    """Search all strategies of the cluster from the homogeneous ones, and bound all of them; best candidates first."""
    explorer = Explorer(search, candidates)
    if search.may_go_on():
        explorer.relax()
        if explorer.is_near_bound():
            # What homogeneous strategies come to is the least that the search owes, whatever the clock cuts later.
            for candidate in explorer.candidates[:HOMOGENEOUS_IMPROVED]:
                explorer.adopt(search.refined(candidate))
            report(explorer.candidates[0])
        explorer.explore()
    explorer.refine_best()
    report(explorer.candidates[0])
    if not explorer.is_good_enough() and search.may_go_on():
        explorer.prove()
        explorer.explore()
    return explorer.candidates
