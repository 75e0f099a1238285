"""Between the wire and what is learned: measured plans to runs, decisions to versions, versions to requests."""

from collections.abc import Mapping, Sequence

from planner_client.contract import (
    Cluster,
    Coefficients,
    DevicePool,
    IterationTimings,
    JobSpec,
    LayoutCost,
    LearnedCost,
    LearnedVersion,
    MicroBatch,
    PassedOver,
    Plan,
    PlanRequest,
    Profile,
    Replica,
    ReplicaGroup,
    SlowRanks,
    format_strategy,
)
from planner_client.contract.scalars import MAX_COEFFICIENT
from planner_service.core.learn.decide import CostChange, Decision
from planner_service.core.learn.measured import Cost, Kind, Registered, Run, Sample
from planner_service.core.learn.split import Groups, Split, SplitPool, split
from planner_service.core.learn.state import SlowRank
from planner_service.core.problem import Layout
from planner_service.translate.clusters import layouts_without_memory, pools_of, replica_kinds


class LearnedRequest(PlanRequest):
    """A request whose cluster is as a job learned; its plan names the profiles as registered, and the version.

    Attributes
    ----------
    registered_profiles
        Names of the job's profiles, joined by ``+``.
    version
        Version of what was learned.
    """

    registered_profiles: str
    version: int

    @property
    def profile_names(self) -> str:
        """Names of the profiles as the job was registered with."""
        return self.registered_profiles

    @property
    def profile_version(self) -> int | None:
        """Version of what was learned."""
        return self.version


def registered_of(cluster: Cluster, profiles: Sequence[Profile]) -> Registered:
    """Return the costs and ranks that a cluster was registered with."""
    costs = {
        Kind(profile.device.name, Layout(own.tp, own.cp, own.pp)): Cost(
            own.a_ms_per_token2, own.b_ms_per_token, own.c_ms
        )
        for profile in profiles
        for own in profile.layouts
    }
    ranks = {
        profile.device.name: tuple(sorted(own)) for profile, own in zip(profiles, cluster.ranks_of_pools(), strict=True)
    }
    return Registered(costs, ranks)


def runs_of(plan: Plan, timings: IterationTimings, registered: Registered) -> list[Run]:
    """Pair a plan's micro-batches with their times, replica by replica.

    Where only a replica's whole time was measured, it is spread over its micro-batches as the plan predicts them.
    """
    found = []
    for timing in timings.replicas:
        replica = plan.replicas[timing.replica]
        device = registered.device_of.get(replica.ranks[0]) if replica.ranks else None
        times = timing.micro_batch_ms or _spread(replica, timing.wall_ms)
        if device is None or len(times) != len(replica.micro_batches):
            continue
        samples = (_sample(own, time_ms, plan) for own, time_ms in zip(replica.micro_batches, times, strict=True))
        kind = Kind(device, Layout(replica.tp, replica.cp, replica.pp))
        found.append(
            Run(timings.iteration, kind, tuple(replica.ranks), tuple(sample for sample in samples if sample[2] > 0))
        )
    return found


def _spread(replica: Replica, wall_ms: float) -> list[float]:
    predicted_ms = replica.simulated_ms or replica.makespan_ms
    return [own.time_ms * wall_ms / predicted_ms for own in replica.micro_batches] if predicted_ms > 0 else []


def _sample(micro_batch: MicroBatch, time_ms: float, plan: Plan) -> Sample:
    charged = [(-(-entry.length // plan.alignment) * plan.alignment, entry.count) for entry in micro_batch.sequences]
    if plan.cost == "padded":
        longest = max(length for length, _ in charged)
        charged = [(longest, count) for _, count in charged]
    squares = float(sum(length * length * count for length, count in charged))
    return squares, float(sum(length * count for length, count in charged)), time_ms


def version_of(
    spec: JobSpec, profiles: Sequence[Profile], decision: Decision, *, version: int, iteration: int | None
) -> LearnedVersion:
    """Return what plans of a job are to be asked for once a decision holds.

    Costs beyond what profiles may have are the highest that they may.
    """
    registered = registered_of(spec, profiles)
    costs = {change.kind: change.after for change in decision.changes}
    may_split = not spec.options.homogeneous and spec.options.method == "hydraulis"
    parted = _split(spec, profiles, {slow.rank: slow.factor for slow in decision.slow} if may_split else {})
    reasons = list(decision.reasons)
    if decision.slow and not parted.is_split:
        reasons.append("slow ranks stay among the others, since no strategy that the job allows sets them apart")
    by_device = {profile.device.name: profile for profile in profiles}
    return LearnedVersion(
        job=spec.name,
        version=version,
        iteration=iteration,
        reasons=reasons,
        costs=list(map(cost_told, decision.changes)),
        slow=slow_told(decision.slow, registered),
        pools=[
            DevicePool(
                profile=_learned_profile(by_device[pool.device], pool, costs),
                num_gpus=pool.num_gpus,
                nodes=[list(node) for node in pool.nodes],
            )
            for pool in parted.pools
        ],
        strategies=[_groups_told(groups, parted) for groups in parted.strategies],
        left_out=[
            PassedOver(
                strategy=format_strategy(spec.strategies[number]),
                reason="has no replicas that fill the blocks of slow ranks",
            )
            for number in parted.left_out
        ],
    )


def learned_request(request: PlanRequest, version: LearnedVersion) -> LearnedRequest:
    """Return a job's request with the cluster as a version has it."""
    fields = {name: getattr(request, name) for name in PlanRequest.model_fields}
    own = {"profile": None, "num_gpus": None, "devices": version.pools, "strategies": version.strategies}
    return LearnedRequest(**{**fields, **own}, registered_profiles=request.profile_names, version=version.version)


def cost_told(change: CostChange) -> LearnedCost:
    """Return what callers are told of a kind's cost."""
    layout = change.kind.layout
    return LearnedCost(
        device=change.kind.device,
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        num_samples=change.num_samples,
        registered=_coefficients(change.registered),
        before=_coefficients(change.before),
        after=_coefficients(change.after),
        registered_error_pct=_percent(change.registered_error),
        learned_error_pct=_percent(change.learned_error),
    )


def slow_told(slow: Sequence[SlowRank], registered: Registered) -> list[SlowRanks]:
    """Return what callers are told of slow ranks."""
    groups: dict[tuple[str, float], list[int]] = {}
    for own in slow:
        groups.setdefault((registered.device_of[own.rank], own.factor), []).append(own.rank)
    return [
        SlowRanks(device=device, factor=factor, ranks=sorted(ranks))
        for (device, factor), ranks in sorted(groups.items())
    ]


def _coefficients(cost: Cost) -> Coefficients:
    return Coefficients(a_ms_per_token2=cost.a, b_ms_per_token=cost.b, c_ms=cost.c)


def _percent(share: float | None) -> float | None:
    return None if share is None else 100.0 * share


def _split(cluster: Cluster, profiles: Sequence[Profile], factors: Mapping[int, float]) -> Split:
    layouts = {
        profile.device.name: tuple(
            replica_kinds(profile, cluster.total_gpus, cluster.optimizer_layout, cluster.options)[0]
        )
        for profile in profiles
    }
    strategies = [tuple(_group_read(group, profiles) for group in groups) for groups in cluster.strategies]
    return split(pools_of(cluster, profiles), factors, strategies, layouts)


def _group_read(group: ReplicaGroup, profiles: Sequence[Profile]) -> tuple[str, Layout, int]:
    layout = Layout(group.tp, group.cp, group.pp)
    having = [
        profile.device.name
        for profile in profiles
        if any((own.tp, own.cp, own.pp) == (group.tp, group.cp, group.pp) for own in profile.layouts)
    ]
    return group.device or (having[0] if having else profiles[0].device.name), layout, group.num_replicas


def _groups_told(groups: Groups, parted: Split) -> list[ReplicaGroup]:
    has_several = len(parted.pools) > 1
    return [
        ReplicaGroup(
            tp=layout.tp, cp=layout.cp, pp=layout.pp, num_replicas=count, device=device if has_several else None
        )
        for device, layout, count in groups
    ]


def _learned_profile(profile: Profile, pool: SplitPool, costs: Mapping[Kind, Cost]) -> Profile:
    # Built-in profiles have layouts that never fit, which requests with profiles of their own may not have.
    without_memory = layouts_without_memory(profile)
    layouts = []
    for own in profile.layouts:
        layout = Layout(own.tp, own.cp, own.pp)
        if layout not in without_memory:
            layouts.append(_with_cost(own, costs[Kind(profile.device.name, layout)].times(pool.factor)))
    device = profile.device.model_copy(update={"name": pool.name})
    return profile.model_copy(update={"layouts": layouts, "device": device})


def _with_cost(layout: LayoutCost, cost: Cost) -> LayoutCost:
    a, b, c = (min(value, MAX_COEFFICIENT) for value in (cost.a, cost.b, cost.c))
    learned = {"a_ms_per_token2": a, "b_ms_per_token": b, "c_ms": c, "fit": None}
    return layout.model_copy(update=learned)
