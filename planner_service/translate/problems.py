"""Requests to problems."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from planner_client.contract import AtomicGroup, FaultCode, PlanOptions, PlanRequest, Profile, ReplicaGroup
from planner_service.core.faults import PlanningFault
from planner_service.core.problem import (
    Batch,
    GroupRow,
    Layout,
    Options,
    Pool,
    Problem,
    ReplicaKind,
    SourceRow,
    Strategy,
)
from planner_service.translate.clusters import pools_of, replica_kinds


@dataclass(frozen=True)
class _Kinds:
    """The kinds that can run by device and layout, and the limits of those that cannot."""

    by_device: dict[str, dict[Layout, ReplicaKind]]
    without_room: dict[str, dict[Layout, int]]
    names: str

    @property
    def all(self) -> list[ReplicaKind]:
        return [kind for kinds in self.by_device.values() for _, kind in sorted(kinds.items())]


def _kinds(request: PlanRequest, profiles: Sequence[Profile]) -> _Kinds:
    found = {
        profile.device.name: replica_kinds(profile, request.total_gpus, request.optimizer_layout, request.options)
        for profile in profiles
    }
    return _Kinds(
        {device: kinds for device, (kinds, _) in found.items()},
        {device: without for device, (_, without) in found.items()},
        request.profile_names,
    )


def _device_of(group: ReplicaGroup, kinds: _Kinds) -> str:
    """Device that a group of replicas runs on; the only one that has its layout if the group names none."""
    layout = Layout(group.tp, group.cp, group.pp)
    if group.device is not None:
        if group.device in kinds.by_device:
            return group.device
        raise PlanningFault(
            FaultCode.UNKNOWN_LAYOUT,
            f"a strategy puts {layout} on {group.device!r} but the cluster has no such device",
            f"use one of {', '.join(sorted(kinds.by_device))}",
            device=group.device,
        )
    having = [
        device for device, own in kinds.by_device.items() if layout in own or layout in kinds.without_room[device]
    ]
    if len(having) > 1:
        raise PlanningFault(
            FaultCode.INVALID_REQUEST,
            f"a strategy does not say which GPUs layout {layout} runs on, and {' and '.join(having)} both have it",
            f"write the device with the group, for example {layout}x{group.num_replicas}@{having[0]}",
            layout=str(layout),
        )
    return having[0] if having else next(iter(kinds.by_device))


def _strategy(groups: Sequence[ReplicaGroup], kinds: _Kinds) -> Strategy:
    found = []
    for group in groups:
        layout, device = Layout(group.tp, group.cp, group.pp), _device_of(group, kinds)
        own, without_room = kinds.by_device[device], kinds.without_room[device]
        if layout in without_room:
            raise PlanningFault(
                FaultCode.LAYOUT_WITHOUT_MEMORY,
                f"layout {layout} cannot run: its memory limit comes out at {without_room[layout]} tokens",
                f"use one of {', '.join(map(str, sorted(own)))}",
                layout=str(layout),
                limit=without_room[layout],
            )
        if layout not in own:
            raise PlanningFault(
                FaultCode.UNKNOWN_LAYOUT,
                f"profile {kinds.names} has no layout {layout} that the request allows",
                f"use one of {', '.join(map(str, sorted(own)))}, or profile this layout",
                layout=str(layout),
            )
        found.append((own[layout], group.num_replicas))
    return Strategy.of(found)


def _arrival(request: PlanRequest) -> Iterator[tuple[str, int]]:
    """Interleave the sources' sequences: the first of each, then the second of each."""
    listed = request.lengths_by_source() or {}
    names = sorted(listed)
    for row in zip_longest(*(listed[name] for name in names)):
        for name, length in zip(names, row, strict=True):
            if length is not None:
                yield name, length


def _groups(request: PlanRequest) -> tuple[GroupRow, ...]:
    return tuple(
        GroupRow(source, lengths, count)
        for source, groups in sorted((request.atomic_groups or {}).items())
        for lengths, count in sorted(_merged(groups).items())
    )


def _merged(groups: Sequence[AtomicGroup]) -> dict[tuple[int, ...], int]:
    merged: dict[tuple[int, ...], int] = {}
    for group in groups:
        lengths = tuple(sorted(group.lengths))
        merged[lengths] = merged.get(lengths, 0) + group.count
    return merged


def _refuse_unknown_layouts(options: PlanOptions, profiles: Sequence[Profile]) -> None:
    having = {(cost.tp, cost.cp, cost.pp) for profile in profiles for cost in profile.layouts}
    for entry in options.allowed_layouts or ():
        if (entry.tp, entry.cp, entry.pp) not in having:
            known = ", ".join(str(Layout(*degrees)) for degrees in sorted(having))
            names = ", ".join(profile.name for profile in profiles)
            raise PlanningFault(
                FaultCode.UNKNOWN_LAYOUT,
                f"allowed_layouts names {Layout(entry.tp, entry.cp, entry.pp)}, which profile {names} does not have",
                f"allow some of {known}, or profile this layout",
                layout=str(Layout(entry.tp, entry.cp, entry.pp)),
            )


def _fitting(kinds: _Kinds, pools: Sequence[Pool]) -> tuple[ReplicaKind, ...]:
    """Kinds that some pool has the GPUs for."""
    num_gpus = {pool.device: pool.num_gpus for pool in pools}
    fitting = tuple(kind for kind in kinds.all if kind.num_ranks <= num_gpus[kind.device])
    if not fitting:
        there_are = " and ".join(
            f"{number} {device}" if len(num_gpus) > 1 else f"{number} GPU(s)" for device, number in num_gpus.items()
        )
        raise PlanningFault(
            FaultCode.NO_USABLE_STRATEGY,
            f"profile {kinds.names} has no layout that runs on {there_are}; {_smallest(kinds)}",
            "use more GPUs, or another profile, or a smaller alignment, or allow more layouts",
            num_gpus=sum(num_gpus.values()),
        )
    return fitting


def _smallest(kinds: _Kinds) -> str:
    """Say how many GPUs of each type the smallest layout takes."""
    least = {device: min(kind.num_ranks for kind in own.values()) for device, own in kinds.by_device.items() if own}
    if not least:
        return "none that is allowed has a positive memory limit"
    if len(kinds.by_device) == 1:
        return f"its smallest takes {next(iter(least.values()))}"
    return "the smallest take " + ", ".join(f"{number} {device}" for device, number in sorted(least.items()))


def problem_of(request: PlanRequest, profiles: Sequence[Profile]) -> Problem:
    """Turn a request into a problem.

    Parameters
    ----------
    request
        What to plan.
    profiles
        The profile of each of its pools of GPUs, in their order.

    Raises
    ------
    PlanningFault
        If a strategy names a layout that the profile lacks or that has no memory, or no layout fits the cluster.
    """
    options = request.options
    pools = pools_of(request, profiles)
    _refuse_unknown_layouts(options, profiles)
    kinds = _kinds(request, profiles)
    rows = tuple(
        SourceRow(source, length, count)
        for source, histogram in sorted(request.histograms_by_source().items())
        for length, count in zip(histogram.lengths, histogram.counts, strict=True)
    )
    return Problem(
        batch=Batch(rows, options.alignment),
        kinds=_fitting(kinds, pools),
        candidates=tuple(_strategy(groups, kinds) for groups in request.strategies),
        pools=pools,
        options=_options(options),
        arrival=tuple(_arrival(request)) if options.method in {"plain", "off", "next-fit"} else (),
        groups=_groups(request),
    )


def _options(options: PlanOptions) -> Options:
    return Options(
        max_length=options.max_length,
        over_long=options.over_long,
        target_gap=options.target_gap,
        seed=options.seed,
        method=options.method,
        is_padded=options.cost == "padded",
        equal_counts=options.equal_micro_batch_counts,
        count_multiple=options.micro_batch_count_multiple,
        at_least_stages=options.at_least_stages,
        idle_allowed=options.idle_replicas == "allow",
        homogeneous=options.homogeneous,
        max_process_groups=options.max_process_groups,
        lowered_max_tokens=options.max_tokens_per_micro_batch,
    )
