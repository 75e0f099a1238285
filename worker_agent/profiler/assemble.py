"""Records of rounds made into what the planner fits. Pure: no torch."""

import statistics
from collections.abc import Sequence

from planner_client.contract import (
    CollectiveSample,
    Device,
    MeasuredLayout,
    MicroBatchSample,
    ModelShape,
    ProfileMeasurement,
)
from worker_agent.profiler.records import CollectiveRecord, Record
from worker_agent.profiler.rounds import Progress, is_outlier
from worker_agent.profiler.settings import ProfilingSettings

_SHORTEST_MS = 1e-6
"""What a clock that did not move is taken for."""


def measurement_of(
    settings: ProfilingSettings, records: Sequence[Record], device: Device, *, num_cores: int
) -> ProfileMeasurement:
    """Return the raw samples of a finished measurement; every reading is one, outliers are marked.

    Parameters
    ----------
    settings
        What was measured.
    records
        All of it.
    device
        What the ranks computed on.
    num_cores
        Of the machine.

    Raises
    ------
    ValueError
        If memory did not suffice for a layout's smallest micro-batch.
    """
    progress = Progress.of(settings, records)
    layouts = [_layout(progress, number) for number in range(len(settings.layouts))]
    config = settings.config
    overheads = [record.overhead_ms for record in progress.records if record.round.kind == "time"]
    return ProfileMeasurement(
        name=settings.name,
        source=_source(progress, layouts, num_cores),
        model=ModelShape(
            name=f"decoder {config.num_layers}x{config.hidden_size}",
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        ),
        device=device,
        sync_ms=statistics.median(overheads),
        layouts=layouts,
        collectives=[
            CollectiveSample(
                kind=record.collective.kind,
                num_ranks=record.collective.num_ranks,
                num_bytes=record.collective.num_bytes,
                time_ms=max(record.time_ms, _SHORTEST_MS),
            )
            for record in records
            if isinstance(record, CollectiveRecord)
        ],
    )


def foreign_cores(progress: Progress) -> float | None:
    """Return how many cores other processes kept busy on average while it was measured; None where that is not told."""
    told = [(record.foreign_cores, record.elapsed_s) for record in progress.records if record.foreign_cores is not None]
    total_s = sum(elapsed_s for _, elapsed_s in told)
    return sum(cores * elapsed_s for cores, elapsed_s in told) / total_s if total_s > 0 else None


def _layout(progress: Progress, number: int) -> MeasuredLayout:
    settings = progress.settings
    layout, largest = settings.layouts[number], progress.largest_tokens(number)
    samples = []
    for record in progress.records:
        if record.round.layout != number:
            continue
        for reading in record.readings:
            times_ms = progress.times_ms[number, reading.packing]
            samples.append(
                MicroBatchSample(
                    lengths=progress.packings[reading.packing],
                    time_ms=max(reading.time_ms, _SHORTEST_MS),
                    is_outlier=is_outlier(reading.time_ms, times_ms),
                    memory_bytes=reading.memory_bytes,
                )
            )
    if len(samples) < 3:
        raise ValueError(
            f"memory did not suffice for the smallest micro-batches of layout {layout}; leave it out, or lower "
            "--max-tokens"
        )
    # Repeats stand together, in the order of the packings.
    order = {tuple(lengths): place for place, lengths in enumerate(progress.packings)}
    samples.sort(key=lambda sample: order[tuple(sample.lengths)])
    return MeasuredLayout(
        tp=layout.tp,
        pp=layout.pp,
        max_tokens=largest if settings.limit == "measured" else None,
        samples=samples,
    )


def _source(progress: Progress, layouts: Sequence[MeasuredLayout], num_cores: int) -> str:
    settings = progress.settings
    foreign = foreign_cores(progress)
    load = "unknown" if foreign is None else f"{foreign:.2f} of {num_cores} cores"
    num_samples = sum(len(layout.samples) for layout in layouts)
    num_outliers = sum(sample.is_outlier for layout in layouts for sample in layout.samples)
    clock = "CPU" if settings.clock == "cpu" else "wall"
    where = "GPUs" if settings.device == "cuda" else "processes of 1 thread"
    return (
        f"measured on this machine: {settings.num_ranks} {where} at once, {clock} time of each micro-batch on its "
        f"slowest rank, forward and backward; {num_samples} samples, {num_outliers} of them marked as outliers; "
        f"foreign load {load}"
    )
