"""Measures what micro-batches cost on this machine: raw samples, to which the planner fits its cost model."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner_client.contract import Device, ProfileMeasurement
from worker_agent.local_ranks import run_on_local_ranks
from worker_agent.profiler.assemble import foreign_cores, measurement_of
from worker_agent.profiler.journal import Journal
from worker_agent.profiler.machine import num_cores
from worker_agent.profiler.ranks import ProfilingJob, measure_on_rank
from worker_agent.profiler.records import Record, RoundRecord
from worker_agent.profiler.rounds import Progress
from worker_agent.profiler.settings import ProfilingSettings

_COLLECTIVE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class MeasuringProgress:
    """How far a measurement is.

    Attributes
    ----------
    done, total
        Runs of micro-batches, over all layouts; the total grows where times do not settle.
    left_s
        About how much longer it takes (s); None while nothing is known of it.
    foreign_cores
        Cores that other processes kept busy so far, on average; None where the system does not tell.
    """

    done: int
    total: int
    left_s: float | None
    foreign_cores: float | None


def measure(
    settings: ProfilingSettings,
    on_progress: Callable[[MeasuringProgress], None] | None = None,
    journal: Journal | None = None,
) -> ProfileMeasurement:
    """Measure this machine by the real executor.

    A sample is one micro-batch in an iteration on one replica: the time that its slowest rank computed forward and
    backward, which is what the executor reports of it in training and what a plan predicts of it. Sums inside a
    tensor-parallel stage are in it; messages between pipeline stages are not, for the planner takes them as hidden.
    All ranks compute at once, so that they contend for memory and caches as they do in training.

    Parameters
    ----------
    settings
        What to measure.
    on_progress
        Called as the measurement goes on.
    journal
        What was measured before is taken from it, and what is measured is kept in it.

    Raises
    ------
    worker_agent.local_ranks.RanksFailed
        If a rank fails or the limit passes.
    ValueError
        If memory did not suffice for a layout's smallest micro-batch.
    OSError
        If the journal cannot be written.
    """
    before = () if journal is None else journal.records
    records: list[Record] = list(before)
    watch = _Watch(settings, before)

    def keep(record: Record) -> None:
        records.append(record)
        if journal is not None:
            journal.append(record)
        if on_progress is not None:
            on_progress(watch.progress(records))

    devices = run_on_local_ranks(
        measure_on_rank,
        ProfilingJob(settings, before),
        num_ranks=settings.num_ranks,
        timeout_s=settings.timeout_s,
        collective_timeout_s=min(settings.timeout_s, _COLLECTIVE_TIMEOUT_S),
        on_event=keep,
        device=settings.device,
    )
    device = Device(
        name=devices[0].name,
        memory_bytes=min(device.memory_bytes for device in devices),
        gpus_per_node=settings.num_ranks,
    )
    return measurement_of(settings, records, device, num_cores=num_cores())


class _Watch:
    """Estimates how much longer a measurement takes, from the pace of this session."""

    def __init__(self, settings: ProfilingSettings, before: Sequence[Record]) -> None:
        self._settings = settings
        self._num_before = len(before)
        self._began_s: float | None = None
        self._work_done = 0.0

    def progress(self, records: Sequence[Record]) -> MeasuringProgress:
        """Return how far the measurement is after its newest record."""
        progress = Progress.of(self._settings, records)
        newest = records[-1]
        left_s = None
        now_s = time.monotonic()
        if isinstance(newest, RoundRecord) and newest.round.kind == "time":
            if self._began_s is None:
                self._began_s = now_s - newest.elapsed_s
            self._work_done += sum(progress.work(newest.round.layout, packing) for packing in newest.round.packings)
            left_s = (now_s - self._began_s) * progress.work_left / self._work_done
        done = progress.num_runs.total()
        layouts, packings = range(len(self._settings.layouts)), range(len(progress.packings))
        left = sum(progress.runs_left(layout, packing) for layout in layouts for packing in packings)
        return MeasuringProgress(done, done + left, left_s, foreign_cores(progress))
