"""What to do when a run has stopped: pure."""

from pathlib import Path

from worker_agent.executor.faults import ExecutionFault
from worker_agent.trainer.checkpoint_folder import iterations_of
from worker_agent.trainer.faults import TrainingStopped
from worker_agent.trainer.settings import CheckpointSettings


def stopped(
    fault: ExecutionFault, iteration: int, checkpoint: Path | None, settings: CheckpointSettings | None
) -> TrainingStopped:
    """Return the fault that ends a run, with the advice how to go on.

    Parameters
    ----------
    fault
        What the executor, the data or the planner met.
    iteration
        The iteration that was not finished, counted from 0.
    checkpoint
        The newest whole checkpoint, if there is one.
    settings
        Where checkpoints lie, if the run writes any.
    """
    what = f"iteration {iteration} was not finished ({type(fault).__name__}): {fault}"
    return TrainingStopped(f"{what}. {_advice(checkpoint, settings)}", iteration, checkpoint)


def _advice(checkpoint: Path | None, settings: CheckpointSettings | None) -> str:
    if settings is None:
        return "The run writes no checkpoints, so it begins anew; give checkpoints=CheckpointSettings(folder) next time"
    if checkpoint is None:
        return f"No checkpoint had been written to {settings.path} yet, so the run begins anew"
    how = "start the same command again" if settings.resume != "never" else "start again with resume='newest'"
    return f"To go on from checkpoint {checkpoint} ({iterations_of(checkpoint)} iterations done), {how}"
