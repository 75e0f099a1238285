"""Measures what micro-batches cost on this machine: raw samples, to which the planner fits its cost model.

A sample is one packing of sequence lengths and the CPU time of its forward and backward pass. The packings span what
the cost model tells apart, the sum of squared lengths against the sum of lengths, and all ranks measure at once with
one thread each, so that they contend for memory and caches as they do in training.
"""

import math
import os
import platform
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from planner_client.contract import (
    Device,
    MeasuredLayout,
    MicroBatch,
    MicroBatchSample,
    ModelShape,
    Plan,
    ProfileMeasurement,
    Replica,
    SequenceCount,
)
from planner_client.packing import PackedMicroBatch
from worker_agent.executor.loss import next_token_targets, scaled_loss, token_losses
from worker_agent.executor.model import Decoder, DecoderConfig
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState
from worker_agent.local_ranks import Emit, run_on_local_ranks

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHORTEST_TOKENS = 32
_WARM_UPS = 2
_FEWEST_PACKINGS = 8
_SMALLEST_SHARE = 0.2
_SYNC_REPEATS = 7
_SYNC_LENGTH_TOKENS = 8


@dataclass(frozen=True)
class ProfilingSettings:
    """What to measure, and how often.

    Attributes
    ----------
    name
        Name of the profile.
    config
        The decoder to measure.
    max_tokens
        Limit of one micro-batch, and the largest measured (tokens).
    max_length
        Longest sequence measured (tokens).
    num_ranks
        Processes that measure at once, one thread each.
    num_packings
        Different packings to measure.
    num_repeats
        Times that each rank measures each packing; all packings once before any of them again.
    seed
        Seed of the packings, their order and the tokens.
    timeout_s
        Wall-clock limit of the whole measurement.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    name: str
    config: DecoderConfig
    max_tokens: int
    max_length: int
    num_ranks: int = 2
    num_packings: int = 28
    num_repeats: int = 3
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not _PROFILE_NAME.fullmatch(self.name):
            raise ValueError(
                f"name is {self.name!r}; give up to 128 letters, digits, dots, underscores and hyphens, the first a "
                "letter or digit"
            )
        limits = {
            "max_tokens": (self.max_tokens, _SHORTEST_TOKENS),
            "max_length": (self.max_length, _SHORTEST_TOKENS),
            "num_ranks": (self.num_ranks, 1),
            "num_packings": (self.num_packings, _FEWEST_PACKINGS),
            "num_repeats": (self.num_repeats, 1),
        }
        for name, (value, least) in limits.items():
            if value < least:
                raise ValueError(f"{name} is {value}; give at least {least}")
        if self.max_length > self.max_tokens:
            raise ValueError(
                f"max_length {self.max_length} exceeds max_tokens {self.max_tokens}, so that the longest sequence "
                "would not fit a micro-batch; raise max_tokens"
            )


@dataclass(frozen=True)
class _RankTimes:
    """What one rank measured (ms): each packing's repeats, and each synchronisation."""

    by_packing: list[list[float]]
    sync: list[float]


@dataclass(frozen=True)
class MeasuringProgress:
    """How far a measurement is: ``done`` of ``total`` micro-batches on the rank that tells."""

    done: int
    total: int


def draw_packings(max_tokens: int, max_length: int, num_packings: int, seed: int) -> list[list[int]]:
    """Choose the micro-batches to measure.

    In turn: one sequence alone, equal sequences filling a micro-batch, and a mix of random lengths, so that equally
    full micro-batches differ in their squares as widely as they can. Lengths are spread evenly on a logarithmic scale.

    Parameters
    ----------
    max_tokens, max_length
        Limits of a micro-batch and of a sequence (tokens).
    num_packings
        How many to choose.
    seed
        The same seed chooses the same.

    Returns
    -------
    list
        Lengths of each micro-batch, shape (num_packings, sequences of it).
    """
    draw = random.Random(seed)  # noqa: S311 - what to measure, not a secret
    packings: list[list[int]] = []
    num_scales = math.ceil(num_packings / 3)
    for step in range(num_scales):
        share = (step + draw.random()) / num_scales if step < num_scales - 1 else 1.0
        length = _log_between(_SHORTEST_TOKENS, max_length, share)
        packings.append([length])
        paired = min(length, max_tokens // 2)
        packings.append([paired] * max(2, int(max_tokens * draw.uniform(_SMALLEST_SHARE, 1.0) / paired)))
        packings.append(_random_mix(draw, max_length, int(max_tokens * draw.uniform(_SMALLEST_SHARE, 1.0))))
    return packings[:num_packings]


def _log_between(low: int, high: int, share: float) -> int:
    return round(low * math.pow(high / low, share))


def _random_mix(draw: random.Random, max_length: int, num_tokens: int) -> list[int]:
    lengths: list[int] = []
    left = num_tokens
    while left >= _SHORTEST_TOKENS:
        lengths.append(min(left, _log_between(_SHORTEST_TOKENS, max_length, draw.random())))
        left -= lengths[-1]
    return lengths or [_SHORTEST_TOKENS]


def measure(
    settings: ProfilingSettings, on_progress: Callable[[MeasuringProgress], None] | None = None
) -> ProfileMeasurement:
    """Measure this machine.

    Each sample's time is the lower quartile over the ranks and the repeats. CPU time leaves out what other processes
    take; their traces in caches and clock speed only ever add time, in bursts that last seconds, and the repeats of one
    packing lie a whole round of all packings apart. The very least would favour the moments in which the other ranks
    happened to stand still.

    Parameters
    ----------
    settings
        What to measure.
    on_progress
        Called as the measurement goes on.

    Raises
    ------
    worker_agent.local_ranks.RanksFailed
        If a rank fails or the limit passes.
    """
    packings = draw_packings(settings.max_tokens, settings.max_length, settings.num_packings, settings.seed)
    ranks: list[_RankTimes] = run_on_local_ranks(
        _measure_rank, settings, num_ranks=settings.num_ranks, timeout_s=settings.timeout_s, on_event=on_progress
    )
    samples = [
        MicroBatchSample(
            lengths=packing, time_ms=lower_quartile([time for rank in ranks for time in rank.by_packing[number]])
        )
        for number, packing in enumerate(packings)
    ]
    return ProfileMeasurement(
        name=settings.name,
        source=(
            f"measured on this machine: {settings.num_ranks} processes of 1 thread at once, lower quartile of "
            f"{settings.num_ranks * settings.num_repeats} repeats' CPU time, forward and backward"
        ),
        model=ModelShape(
            name=f"decoder {settings.config.num_layers}x{settings.config.hidden_size}",
            num_layers=settings.config.num_layers,
            hidden_size=settings.config.hidden_size,
            vocab_size=settings.config.vocab_size,
        ),
        device=Device(
            name=f"CPU core ({_processor_name()})"[:1000],
            memory_bytes=_memory_bytes() // settings.num_ranks,
            gpus_per_node=settings.num_ranks,
        ),
        sync_ms=lower_quartile([time for rank in ranks for time in rank.sync]),
        layouts=[MeasuredLayout(tp=1, pp=1, max_tokens=settings.max_tokens, samples=samples)],
    )


def lower_quartile(times_ms: Sequence[float]) -> float:
    """Return the time that a quarter of the measurements do not exceed (ms).

    Raises
    ------
    ValueError
        If there are none.
    """
    if not times_ms:
        raise ValueError("no time was measured, so there is no quartile of them; measure at least once")
    return float(np.quantile(np.asarray(times_ms), 0.25))


def split_held_out(
    measurement: ProfileMeasurement, every: int = 4
) -> tuple[ProfileMeasurement, list[MicroBatchSample]]:
    """Set every ``every``-th sample of the one layout aside, to check a fit on samples that it never saw.

    Raises
    ------
    ValueError
        If the measurement has several layouts or too few samples to leave three for the fit.
    """
    if len(measurement.layouts) != 1:
        raise ValueError(f"the measurement has {len(measurement.layouts)} layouts; split one layout at a time")
    layout = measurement.layouts[0]
    held_out = layout.samples[every - 1 :: every]
    kept = [sample for number, sample in enumerate(layout.samples) if number % every != every - 1]
    if len(kept) < 3 or not held_out:
        raise ValueError(f"{len(layout.samples)} samples are too few to hold some out; measure at least {every + 3}")
    fitted = layout.model_copy(update={"samples": kept})
    return measurement.model_copy(update={"layouts": [fitted]}), held_out


def run_micro_batch(model: Decoder, lengths: Sequence[int], tokens: torch.Tensor) -> float:
    """Run one packed micro-batch forward and backward and return the CPU time that took (ms).

    With one compute thread and nothing to wait for, CPU time is the wall time of a machine without other work; what
    other ranks do to memory and caches is in it.

    Parameters
    ----------
    model
        The decoder; its gradients grow.
    lengths
        Tokens of each sequence.
    tokens
        At least as many token ids as the lengths sum to, int64.
    """
    packed = PackedMicroBatch(np.asarray(lengths, dtype=np.int64))
    cu_seqlens = torch.from_numpy(packed.cu_seqlens.copy())
    tokens = tokens[: packed.num_tokens]
    started_ns = time.process_time_ns()
    logits = model(tokens, cu_seqlens, packed.max_seqlen)
    loss = scaled_loss(token_losses(logits, next_token_targets(tokens, cu_seqlens)), packed.num_targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return (time.process_time_ns() - started_ns) / 1e6


def _measure_rank(rank: int, num_ranks: int, settings: ProfilingSettings, emit: Emit) -> _RankTimes:
    """Measure every packing ``num_repeats`` times on one rank, and what an iteration adds to its micro-batches."""
    packings = draw_packings(settings.max_tokens, settings.max_length, settings.num_packings, settings.seed)
    model = Decoder(settings.config, seed=settings.seed)
    generator = torch.Generator().manual_seed(settings.seed + rank)
    tokens = torch.randint(settings.config.vocab_size, (settings.max_tokens,), generator=generator)
    for _ in range(_WARM_UPS):
        run_micro_batch(model, max(packings, key=sum), tokens)
    times: list[list[float]] = [[] for _ in packings]
    total = settings.num_repeats * len(packings)
    shuffle = random.Random(settings.seed * 1009 + rank)  # noqa: S311 - an order of measurements, not a secret
    for repeat in range(settings.num_repeats):
        # Ranks that start a round together share the machine for nearly all of it, each in an order of its own.
        dist.barrier()
        order = list(range(len(packings)))
        shuffle.shuffle(order)
        for step, number in enumerate(order):
            times[number].append(run_micro_batch(model, packings[number], tokens))
            model.zero_grad(set_to_none=True)
            if rank == 0:
                emit(MeasuringProgress(repeat * len(packings) + step + 1, total))
    return _RankTimes(times, _measure_sync(settings.config, num_ranks))


def _measure_sync(config: DecoderConfig, num_ranks: int) -> list[float]:
    """Time what an iteration adds to its micro-batches: comparing plans, exchange, propagation, sums, step (ms).

    The iterations are real and their micro-batches tiny and equal, so that no rank waits for another's.
    """
    runner = IterationRunner(ShardedState(config, make_optimizer=torch.optim.AdamW))
    tokens = [torch.zeros(_SYNC_LENGTH_TOKENS, dtype=torch.int64)]
    plan = _one_sequence_each(num_ranks, _SYNC_LENGTH_TOKENS)
    results = [runner.run(plan, tokens) for _ in range(_WARM_UPS + _SYNC_REPEATS)]
    runner.close()
    return [result.wall_ms - result.compute_ms for result in results[_WARM_UPS:]]


def _one_sequence_each(num_ranks: int, length: int) -> Plan:
    """Return the plan by which every rank computes the one sequence that it holds."""
    replicas = [
        Replica(
            tp=1,
            cp=1,
            pp=1,
            device="CPU core",
            ranks=[rank],
            max_tokens=length,
            makespan_ms=0.0,
            simulated_ms=0.0,
            micro_batches=[
                MicroBatch(
                    sequences=[SequenceCount(source=f"rank-{rank}", length=length, count=1)],
                    num_tokens=length,
                    num_padding_tokens=0,
                    time_ms=0.0,
                )
            ],
        )
        for rank in range(num_ranks)
    ]
    return Plan.seal(
        profile="profiling",
        iteration=None,
        seed=0,
        num_sequences=num_ranks,
        num_tokens=num_ranks * length,
        dropped=[],
        replicas=replicas,
        makespan_ms=0.0,
        simulated_ms=0.0,
        sync_ms=0.0,
        lower_bound_ms=None,
        gap=None,
        bound_scope=None,
        solved_by="fallback",
        status="feasible",
        planning_ms=0.0,
        num_gpus=num_ranks,
        strategy=f"(1,1)x{num_ranks}",
    )


def _processor_name() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
