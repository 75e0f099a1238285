"""Where a run begins: at its newest whole checkpoint, or anew."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from worker_agent.trainer.checkpoint import CheckpointWriter
from worker_agent.trainer.faults import CheckpointCorrupt, CheckpointRefused
from worker_agent.trainer.progress import DataOrder, Progress
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
    writer: CheckpointWriter, settings: CheckpointSettings, shards: Mapping[str, Tensor], order: DataOrder
) -> Resumed | None:
    """Load the newest whole checkpoint if the settings want it; a collective that every rank of the group calls.

    One that is corrupt is passed over for an older one, with a warning.

    Parameters
    ----------
    writer
        Reads the checkpoints.
    settings
        Whether to resume.
    shards
        This rank's part of each flat tensor, by name; they are overwritten.
    order
        In which order this run reads its data.

    Returns
    -------
    Resumed or None
        What was loaded; None if the run begins anew.

    Raises
    ------
    CheckpointRefused
        On every rank, if there is none where there must be one, one where there must be none, all are corrupt,
        or it reads the data in another order.
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
    resumed = _newest_intact(writer, newest, shards)
    progress = resumed.progress
    differs = progress.order.difference(order, progress.position)
    if differs is not None:
        raise CheckpointRefused(f"checkpoint {resumed.checkpoint} reads the data {differs}")
    return resumed


def _newest_intact(writer: CheckpointWriter, newest: Path, shards: Mapping[str, Tensor]) -> Resumed:
    tried: list[str] = []
    checkpoint: Path | None = newest
    while checkpoint is not None:
        try:
            return Resumed(checkpoint, *writer.load(checkpoint, shards))
        except CheckpointCorrupt as corrupt:
            tried.append(str(corrupt))
            if writer.leads:
                warnings.warn(f"{corrupt}; looking for an older one", stacklevel=2)
            checkpoint = writer.newest(before=checkpoint)
    raise CheckpointRefused(
        f"{'; '.join(tried)}. There is no older one: mend the disk, or name an empty folder to begin anew"
    )
