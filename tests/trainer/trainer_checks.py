"""What three real ranks do with trainers; importable by them."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from group_checks import check_in_groups, fault_of
from training_runs import NUM_ITERATIONS, dataset, in_turn, only_checkpoint, train, trainer

from worker_agent.trainer.faults import TrainingStopped
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import CheckpointSettings, OptimizerSettings, ReportSettings

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
        return {"progress": run.progress, "checkpoint": run.last_checkpoint}


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


def unlike(rank: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Arguments of which the last rank has others, by what errors call them."""
    is_odd = rank == 2
    return {
        "optimizer": {"optimizer": OptimizerSettings(learning_rate=0.02 if is_odd else 0.01)},
        "seed, shuffle": {"seed": 4 if is_odd else 3},
        "data": {"data": dataset()[1:] if is_odd else dataset()},
        "num_iterations, num_epochs": {"num_iterations": 3 if is_odd else 2},
        "tokens_per_iteration, sequences_per_iteration": {"tokens_per_iteration": 90 if is_odd else 80},
        "checkpoints": {"checkpoints": CheckpointSettings(folder / "unlike", every_iterations=3 if is_odd else 2)},
    }


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
        "layout": stop_of(lambda: train(((8, 1),))),
        "asked to stop": asked_to_stop(folder / "asked"),
    }


def check_all(rank: int, written: Path, folder: Path) -> dict[str, Any]:
    """Run all checks that need several ranks, in one set of processes, for starting them takes longest."""
    return {
        "groups": check_in_groups(rank, folder / "groups"),
        "trained": check_trainers(rank, written, folder / "trained"),
    }
