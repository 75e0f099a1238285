"""Where a run begins: at its newest whole checkpoint, or anew."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from worker_agent.trainer.checkpoint import CheckpointWriter, Progress
from worker_agent.trainer.faults import CheckpointRefused
from worker_agent.trainer.settings import CheckpointSettings


@dataclass(frozen=True)
class Resumed:
    """A checkpoint that was loaded.

    Attributes
    ----------
    checkpoint
        Where it lies.
    progress
        How far its run had come.
    schedule
        State of its learning-rate scheduler.
    """

    checkpoint: Path
    progress: Progress
    schedule: dict[str, Any]


def resume(
    writer: CheckpointWriter, settings: CheckpointSettings, shards: Mapping[str, Tensor], seed: int
) -> Resumed | None:
    """Load the newest whole checkpoint if the settings want it; a collective that every rank of the group calls.

    Parameters
    ----------
    writer
        Reads the checkpoints.
    settings
        Whether to resume.
    shards
        This rank's part of each flat tensor, by name; they are overwritten.
    seed
        Seed of the order of the data.

    Returns
    -------
    Resumed or None
        What was loaded; None if the run begins anew.

    Raises
    ------
    CheckpointRefused
        On every rank, if there is none where there must be one, one where there must be none, or it reads the data in
        another order.
    worker_agent.executor.faults.IterationFailed
        On every rank, if it cannot be loaded.
    """
    newest = writer.newest()
    if settings.resume == "never" and newest is not None:
        raise CheckpointRefused(
            f"resume is 'never' but {settings.path} holds {newest.name}; name an empty folder, or resume from it"
        )
    if newest is None:
        if settings.resume == "required":
            raise CheckpointRefused(
                f"resume is 'required' but {settings.path} holds no whole checkpoint; see whether the folder is the "
                "right one, or begin anew with resume='newest'"
            )
        return None
    progress, schedule = writer.load(newest, shards)
    if progress.data_seed != seed:
        raise CheckpointRefused(
            f"checkpoint {newest} reads the data in the order of seed {progress.data_seed} but this run has seed "
            f"{seed}; give seed={progress.data_seed}"
        )
    return Resumed(newest, progress, schedule)
