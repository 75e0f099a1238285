"""Iterations to come: batches read, plans fetched, sequences on the way while another iteration computes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from worker_agent.executor.faults import PlanningFailed
from worker_agent.executor.runner import IterationRunner
from worker_agent.trainer.loader import BatchLoader, GlobalBatch
from worker_agent.trainer.planning import PlanFeed, RunPlan, announced

ITERATIONS_AHEAD = 2
"""Batches read ahead: the plan of the later one is made while the sequences of the nearer one travel."""


@dataclass
class _Coming:
    """An announced iteration, and once it was asked for its plan, or why it has none."""

    iteration: int
    batch: GlobalBatch
    plan: RunPlan | None = None
    fault: PlanningFailed | None = None


class Lookahead:
    """The iterations of a run in turn; every rank of the group builds one and calls it alike.

    Parameters
    ----------
    loader, feed
        Batches and their plans.
    runner
        Prepares iterations whose plans are there.
    is_over
        Whether a run ends before an iteration, given its number and the epoch that the batch before it ended in.
    """

    def __init__(
        self, loader: BatchLoader, feed: PlanFeed, runner: IterationRunner, is_over: Callable[[int, int], bool]
    ) -> None:
        self._loader = loader
        self._feed = feed
        self._runner = runner
        self._is_over = is_over
        self._coming: deque[_Coming] = deque()

    def take(self, iteration: int) -> tuple[GlobalBatch, RunPlan]:
        """Return an iteration's batch and plan, and begin to prepare the next; a collective that every rank calls.

        Raises
        ------
        worker_agent.executor.faults.PlanningFailed
            On every rank, if the iteration has no plan; that the next one has none is said when that one is taken.
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        if not self._coming:
            self._coming.append(_Coming(iteration, announced(self._loader, self._feed, iteration)))
        own = self._coming.popleft()
        self._ask(own)
        if own.fault is not None or own.plan is None:
            raise own.fault or PlanningFailed("NoPlan", f"iteration {iteration} was not announced")
        if self._coming:
            # Announced one iteration ago or more, so that its plan is there, or nearly.
            self._prepare(self._coming[0])
        last = self._coming[-1] if self._coming else own
        while len(self._coming) < ITERATIONS_AHEAD and not self._is_over(last.iteration + 1, last.batch.after.epoch):
            last = _Coming(last.iteration + 1, announced(self._loader, self._feed, last.iteration + 1))
            self._coming.append(last)
        return own.batch, own.plan

    def _ask(self, coming: _Coming) -> None:
        if coming.plan is None and coming.fault is None:
            try:
                coming.plan = self._feed.take(coming.iteration)
            except PlanningFailed as fault:
                coming.fault = fault

    def _prepare(self, coming: _Coming) -> None:
        self._ask(coming)
        if coming.plan is not None:
            self._runner.prepare(coming.plan.plan, coming.batch.held)
