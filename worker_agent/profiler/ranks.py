"""What each rank does in a measurement: rounds by the real executor, then collectives, until nothing is left."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from worker_agent.executor.carried import lacks_memory
from worker_agent.executor.collectives import collective_device, gather_values
from worker_agent.executor.faults import IterationFailed
from worker_agent.executor.result import IterationResult
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState
from worker_agent.local_ranks import Emit
from worker_agent.profiler.collectives import time_collectives
from worker_agent.profiler.machine import PeakMemory, busy_s, device_memory_bytes, device_name
from worker_agent.profiler.readings import Measured, read_round
from worker_agent.profiler.records import Record, Round, RoundRecord
from worker_agent.profiler.round_plan import plan_of, replica_packings
from worker_agent.profiler.rounds import Progress
from worker_agent.profiler.settings import ProfilingSettings

_LEARNING_RATE = 1e-6
_NUM_WARM_UPS = 2


@dataclass(frozen=True)
class ProfilingJob:
    """What every rank of a measurement is started with: what to measure, and what was measured before."""

    settings: ProfilingSettings
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class MeasuredDevice:
    """What a rank computes on."""

    name: str
    memory_bytes: int


def measure_on_rank(rank: int, num_ranks: int, job: ProfilingJob, emit: Emit) -> MeasuredDevice:
    """Measure what is left on one rank; the first one emits a record for each round and each collective."""
    tell: Callable[[Record], None] = emit if rank == 0 else _say_nothing
    _Rounds(rank, job.settings).run(job.records, tell)
    if job.settings.with_collectives:
        time_collectives(job.settings, job.records, tell)
    device = job.settings.device
    return MeasuredDevice(device_name(device), device_memory_bytes(device, num_ranks))


def _say_nothing(_: Record) -> None:
    """Leave it to the first rank, which measured the same."""


class _Rounds:
    """The rounds of one rank; all ranks decide alike what comes next."""

    def __init__(self, rank: int, settings: ProfilingSettings) -> None:
        self._rank = rank
        self._settings = settings
        self._packings = Progress(settings, ()).packings
        self._device = collective_device()
        self._memory = PeakMemory(self._device)
        self._runner: IterationRunner | None = None
        self._warm: set[tuple[str, int]] = set()
        generator = torch.Generator().manual_seed(settings.seed + rank)
        self._tokens = torch.randint(settings.config.vocab_size, (settings.max_length,), generator=generator)

    def run(self, records: tuple[Record, ...], tell: Callable[[Record], None]) -> None:
        """Measure round after round until there is none left."""
        progress = Progress.of(self._settings, records)
        while (following := progress.next_round) is not None:
            record = self._measure(following, progress)
            tell(record)
            progress = Progress(self._settings, (*progress.records, record))
        self._close()

    def _measure(self, measured: Round, progress: Progress) -> RoundRecord:
        state = (measured.kind, measured.layout)
        if state not in self._warm:
            if measured.kind == "memory" or self._runner is None or any(kind == "memory" for kind, _ in self._warm):
                # What another layout left in a runner's memory is none of this one's peak.
                self._begin_anew()
            self._warm.add(state)
            self._warm_up(measured, progress)
        try:
            return self._measure_once(measured)
        except IterationFailed as failed:
            lacking = any(lacks_memory(RuntimeError(message)) for message in failed.messages.values())
            if measured.kind == "time" or not lacking:
                raise
            return RoundRecord(round=measured, readings=(), lacked_memory=True)

    def _warm_up(self, measured: Round, progress: Progress) -> None:
        """Run what makes process groups, kernels and memory ready: the smallest level, or the largest micro-batch."""
        layout = measured.layout
        largest = progress.largest_tokens(layout)
        fitting = [number for number, lengths in enumerate(self._packings) if sum(lengths) <= largest]
        chosen = max(fitting, key=lambda number: sum(self._packings[number]))
        if measured.kind == "memory":
            chosen = min(fitting, key=lambda number: sum(self._packings[number]))
        pipeline = (chosen,) * max(_NUM_WARM_UPS, self._settings.layouts[layout].pp)
        self._iteration(Round(layout=layout, kind="time", packings=pipeline))

    def _measure_once(self, measured: Round) -> RoundRecord:
        if measured.kind == "memory":
            self._iteration(measured)  # so that the time is none of memory's first use
            self._memory.reset()
        dist.barrier()
        began, began_cpu, began_busy = time.perf_counter(), time.process_time(), busy_s()
        result = self._iteration(measured)
        elapsed_s, cpu_s, ended_busy = time.perf_counter() - began, time.process_time() - began_cpu, busy_s()
        peak = self._memory.read_bytes() if measured.kind == "memory" else None
        times = result.micro_batch_cpu_ms if self._settings.clock == "cpu" else result.micro_batch_ms
        widest = len(replica_packings(self._settings, measured, 0))
        own = [result.wall_ms, result.compute_ms, cpu_s, -1.0 if peak is None else float(peak), *times]
        by_rank = gather_values(own + [0.0] * (4 + widest - len(own)), None, "gathering what was measured")
        busy = None if began_busy is None or ended_busy is None else ended_busy - began_busy
        ranks = [Measured(wall, compute, cpu, peak, tuple(times)) for wall, compute, cpu, peak, *times in by_rank]
        return read_round(self._settings, measured, ranks, elapsed_s=elapsed_s, busy_s=busy)

    def _iteration(self, measured: Round) -> IterationResult:
        if self._runner is None:
            raise RuntimeError("no runner was made for the round")
        return self._runner.run(plan_of(self._settings, self._packings, measured), self._held(measured))

    def _held(self, measured: Round) -> list[Tensor]:
        """Return the sequences that this rank holds: all of its replica's on the first rank of one, else none."""
        layout = self._settings.layouts[measured.layout]
        replica, position = divmod(self._rank, layout.num_ranks)
        if position or replica >= self._settings.num_replicas(layout):
            return []
        packings = replica_packings(self._settings, measured, replica)
        return [self._tokens[:length] for packing in packings for length in self._packings[packing]]

    def _begin_anew(self) -> None:
        self._close()
        self._warm.clear()
        state = ShardedState(
            self._settings.config,
            make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=_LEARNING_RATE),
            seed=self._settings.seed,
        )
        # Attention kernels of GPUs take half precision only.
        dtype = torch.bfloat16 if self._device.type == "cuda" else None
        self._runner = IterationRunner(state, compute_dtype=dtype)

    def _close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        self._runner = None
