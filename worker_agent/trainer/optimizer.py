"""The optimizer and the learning-rate scheduler of a run, from its settings."""

from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from worker_agent.trainer.faults import CheckpointRefused
from worker_agent.trainer.learning_rate import decay_end, learning_rate_share
from worker_agent.trainer.settings import OptimizerSettings, ScheduleSettings


def make_optimizer(groups: list[dict[str, Any]], settings: OptimizerSettings) -> Optimizer:
    """Return the optimizer of a rank's parameter groups; a group's own ``weight_decay`` comes before the settings'."""
    if settings.make is not None:
        return settings.make(groups)
    return torch.optim.AdamW(
        groups,
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )


def make_schedule(
    optimizer: Optimizer, settings: ScheduleSettings, num_iterations: int | None, *, begun_at: int = 0
) -> LRScheduler:
    """Return the scheduler of a run that has done ``begun_at`` iterations.

    Raises
    ------
    ValueError
        If the rate falls but nothing says until when.
    """
    if settings.make is not None:
        return settings.make(optimizer)
    end = decay_end(settings, num_iterations)
    for group in optimizer.param_groups:
        # A scheduler that begins late looks for the highest rate under this name.
        group["initial_lr"] = group["lr"]
    return LambdaLR(optimizer, lambda iteration: learning_rate_share(iteration, settings, end), last_epoch=begun_at - 1)


def schedule_document(optimizer: Optimizer, scheduler: LRScheduler) -> dict[str, Any]:
    """Return the state of a schedule: the scheduler's, and the settings of the optimizer's groups.

    Some schedulers of torch (`OneCycleLR`, `CyclicLR`) change momentum as well, and keep it in the groups alone.
    """
    groups = [{name: value for name, value in group.items() if _is_plain(value)} for group in optimizer.param_groups]
    return {"scheduler": scheduler.state_dict(), "groups": groups}


def restore_schedule(
    optimizer: Optimizer, scheduler: LRScheduler, settings: ScheduleSettings, state: dict[str, Any]
) -> None:
    """Put a scheduler of the run's own, and the optimizer's groups, into the state of a checkpoint.

    The rates of `ScheduleSettings` follow from the iteration alone, so they are those of this run's arguments and not
    of the checkpoint's: a run may be resumed with a lower rate.

    Parameters
    ----------
    optimizer, scheduler
        Of this run.
    settings
        Of this run.
    state
        From `schedule_document`.

    Raises
    ------
    CheckpointRefused
        If the checkpoint is of an optimizer with other groups.
    """
    if settings.make is None:
        return
    if len(state["groups"]) != len(optimizer.param_groups):
        raise CheckpointRefused(
            f"the checkpoint is of an optimizer with {len(state['groups'])} parameter groups but this one has "
            f"{len(optimizer.param_groups)}; resume with the optimizer it was written with"
        )
    for group, told in zip(optimizer.param_groups, state["groups"], strict=True):
        group.update(told)
    scheduler.load_state_dict(state["scheduler"])
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(part) for part in value)
    return value is None or isinstance(value, bool | int | float | str)


def step_schedule(scheduler: LRScheduler, loss: float) -> None:
    """Move a scheduler on by one iteration."""
    if isinstance(scheduler, ReduceLROnPlateau):
        scheduler.step(loss)
    else:
        scheduler.step()
