"""What three real ranks do with trainers; importable by them."""

import os
import secrets
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from group_checks import check_in_groups, fault_of
from torch.optim.lr_scheduler import StepLR
from training_runs import CONFIG, NUM_ITERATIONS, dataset, in_turn, only_checkpoint, train, trainer

from worker_agent.trainer.faults import TrainingStopped
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import (
    CheckpointSettings,
    EvaluationSettings,
    OptimizerSettings,
    ReportSettings,
    ScheduleSettings,
)

STAGES, TENSOR = ((1, 1), (1, 2)), ((2, 1), (1, 1))
"""A replica of one rank beside one of two stages, and one of two tensor-parallel ranks beside one of one."""


def stop_of(act: Callable[[], Any]) -> dict[str, Any]:
    """Return how a run stopped."""
    try:
        act()
    except TrainingStopped as fault:
        return {"message": str(fault), "iteration": fault.iteration, "checkpoint": fault.checkpoint}
    return {"message": "it did not stop"}


def asked_to_stop(folder: Path) -> dict[str, Any]:
    """Have SIGTERM reach the first rank, which alone reports, after the second iteration."""

    def ask(metrics: IterationMetrics) -> None:
        if metrics.iteration == 1:
            os.kill(os.getpid(), signal.SIGTERM)

    with trainer(
        plans=in_turn((STAGES, TENSOR)),
        reports=ReportSettings(progress=False, on_iteration=ask),
        checkpoints=CheckpointSettings(folder),
        num_iterations=10**6,
    ) as run:
        run.train()
        return {"progress": run.progress, "checkpoint": run.last_checkpoint, "was stopped": run.was_stopped}


def fails_to_report(metrics: IterationMetrics) -> None:
    """Fail on the only rank that reports."""
    if metrics.iteration == 1:
        raise KeyError("my callback")


def with_a_failing_script(folder: Path) -> None:
    """Train until the script fails."""
    reports = ReportSettings(progress=False, on_iteration=fails_to_report)
    with trainer(plans=in_turn((TENSOR,)), reports=reports, checkpoints=CheckpointSettings(folder)) as run:
        run.train()


def with_frozen_parameters(folder: Path) -> str:
    """Resume with an optimizer that leaves out all matrices, and with them all that some ranks hold."""
    frozen: dict[str, Any] = {
        "optimizer": OptimizerSettings(make=lambda groups: torch.optim.AdamW(groups[1:], lr=0.01), max_norm=None),
        "schedule": None,
        "checkpoints": CheckpointSettings(folder),
    }
    train(TENSOR, num_iterations=2, **frozen)
    return fault_of(lambda: train(TENSOR, num_iterations=3, **frozen))


class DrawnByChance(list[torch.Tensor]):
    """Sequences that are others each time they are read, and on each rank."""

    def __getitem__(self, index: Any) -> Any:
        length = len(super().__getitem__(index))
        return torch.tensor([secrets.randbelow(CONFIG.vocab_size) for _ in range(length)])


def step_lr(rate: float, step_size: int) -> dict[str, Any]:
    """An optimizer and a schedule that functions make, which have the same names whatever they make."""
    return {
        "optimizer": OptimizerSettings(make=lambda groups: torch.optim.SGD(groups, lr=rate)),
        "schedule": ScheduleSettings(make=lambda optimizer: StepLR(optimizer, step_size)),
    }


def unlike(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Arguments of which the last rank has others, by what errors say of them."""
    is_odd = rank == 2
    checkpoints, other_folder = folder / "unlike", folder / "other"
    changed = dataset()
    changed[len(changed) // 2] = torch.arange(8).flip(0)
    evaluated = changed if is_odd else dataset()

    def differ(value: object, other: object) -> Any:
        return other if is_odd else value

    given = {
        "optimizer.learning_rate is {} and {}": ("0.01", "0.02"),
        "seed is {} and {}": ("3", "4"),
        "shuffle is {} and {}": ("True", "False"),
        "data is {} and {}": ("12 sequences", "11 sequences"),
        "data[6] is {} and {}": ("5 tokens beginning with 6, 7, 8, 9, 10", "8 tokens beginning with 7, 6, 5, 4, 3"),
        "evaluation data[6] is {} and {}": (
            "5 tokens beginning with 6, 7, 8, 9, 10",
            "8 tokens beginning with 7, 6, 5, 4, 3",
        ),
        "num_iterations is {} and {}": ("2", "3"),
        "tokens_per_iteration is {} and {}": ("80", "90"),
        "evaluation is {} and {}": ("EvaluationSettings", "None"),
        "checkpoints.every_iterations is {} and {}": ("2", "3"),
        "checkpoints.directory is {} and {}": (repr(str(checkpoints)), repr(str(other_folder))),
        "checkpoints is {} and {}": ("CheckpointSettings", "None"),
        "model.vocab_size is {} and {}": ("17", "19"),
        "plan_timeout_s is {} and {}": ("1.0", "2.0"),
        "dtype is {} and {}": ("torch.float64", "torch.float32"),
        "collective_timeout_s is {} and {}": ("60.0", "61.0"),
        "optimizer and schedule as made.scheduler.step_size is {} and {}": ("2", "5"),
        "optimizer and schedule as made.scheduler.base_lrs[0] is {} and {}": ("0.1", "0.2"),
    }
    names = [told.format(f"{value} on ranks 0, 1", f"{other} on rank 2") for told, (value, other) in given.items()]
    changes: list[dict[str, Any]] = [
        {"optimizer": OptimizerSettings(learning_rate=differ(0.01, 0.02))},
        {"seed": differ(3, 4)},
        {"shuffle": not is_odd},
        {"data": differ(dataset(), dataset()[1:])},
        {"data": differ(dataset(), changed)},
        {"evaluation": EvaluationSettings(evaluated)},
        {"num_iterations": differ(2, 3)},
        {"tokens_per_iteration": differ(80, 90)},
        {"evaluation": differ(EvaluationSettings(dataset()), None)},
        {"checkpoints": CheckpointSettings(checkpoints, every_iterations=differ(2, 3))},
        {"checkpoints": CheckpointSettings(differ(checkpoints, other_folder))},
        {"checkpoints": differ(CheckpointSettings(checkpoints), None)},
        {"model": replace(CONFIG, vocab_size=differ(17, 19))},
        {"plan_timeout_s": differ(1.0, 2.0)},
        {"dtype": differ(torch.float64, torch.float32)},
        {"collective_timeout_s": differ(60.0, 61.0)},
        step_lr(0.1, differ(2, 5)),
        step_lr(differ(0.1, 0.2), 2),
    ]
    return dict(zip(names, changes, strict=True))


def check_trainers(rank: int, written: Path, folder: Path) -> dict[str, Any]:
    """Resume by other strategies, which take turns, and meet what stops a run."""
    if rank == 0:
        only_checkpoint(written, "iteration-00000004", folder / "resumed")
    dist.barrier()
    resumed = train(STAGES, TENSOR, checkpoints=CheckpointSettings(folder / "resumed", resume="required"))
    explosive = OptimizerSettings(learning_rate=1e300, max_norm=None)
    away = {"planner_url": "http://127.0.0.1:9", "profile": "known-there-alone", "plan_timeout_s": 1.0}
    bad = [*dataset(), torch.tensor([99, 1])]
    return {
        "resumed": resumed,
        "not finite": stop_of(
            lambda: train(STAGES, TENSOR, optimizer=explosive, checkpoints=CheckpointSettings(folder / "nan", 1))
        ),
        "no planner": stop_of(lambda: trainer(**away).train()),
        "bad token": stop_of(lambda: train(TENSOR, data=bad, shuffle=False, num_iterations=NUM_ITERATIONS)),
        "callback": stop_of(lambda: with_a_failing_script(folder / "callback")),
        "frozen": with_frozen_parameters(folder / "frozen"),
        "unlike": {name: fault_of(lambda own=own: train(TENSOR, **own)) for name, own in unlike(rank, folder).items()},
        "drawn": fault_of(lambda: train(TENSOR, data=DrawnByChance(dataset()), num_iterations=1)),
        "layout": stop_of(lambda: train(((8, 1),))),
        "asked to stop": asked_to_stop(folder / "asked"),
    }


def check_all(rank: int, written: Path, folder: Path) -> dict[str, Any]:
    """Run all checks that need several ranks, in one set of processes, for starting them takes longest."""
    return {
        "groups": check_in_groups(rank, folder / "groups"),
        "trained": check_trainers(rank, written, folder / "trained"),
    }
