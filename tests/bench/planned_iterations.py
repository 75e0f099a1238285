"""Iterations by plans, with what each was predicted to take and took; importable by ranks."""

import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from planner_client.contract import Plan
from worker_agent.executor.collectives import gather_values
from worker_agent.executor.measure import gather_timings
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState
from worker_agent.profiler.machine import busy_s

CONFIG = DecoderConfig(vocab_size=256, hidden_size=64, num_layers=2, num_heads=2)
"""The demo's decoder."""


@dataclass(frozen=True)
class Iterations:
    """Plans to run, and the lengths that each rank holds for each; ``warm_ups`` plans are run before."""

    plans: tuple[Plan, ...]
    held: tuple[tuple[tuple[int, ...], ...], ...]
    num_warm_ups: int


@dataclass(frozen=True)
class Took:
    """What an iteration took: its wall time (ms), each replica's computing, and of that each micro-batch's.

    ``foreign_cores`` is what other processes kept busy meanwhile.
    """

    wall_ms: float
    compute_ms: tuple[float, ...]
    micro_batch_ms: tuple[tuple[float, ...], ...]
    foreign_cores: float | None


def run_iterations(rank: int, _num_ranks: int, what: Iterations, _emit: Any) -> list[Took]:
    """Run every plan on one rank; all ranks return the same."""
    state = ShardedState(CONFIG, make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-5))
    runner = IterationRunner(state)
    taken = []
    for plan, held in zip(what.plans, what.held, strict=True):
        sequences = [torch.full((length,), number % 256) for number, length in enumerate(held[rank])]
        dist.barrier()
        began, began_cpu, began_busy = time.perf_counter(), time.process_time(), busy_s()
        result = runner.run(plan, sequences)
        elapsed_s, own_s, ended_busy = time.perf_counter() - began, time.process_time() - began_cpu, busy_s()
        by_rank = gather_values([result.wall_ms, own_s], None, "gathering times")
        timings = gather_timings(plan, result.timing)
        assert timings is not None
        foreign = None
        if began_busy is not None and ended_busy is not None:
            foreign = max(0.0, ended_busy - began_busy - sum(cpu for _, cpu in by_rank)) / elapsed_s
        taken.append(
            Took(
                wall_ms=max(wall for wall, _ in by_rank),
                compute_ms=tuple(replica.wall_ms for replica in timings.replicas),
                micro_batch_ms=tuple(tuple(replica.micro_batch_ms) for replica in timings.replicas),
                foreign_cores=foreign,
            )
        )
    runner.close()
    return taken[what.num_warm_ups :]
