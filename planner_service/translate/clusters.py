"""Profiles to replica kinds: costs, and limits by the memory model."""

import math
from collections.abc import Sequence

from planner_client.contract import Cluster, FaultCode, LayoutCost, OptimizerLayout, PlanOptions, Profile
from planner_service.core.faults import PlanningFault
from planner_service.core.memory import MemoryModel, OptimizerSharding, max_tokens
from planner_service.core.problem import Layout, Pool, ReplicaKind

NO_OPTIONS = PlanOptions()


def _memory_model(profile: Profile) -> MemoryModel | None:
    memory = profile.memory
    if memory is None:
        return None
    return MemoryModel(
        num_layers=profile.model.num_layers,
        hidden_size=profile.model.hidden_size,
        vocab_size=profile.model.vocab_size,
        memory_bytes=profile.device.memory_bytes,
        activation_bytes={int(tp): value for tp, value in memory.activation_bytes_per_layer_token_hidden_by_tp.items()},
        state_bytes=memory.state_bytes_per_parameter_unit,
        sharded_share=memory.sharded_state_share,
        context_bytes=memory.context_bytes.node,
        safety_bytes=memory.safety_bytes,
    )


def _limit(profile: Profile, cost: LayoutCost, sharding: OptimizerSharding) -> int:
    """Limit of one layout in tokens, before alignment; 0 or less means that it cannot run."""
    if cost.max_tokens is not None:
        return cost.max_tokens
    layout = Layout(cost.tp, cost.cp, cost.pp)
    memory = _memory_model(profile)
    if memory is None or cost.cp > 1 or cost.tp not in memory.activation_bytes:
        raise PlanningFault(
            FaultCode.PROFILE_UNUSABLE,
            f"the memory model of profile {profile.name} does not cover layout {layout}",
            "give the layout a measured max_tokens (the model covers cp = 1 and the tp it has activation bytes for)",
            layout=str(layout),
        )
    return max_tokens(memory, cost.tp, cost.pp, sharding)


def optimizer_layout_for(profile: Profile, num_gpus: int) -> OptimizerLayout:
    """Choose a sharding of the optimizer states: the profile's largest tp that divides the GPUs, no pipeline.

    The share of each GPU hardly depends on it, since the states are spread over all GPUs in any case.
    """
    tp = max((cost.tp for cost in profile.layouts if num_gpus % cost.tp == 0), default=1)
    return OptimizerLayout(dp=num_gpus // tp, tp=tp, pp=1)


def replica_kinds(
    profile: Profile,
    num_gpus: int,
    optimizer_layout: OptimizerLayout | None = None,
    options: PlanOptions = NO_OPTIONS,
) -> tuple[dict[Layout, ReplicaKind], dict[Layout, int]]:
    """Derive the kinds that can run, and the limits of those that cannot.

    Parameters
    ----------
    profile
        Costs and memory.
    num_gpus
        GPUs that the optimizer states are sharded over.
    optimizer_layout
        Their sharding; chosen by `optimizer_layout_for` if not given.
    options
        Those that narrow kinds: alignment (limits are floored to a multiple of it), a lower limit, allowed layouts.

    Returns
    -------
    tuple[dict[Layout, ReplicaKind], dict[Layout, int]]
        Kinds by layout; limits (tokens, before alignment) of layouts without room for one aligned sequence.
    """
    chosen = optimizer_layout or optimizer_layout_for(profile, num_gpus)
    if chosen.dp * chosen.tp * chosen.pp != num_gpus:
        raise PlanningFault(
            FaultCode.OPTIMIZER_LAYOUT_MISMATCH,
            f"optimizer layout dp={chosen.dp}, tp={chosen.tp}, pp={chosen.pp} covers "
            f"{chosen.dp * chosen.tp * chosen.pp} GPUs but there are {num_gpus}",
            "make dp * tp * pp equal to num_gpus",
            num_gpus=num_gpus,
        )
    sharding = OptimizerSharding(chosen.dp, chosen.tp, chosen.pp)
    kinds: dict[Layout, ReplicaKind] = {}
    without_room: dict[Layout, int] = {}
    for cost in profile.layouts:
        layout = Layout(cost.tp, cost.cp, cost.pp)
        if not _is_allowed(layout, options, profile):
            continue
        limit = _limit(profile, cost, sharding)
        lowered = min(limit, options.max_tokens_per_micro_batch or limit)
        aligned = lowered // options.alignment * options.alignment
        if aligned <= 0:
            without_room[layout] = limit
        else:
            kinds[layout] = ReplicaKind(
                layout, profile.device.name, cost.a_ms_per_token2, cost.b_ms_per_token, cost.c_ms, aligned
            )
    return kinds, without_room


def _is_allowed(layout: Layout, options: PlanOptions, profile: Profile) -> bool:
    if options.tp_inside_node and layout.tp > profile.device.gpus_per_node:
        return False
    allowed = options.allowed_layouts
    return allowed is None or any(
        (entry.tp, entry.cp, entry.pp) == (layout.tp, layout.cp, layout.pp) for entry in allowed
    )


def pools_of(cluster: Cluster, profiles: Sequence[Profile]) -> tuple[Pool, ...]:
    """Pair a cluster's GPUs with their profiles' devices.

    Raises
    ------
    PlanningFault
        If two pools are of one device, their profiles of different models, or a node has too many ranks.
    """
    pools = tuple(
        Pool(
            profile.device.name,
            pool.num_gpus,
            profile.device.gpus_per_node,
            tuple(map(tuple, pool.nodes or ())),
        )
        for pool, profile in zip(cluster.pools, profiles, strict=True)
    )
    for pool in pools:
        largest = max(map(len, pool.nodes), default=0)
        if largest > pool.gpus_per_node:
            raise PlanningFault(
                FaultCode.INVALID_REQUEST,
                f"devices gives a node of {pool.device} {largest} ranks but its profile says {pool.gpus_per_node} "
                "GPUs share a node",
                "give nodes of at most so many ranks, or a profile whose device has the right gpus_per_node",
                device=pool.device,
                limit=pool.gpus_per_node,
            )
    devices = [pool.device for pool in pools]
    repeated = sorted({device for device in devices if devices.count(device) > 1})
    if repeated:
        raise PlanningFault(
            FaultCode.INVALID_REQUEST,
            f"devices names {repeated[0]} {devices.count(repeated[0])} times",
            "give all GPUs of one type as one entry",
            device=repeated[0],
        )
    # Profiles of one model may have been taken with differently padded vocabularies.
    shapes = {(profile.model.num_layers, profile.model.hidden_size) for profile in profiles}
    if len(shapes) > 1:
        raise PlanningFault(
            FaultCode.INVALID_REQUEST,
            f"the profiles {', '.join(profile.name for profile in profiles)} are of different models",
            "give profiles of one model, one for each type of GPU",
        )
    return pools


def layouts_without_memory(profile: Profile) -> dict[Layout, int]:
    """Return the layouts that cannot run however the optimizer states are sharded, and their limits (tokens)."""
    limits = {
        Layout(cost.tp, cost.cp, cost.pp): _limit(profile, cost, OptimizerSharding(math.inf, 1, 1))
        for cost in profile.layouts
    }
    return {layout: limit for layout, limit in limits.items() if limit <= 0}


def refuse_unusable(profile: Profile) -> None:
    """Refuse a profile with layouts that cannot run however the optimizer states are sharded.

    Raises
    ------
    PlanningFault
        Naming every such layout and its limit.
    """
    unusable = layouts_without_memory(profile)
    if unusable:
        named = ", ".join(f"{layout} with {limit} tokens" for layout, limit in sorted(unusable.items()))
        raise PlanningFault(
            FaultCode.LAYOUT_WITHOUT_MEMORY,
            f"profile {profile.name} has layouts whose memory limit is not positive: {named}",
            "leave these layouts out of the profile",
            layouts=[str(layout) for layout in sorted(unusable)],
        )
