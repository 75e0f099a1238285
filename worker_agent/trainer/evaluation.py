"""The loss over a whole data set, planned batch by batch as training is."""

from typing import Any

from worker_agent.executor.runner import IterationRunner
from worker_agent.trainer.faults import DataRefused
from worker_agent.trainer.loader import BatchLoader, GlobalBatch
from worker_agent.trainer.planning import PlanFeed, Planner, announced, taken
from worker_agent.trainer.settings import BatchLimit


def mean_token_loss(
    runner: IterationRunner, planner: Planner, data: Any, limit: BatchLimit, vocab_size: int | None = None
) -> float:
    """Return the mean token loss (nats) over data, without a step; a collective that every rank calls.

    Parameters
    ----------
    runner
        Runs the plans.
    planner
        Who makes them.
    data
        Sequences, as for training; read once, in their own order.
    limit
        Where a batch ends.
    vocab_size
        Token ids must be below it; None leaves that to the runner.

    Raises
    ------
    DataRefused
        On every rank, if no sequence predicts a token.
    worker_agent.executor.faults.ExecutionFault
        If a batch could not be read, planned or run.
    """
    loss_sum, num_targets, number = 0.0, 0, 0
    loader = BatchLoader(data, limit, shuffle=False, vocab_size=vocab_size, name="evaluation data")
    with PlanFeed(planner, numbered=False) as feed:
        batch: GlobalBatch | None = announced(loader, feed, number)
        while batch is not None:
            plan = taken(feed, number, batch).plan
            following = None if batch.ends_epoch else announced(loader, feed, number + 1)
            loss_sum += runner.evaluate(plan, batch.held) * plan.num_targets
            num_targets += plan.num_targets
            batch, number = following, number + 1
    if not num_targets:
        raise DataRefused("the evaluation data predicts no token; give sequences of at least 2 tokens")
    return loss_sum / num_targets
