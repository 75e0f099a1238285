"""What the ranks of a round measured, brought together. Pure: no torch."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from worker_agent.profiler.records import Reading, Round, RoundRecord
from worker_agent.profiler.round_plan import replica_packings
from worker_agent.profiler.settings import ProfilingSettings


@dataclass(frozen=True)
class Measured:
    """What one rank measured in a round.

    Attributes
    ----------
    wall_ms, compute_ms
        The whole iteration, and its computing; see `worker_agent.executor.result.IterationResult`.
    cpu_s
        CPU time of the rank's process.
    peak_bytes
        Most memory it held; negative where that was not read.
    times_ms
        Time of each of its micro-batches, in the order they ran.
    """

    wall_ms: float
    compute_ms: float
    cpu_s: float
    peak_bytes: float
    times_ms: tuple[float, ...]


def read_round(
    settings: ProfilingSettings, measured: Round, ranks: Sequence[Measured], *, elapsed_s: float, busy_s: float | None
) -> RoundRecord:
    """Make the record of a round: of a replica's ranks the slowest counts for each micro-batch, as in training.

    Parameters
    ----------
    settings, measured
        What was measured.
    ranks
        What each rank measured, by rank.
    elapsed_s
        Wall time of the iteration.
    busy_s
        How long the cores of the machine worked meanwhile, summed; None where the system does not tell.
    """
    layout = settings.layouts[measured.layout]
    readings: list[Reading] = []
    for number in range(settings.num_replicas(layout)):
        own = ranks[number * layout.num_ranks : (number + 1) * layout.num_ranks]
        slowest = [max(times) for times in zip(*(rank.times_ms for rank in own), strict=True)]
        if measured.kind == "memory":
            peak = max(rank.peak_bytes for rank in own)
            known = None if min(rank.peak_bytes for rank in own) < 0 else int(peak)
            readings.append(
                Reading(packing=measured.packings[0], time_ms=statistics.fmean(slowest), memory_bytes=known)
            )
            continue
        packings = replica_packings(settings, measured, number)
        readings += [Reading(packing=one, time_ms=time) for one, time in zip(packings, slowest, strict=True)]
    # Only the rank that computed longest waited for nobody.
    overhead_ms = max(rank.wall_ms for rank in ranks) - max(rank.compute_ms for rank in ranks)
    foreign = None
    if busy_s is not None and elapsed_s > 0:
        foreign = max(0.0, busy_s - sum(rank.cpu_s for rank in ranks)) / elapsed_s
    return RoundRecord(
        round=measured,
        readings=tuple(readings),
        overhead_ms=max(0.0, overhead_ms),
        elapsed_s=elapsed_s,
        foreign_cores=foreign,
    )
