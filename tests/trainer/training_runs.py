"""Runs that tests of the trainer start: what is trained, and by which plans. Importable by spawned ranks."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from plan_factory import make_micro_batch
from torch import Tensor

from planner_client.contract import Device, LayoutCost, ModelShape, Plan, Profile, Replica
from worker_agent import Trainer
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import OptimizerSettings, ReportSettings, ScheduleSettings

CONFIG = DecoderConfig(vocab_size=17, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2, ffn_size=24)
LENGTHS = [40, 3, 9, 12, 2, 30, 5, 8, 21, 4, 6, 11]
NUM_ITERATIONS = 6
LIMIT_TOKENS = 64
Layout = tuple[int, int]
"""Tensor-parallel degree and stages."""

PROFILE = Profile(
    name="trainer-test",
    source="made up",
    model=ModelShape(name="tiny", num_layers=2, hidden_size=16, vocab_size=17),
    device=Device(name="CPU", memory_bytes=2**30),
    layouts=[
        LayoutCost(tp=1, pp=1, a_ms_per_token2=1e-3, b_ms_per_token=0.1, c_ms=1.0, max_tokens=64),
        LayoutCost(tp=2, pp=1, a_ms_per_token2=6e-4, b_ms_per_token=0.06, c_ms=2.0, max_tokens=128),
        LayoutCost(tp=1, pp=2, a_ms_per_token2=6e-4, b_ms_per_token=0.06, c_ms=2.0, max_tokens=128),
    ],
)


def dataset(lengths: Sequence[int] = tuple(LENGTHS)) -> list[Tensor]:
    """Sequences that have something to learn: token ids count upwards."""
    return [(torch.arange(length) + index) % CONFIG.vocab_size for index, length in enumerate(lengths)]


def own_plan(lengths: Mapping[str, Sequence[int]], layouts: Sequence[Layout]) -> Plan:
    """Deal sequences to replicas in turn, two to a micro-batch; replicas take the ranks in order."""
    entries = [(source, length, 1) for source, held in lengths.items() for length in held]
    replicas, next_rank = [], 0
    for number, (tp, pp) in enumerate(layouts):
        dealt = entries[number :: len(layouts)]
        replicas.append(
            Replica(
                tp=tp,
                cp=1,
                pp=pp,
                device="cpu",
                ranks=list(range(next_rank, next_rank + tp * pp)),
                max_tokens=2**20,
                makespan_ms=0,
                simulated_ms=0,
                micro_batches=[make_micro_batch(dealt[at : at + 2]) for at in range(0, len(dealt), 2)],
            )
        )
        next_rank += tp * pp
    nothing: dict[str, Any] = dict.fromkeys(("makespan_ms", "simulated_ms", "sync_ms", "planning_ms", "seed"), 0)
    nothing |= dict.fromkeys(("lower_bound_ms", "gap", "bound_scope", "iteration"))
    return Plan.seal(
        **nothing,
        profile="by-hand",
        num_sequences=len(entries),
        num_tokens=sum(length for _, length, _ in entries),
        dropped=[],
        replicas=replicas,
        solved_by="heuristic",
        status="feasible",
        num_gpus=next_rank,
        strategy=",".join(f"({tp},{pp})x1" for tp, pp in layouts),
    )


def trainer(**changes: Any) -> Trainer:
    """Build the trainer of the tests; whatever a test changes replaces its part."""
    given: dict[str, Any] = {
        "model": CONFIG,
        "data": dataset(),
        "num_iterations": NUM_ITERATIONS,
        "tokens_per_iteration": LIMIT_TOKENS,
        "optimizer": OptimizerSettings(learning_rate=0.02, eps=1e-3, max_norm=0.5),
        "schedule": ScheduleSettings(warmup_iterations=2, decay="cosine", final_share=0.1),
        "reports": ReportSettings(progress=False),
        "seed": 3,
        "dtype": torch.float64,
        "collective_timeout_s": 60.0,
    }
    return Trainer(**{**given, **changes})


def in_turn(strategies: Sequence[Sequence[Layout]]) -> Callable[[Mapping[str, Sequence[int]]], Plan]:
    """Return a function that makes plans whose strategies take turns."""
    turns = cycle(strategies)
    return lambda lengths: own_plan(lengths, next(turns))


def train(*strategies: Sequence[Layout], **changes: Any) -> dict[str, Any]:
    """Train by plans of one's own; return the metrics, the weights, and how far the run came."""
    heard: list[IterationMetrics] = []
    reports = ReportSettings(progress=False, on_iteration=heard.append)
    with trainer(plans=in_turn(strategies), reports=reports, **changes) as run:
        begun_at = run.progress.num_iterations
        last = run.train()
        return {
            "begun_at": begun_at,
            "heard": heard,
            "last": last,
            "weights": run.weights(),
            "progress": run.progress,
            "checkpoint": run.last_checkpoint,
        }


def only_checkpoint(folder: Path, kept: str, copy: Path) -> Path:
    """Copy a folder of checkpoints with only one of them."""
    shutil.copytree(folder / kept, copy / kept)
    return copy
