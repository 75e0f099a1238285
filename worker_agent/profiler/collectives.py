"""How long collectives among the ranks take, by kind, ranks and bytes."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from worker_agent.executor.collectives import Group, collective_device, gather_values
from worker_agent.profiler.records import Collective, CollectiveRecord, Record
from worker_agent.profiler.settings import ProfilingSettings

_SIZES_BYTES = (2**10, 2**14, 2**18, 2**22)
_REPEATS = 5
_WARM_UPS = 2
_ELEMENT_BYTES = 4


def planned_collectives(settings: ProfilingSettings) -> tuple[Collective, ...]:
    """Return the collectives to time: all-reduce and all-to-all in pairs, tensor-parallel groups and all ranks; sends.

    Sizes are what each rank gives, rounded up to what an all-to-all shares evenly.
    """
    degrees = {2, settings.num_ranks, *(layout.tp for layout in settings.layouts)}
    return tuple(
        Collective(kind=kind, num_ranks=num_ranks, num_bytes=-(-size // share) * share)
        for num_ranks in sorted(degree for degree in degrees if 2 <= degree <= settings.num_ranks)
        for kind in ("all-reduce", "all-to-all", "send")
        if kind != "send" or num_ranks == 2
        for share in (_ELEMENT_BYTES * num_ranks,)
        for size in _SIZES_BYTES
    )


def time_collectives(settings: ProfilingSettings, records: Sequence[Record], tell: Callable[[Record], None]) -> None:
    """Time what was not timed yet; every rank calls it. Groups of as many ranks as there are work at once."""
    done = {record.collective for record in records if isinstance(record, CollectiveRecord)}
    groups: dict[int, Group] = {}
    for collective in planned_collectives(settings):
        if collective in done:
            continue
        if collective.num_ranks not in groups:
            groups[collective.num_ranks] = _own_group(collective.num_ranks)
        tell(CollectiveRecord(collective=collective, time_ms=_time(collective, groups[collective.num_ranks])))


def _own_group(num_ranks: int) -> Group:
    """Make all groups of so many neighbouring ranks, and return this rank's; None if it is left over."""
    own: Group = None
    for first in range(0, dist.get_world_size() - num_ranks + 1, num_ranks):
        ranks = list(range(first, first + num_ranks))
        made = dist.new_group(ranks)
        if dist.get_rank() in ranks:
            own = made
    return own


def _time(collective: Collective, group: Group) -> float:
    """Return the median of the repeats, each of which the slowest rank counts for (ms)."""
    values = torch.zeros(collective.num_bytes // _ELEMENT_BYTES, device=collective_device())
    room = torch.zeros_like(values)
    times = []
    for _ in range(_WARM_UPS + _REPEATS):
        dist.barrier()
        began_ns = time.perf_counter_ns()
        if group is not None:
            _communicate(collective, values, room, group)
            if values.device.type == "cuda":
                torch.cuda.synchronize(values.device)
        times.append((time.perf_counter_ns() - began_ns) / 1e6)
    by_rank = gather_values(times, None, "gathering times of collectives")
    return float(statistics.median([max(repeat) for repeat in zip(*by_rank, strict=True)][_WARM_UPS:]))


def _communicate(collective: Collective, values: Tensor, room: Tensor, group: Group) -> None:
    if collective.kind == "all-reduce":
        dist.all_reduce(values, group=group)
    elif collective.kind == "all-to-all":
        dist.all_to_all_single(room, values, group=group)
    elif dist.get_rank(group) == 0:
        dist.send(values, group=group, group_dst=1)
    else:
        dist.recv(room, group=group, group_src=0)
