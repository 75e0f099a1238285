"""Blocks that end the same way on every rank."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from worker_agent.executor.agree import settle
from worker_agent.executor.collectives import Group
from worker_agent.executor.faults import RankLost
from worker_agent.trainer.faults import CheckpointRefused


@contextmanager
def settled(doing: str, group: Group = None) -> Iterator[None]:
    """End a block that every rank of the group runs: in order on every rank, or with the same fault on every rank.

    Parameters
    ----------
    doing
        What the block does, for the fault.
    group
        The process group; by default all ranks.

    Raises
    ------
    worker_agent.executor.faults.IterationFailed
        On every rank, if the block raised on any rank.
    worker_agent.executor.faults.RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    fault: Exception | None = None
    unsettled: CheckpointException | None = None
    try:
        yield
    except RankLost:
        raise
    except CheckpointException as failed:
        # Every rank is told of all; each passes on its own, so that nothing is said once for each rank.
        unsettled = failed
        own = failed.failures.get(dist.get_rank(group))
        fault = None if own is None else CheckpointRefused(str(own[0]))
    except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
        fault = caught
    settle(fault, doing, group)
    if unsettled is not None:
        raise unsettled
