"""What a checkpoint holds of a rank's training state, as flat tensors by name, and the way back."""

from collections.abc import Mapping

from torch import Tensor

from worker_agent.executor.shards import ShardedState
from worker_agent.trainer.settled import settled

MASTERS = "masters"
"""Name of the master weights among the flat tensors of a checkpoint."""


def checkpoint_shards(state: ShardedState) -> dict[str, Tensor]:
    """Return this rank's part of each flat tensor that a checkpoint holds; a collective that every rank calls.

    The masters are the live ones, so that reading a checkpoint into them is enough; the optimizer's states are copies.

    Raises
    ------
    worker_agent.executor.faults.IterationFailed
        On every rank, if the optimizer's states cannot be had.
    """
    states: dict[str, Tensor] = {}
    with settled("gathering the optimizer's states"):
        states = state.optimizer_shards()
    return {MASTERS: state.masters, **states}


def take_over(state: ShardedState, shards: Mapping[str, Tensor]) -> None:
    """Give the optimizer the states that a checkpoint was read into; a collective that every rank calls.

    Raises
    ------
    worker_agent.executor.faults.IterationFailed
        On every rank, if one's optimizer does not take them.
    """
    with settled("taking over the optimizer's states"):
        state.load_optimizer_shards({name: shard for name, shard in shards.items() if name != MASTERS})
