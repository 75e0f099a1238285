"""Iterations to come: batches read, plans fetched, sequences on the way while another iteration computes."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from worker_agent.executor.faults import ExecutionFault, IterationFailed, PlanningFailed, RankLost
from worker_agent.executor.runner import IterationRunner
from worker_agent.trainer.loader import BatchLoader, GlobalBatch
from worker_agent.trainer.planning import PlanFeed, RunPlan, announced, taken

ITERATIONS_AHEAD = 2
"""Batches read ahead, unless told otherwise: the plan of the later one is made while the sequences of the nearer one
travel."""


@dataclass
class _Coming:
    """An iteration to come: its batch and, once it was asked for, its plan; or why it cannot be run."""

    iteration: int
    batch: GlobalBatch | None = None
    plan: RunPlan | None = None
    fault: ExecutionFault | None = None


class Lookahead:
    """The iterations of a run in turn; every rank of the group builds one and calls it alike.

    Whatever goes wrong while an iteration to come is read, planned or prepared is that one's fault: those before it
    are run.

    Parameters
    ----------
    loader, feed
        Batches and their plans.
    runner
        Prepares iterations whose plans are there.
    is_over
        Whether a run ends before an iteration, given its number and the epoch that the batch before it ended in.
    window
        Batches that are read, and whose plans are asked for, ahead of the one that runs.
    """

    def __init__(
        self,
        loader: BatchLoader,
        feed: PlanFeed,
        runner: IterationRunner,
        is_over: Callable[[int, int], bool],
        window: int = ITERATIONS_AHEAD,
    ) -> None:
        self._loader = loader
        self._feed = feed
        self._runner = runner
        self._is_over = is_over
        self._window = window
        self._coming: deque[_Coming] = deque()

    def take(self, iteration: int) -> tuple[GlobalBatch, RunPlan]:
        """Return an iteration's batch and plan, and begin to prepare the next; a collective that every rank calls.

        Raises
        ------
        DataRefused
            On every rank, if there is no sequence where the iteration's batch begins.
        worker_agent.executor.faults.IterationFailed
            On every rank, if a rank cannot read its part of the iteration's batch.
        worker_agent.executor.faults.PlanningFailed
            On every rank, if the iteration has no plan.
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        if not self._coming:
            self._coming.append(self._read(iteration))
        own = self._coming.popleft()
        self._ask(own)
        if own.fault is not None:
            raise own.fault
        if own.batch is None or own.plan is None:
            raise PlanningFailed("NoPlan", f"iteration {iteration} was not announced")
        if self._coming:
            # Announced one iteration ago or more, so that its plan is there, or nearly.
            self._prepare(self._coming[0])
        last = self._coming[-1] if self._coming else own
        # Behind a batch that could not be read nothing is: the run ends there.
        while len(self._coming) < self._window and last.batch is not None:
            if self._is_over(last.iteration + 1, last.batch.after.epoch):
                break
            last = self._read(last.iteration + 1)
            self._coming.append(last)
        return own.batch, own.plan

    def _read(self, iteration: int) -> _Coming:
        try:
            return _Coming(iteration, announced(self._loader, self._feed, iteration))
        except RankLost:
            raise
        except ExecutionFault as fault:
            return _Coming(iteration, fault=fault)

    def _ask(self, coming: _Coming) -> None:
        if coming.plan is None and coming.fault is None and coming.batch is not None:
            try:
                coming.plan = taken(self._feed, coming.iteration, coming.batch)
            except (PlanningFailed, IterationFailed) as fault:
                coming.fault = fault

    def _prepare(self, coming: _Coming) -> None:
        self._ask(coming)
        if coming.plan is not None and coming.batch is not None:
            self._runner.prepare(coming.plan.plan, coming.batch.held)
