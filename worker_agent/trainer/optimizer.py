"""The optimizer and the learning-rate scheduler of a run, from its settings."""

import copy
import warnings
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from worker_agent.trainer.faults import CheckpointRefused
from worker_agent.trainer.learning_rate import decay_end, learning_rate_share
from worker_agent.trainer.same_arguments import described
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


def schedule_document(
    optimizer: Optimizer, scheduler: LRScheduler, begun: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the state of a schedule: the scheduler's, and the settings of the optimizer's groups.

    Some schedulers of torch (`OneCycleLR`, `CyclicLR`) change momentum as well, and keep it in the groups alone.

    Parameters
    ----------
    optimizer, scheduler
        Of the run.
    begun
        The document as it was before the first iteration, which says what the run was given; kept along.
    """
    groups = [{name: value for name, value in group.items() if _is_plain(value)} for group in optimizer.param_groups]
    document = {"scheduler": scheduler.state_dict(), "groups": groups}
    # A copy: schedulers hand out lists that they go on writing to.
    return copy.deepcopy(document if begun is None else {**document, "begun": begun})


def restore_schedule(
    optimizer: Optimizer,
    scheduler: LRScheduler,
    settings: ScheduleSettings,
    state: dict[str, Any],
    *,
    warns: bool = True,
) -> dict[str, Any]:
    """Put a scheduler of the run's own, and the optimizer's groups, into the state of a checkpoint.

    The rates of `ScheduleSettings` follow from the iteration alone, so they are those of this run's arguments and not
    of the checkpoint's: a run may be resumed with a lower rate. A scheduler that a function made goes on as the
    checkpoint says; where this run gave it, or its optimizer, something else, a warning says what is passed over.

    Parameters
    ----------
    optimizer, scheduler
        Of this run.
    settings
        Of this run.
    state
        From `schedule_document`.
    warns
        Whether to warn; of many ranks, one is enough.

    Returns
    -------
    dict
        What the schedule was begun with, for the documents of this run.

    Raises
    ------
    CheckpointRefused
        If the checkpoint is of an optimizer with other groups.
    """
    own = schedule_document(optimizer, scheduler)
    if settings.make is None:
        return own
    if len(state["groups"]) != len(optimizer.param_groups):
        raise CheckpointRefused(
            f"the checkpoint is of an optimizer with {len(state['groups'])} parameter groups but this one has "
            f"{len(optimizer.param_groups)}; resume with the optimizer it was written with"
        )
    begun: dict[str, Any] = state.get("begun", own)
    if warns:
        _tell_passed_over(own, begun)
    for group, told in zip(optimizer.param_groups, state["groups"], strict=True):
        group.update(told)
    scheduler.load_state_dict(state["scheduler"])
    for group, rate in zip(optimizer.param_groups, scheduler.get_last_lr(), strict=True):
        group["lr"] = rate
    return begun


def _tell_passed_over(own: dict[str, Any], begun: dict[str, Any]) -> None:
    """Warn of what this run gave its schedule and the checkpoint's run did not: the checkpoint's holds."""
    given, held = described(own), described(begun)
    # Another version of torch keeps more or less; only what both have can have been changed by the run's owner.
    passed_over = [
        f"{name} is {given[name]}, and stays {held[name]}"
        for name in given
        if name in held and given[name] != held[name]
    ]
    if passed_over:
        warnings.warn(
            f"the schedule goes on as its checkpoint says, not as this run was told: {'; '.join(passed_over)}. To "
            "change the rate in the midst of a run, describe it with ScheduleSettings without make=, or begin anew",
            stacklevel=2,
        )


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
