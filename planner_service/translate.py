"""Between the wire and the core: requests to problems, solutions to plans, measurements to profiles."""

import math
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest

from planner_client.contract import (
    FaultCode,
    Fit,
    LayoutCost,
    MicroBatch,
    OptimizerLayout,
    PassedOver,
    Plan,
    PlanRequest,
    Profile,
    ProfileMeasurement,
    Replica,
    ReplicaGroup,
    SequenceCount,
)
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import fit_cost
from planner_service.core.memory import MemoryModel, OptimizerSharding, max_tokens
from planner_service.core.problem import Batch, Layout, Options, Problem, ReplicaKind, SourceRow, Strategy
from planner_service.core.select import Effort
from planner_service.core.solution import PlannedReplica, Solution
from planner_service.core.solve import solve
from planner_service.core.validate import check

DETERMINISTIC_SHARE = 0.15
"""CP-SAT's deterministic budget, in its own seconds for each second of deadline."""

RESERVE_SHARE = 0.05
"""Share of the deadline kept for ordering, placing and validating once the search has stopped."""


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
    profile: Profile, num_gpus: int, optimizer_layout: OptimizerLayout | None = None, alignment: int = 1
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
    alignment
        Limits are floored to a multiple of it.

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
        limit = _limit(profile, cost, sharding)
        aligned = limit // alignment * alignment
        if aligned <= 0:
            without_room[layout] = limit
        else:
            kinds[layout] = ReplicaKind(
                layout, profile.device.name, cost.a_ms_per_token2, cost.b_ms_per_token, cost.c_ms, aligned
            )
    return kinds, without_room


def refuse_unusable(profile: Profile) -> None:
    """Refuse a profile with layouts that cannot run however the optimizer states are sharded.

    Raises
    ------
    PlanningFault
        Naming every such layout and its limit.
    """
    limits = {
        Layout(cost.tp, cost.cp, cost.pp): _limit(profile, cost, OptimizerSharding(math.inf, 1, 1))
        for cost in profile.layouts
    }
    unusable = {layout: limit for layout, limit in limits.items() if limit <= 0}
    if unusable:
        named = ", ".join(f"{layout} with {limit} tokens" for layout, limit in sorted(unusable.items()))
        raise PlanningFault(
            FaultCode.LAYOUT_WITHOUT_MEMORY,
            f"profile {profile.name} has layouts whose memory limit is not positive: {named}",
            "leave these layouts out of the profile",
            layouts=[str(layout) for layout in sorted(unusable)],
        )


def _strategy(
    groups: list[ReplicaGroup], kinds: dict[Layout, ReplicaKind], without_room: dict[Layout, int], profile: str
) -> Strategy:
    found = []
    for group in groups:
        layout = Layout(group.tp, group.cp, group.pp)
        if layout in without_room:
            raise PlanningFault(
                FaultCode.LAYOUT_WITHOUT_MEMORY,
                f"layout {layout} cannot run: its memory limit comes out at {without_room[layout]} tokens",
                f"use one of {', '.join(map(str, sorted(kinds)))}",
                layout=str(layout),
                limit=without_room[layout],
            )
        if layout not in kinds:
            raise PlanningFault(
                FaultCode.UNKNOWN_LAYOUT,
                f"profile {profile} has no layout {layout}",
                f"use one of {', '.join(map(str, sorted(kinds)))}, or profile this layout",
                layout=str(layout),
            )
        found.append((kinds[layout], group.num_replicas))
    return Strategy.of(found)


def _arrival(request: PlanRequest) -> Iterator[tuple[str, int]]:
    """Interleave the sources' sequences: the first of each, then the second of each."""
    listed = request.lengths_by_source() or {}
    names = sorted(listed)
    for row in zip_longest(*(listed[name] for name in names)):
        for name, length in zip(names, row, strict=True):
            if length is not None:
                yield name, length


def problem_of(request: PlanRequest, profile: Profile) -> Problem:
    """Turn a request into a problem.

    Raises
    ------
    PlanningFault
        If a strategy names a layout that the profile lacks or that has no memory, or no layout fits the cluster.
    """
    options = request.options
    kinds, without_room = replica_kinds(profile, request.num_gpus, request.optimizer_layout, options.alignment)
    candidates = tuple(_strategy(groups, kinds, without_room, profile.name) for groups in request.strategies)
    fitting = tuple(kind for _, kind in sorted(kinds.items()) if kind.num_ranks <= request.num_gpus)
    if not fitting:
        smallest = min((kind.num_ranks for kind in kinds.values()), default=0)
        raise PlanningFault(
            FaultCode.NO_USABLE_STRATEGY,
            f"profile {profile.name} has no layout that runs on {request.num_gpus} GPU(s)"
            + (f"; its smallest takes {smallest}" if smallest else "; none has a positive memory limit"),
            "use more GPUs, or another profile, or a smaller alignment",
            num_gpus=request.num_gpus,
        )
    rows = tuple(
        SourceRow(source, length, count)
        for source, histogram in sorted(request.histograms_by_source().items())
        for length, count in zip(histogram.lengths, histogram.counts, strict=True)
    )
    return Problem(
        batch=Batch(rows, options.alignment),
        kinds=fitting,
        candidates=candidates,
        num_gpus=request.num_gpus,
        gpus_per_node=profile.device.gpus_per_node,
        options=Options(
            max_length=options.max_length,
            over_long=options.over_long,
            target_gap=options.target_gap,
            seed=options.seed,
            method=options.method,
        ),
        arrival=tuple(_arrival(request)) if options.method == "plain" else (),
    )


def _rows(rows: tuple[SourceRow, ...]) -> list[SequenceCount]:
    return [SequenceCount(source=row.source, length=row.length, count=row.count) for row in rows]


def _replica(replica: PlannedReplica) -> Replica:
    layout = replica.kind.layout
    return Replica(
        tp=layout.tp,
        cp=layout.cp,
        pp=layout.pp,
        device=replica.kind.device,
        ranks=list(replica.ranks),
        max_tokens=replica.kind.max_tokens,
        makespan_ms=replica.makespan_ms,
        simulated_ms=replica.simulated_ms,
        micro_batches=[
            MicroBatch(
                sequences=_rows(micro_batch.rows),
                num_tokens=micro_batch.num_tokens,
                num_padding_tokens=micro_batch.num_padding_tokens,
                time_ms=micro_batch.time_ms,
            )
            for micro_batch in replica.micro_batches
        ],
    )


def plan_of(solution: Solution, request: PlanRequest, profile: Profile, planning_ms: float) -> Plan:
    """Turn a solution into a sealed plan."""
    micro_batches = [entry for replica in solution.replicas for entry in replica.micro_batches]
    lower = solution.lower_bound_ms
    sync_ms = request.options.sync_ms
    return Plan.seal(
        profile=profile.name,
        iteration=request.iteration,
        seed=request.options.seed,
        num_sequences=sum(row.count for entry in micro_batches for row in entry.rows),
        num_tokens=sum(entry.num_tokens for entry in micro_batches),
        dropped=_rows(solution.dropped),
        replicas=[_replica(replica) for replica in solution.replicas],
        makespan_ms=solution.makespan_ms,
        simulated_ms=solution.simulated_ms,
        sync_ms=profile.sync_ms if sync_ms is None else sync_ms,
        lower_bound_ms=lower,
        gap=max(0.0, solution.makespan_ms / lower - 1) if lower > 0 else 0.0,
        bound_scope=solution.bound_scope,
        solved_by=solution.solved_by,
        status="optimal" if solution.optimal else "feasible",
        planning_ms=planning_ms,
        method=request.options.method,
        num_gpus=request.num_gpus,
        alignment=request.options.alignment,
        strategy=str(solution.strategy),
        all_strategies_lower_bound_ms=solution.all_strategies_bound_ms,
        cut_by_wall_clock=solution.cut_by_wall_clock,
        passed_over=[PassedOver(strategy=name, reason=reason) for name, reason in solution.passed_over],
    )


def plan_request(
    request: PlanRequest,
    profile: Profile,
    *,
    remaining_ms: Callable[[], float],
    on_incumbent: Callable[[Plan], None] | None = None,
) -> Plan:
    """Plan a request; every plan is validated before it leaves.

    Parameters
    ----------
    request
        What to plan.
    profile
        The profile that the request names or holds.
    remaining_ms
        Wall-clock time left until the request's deadline.
    on_incumbent
        Called with each complete plan that the search has so far.

    Raises
    ------
    PlanningFault
        If the request cannot be planned as it is.
    """
    started = time.perf_counter()
    reserve_ms = request.options.deadline_ms * RESERVE_SHARE
    problem = problem_of(request, profile)
    effort = Effort(
        deterministic_s=request.options.deadline_ms / 1000 * DETERMINISTIC_SHARE,
        remaining_ms=lambda: remaining_ms() - reserve_ms,
    )

    def checked(solution: Solution) -> Plan:
        check(problem, solution)
        return plan_of(solution, request, profile, (time.perf_counter() - started) * 1000)

    def report(solution: Solution) -> None:
        if on_incumbent is not None:
            on_incumbent(checked(solution))

    return checked(solve(problem, effort, report if on_incumbent is not None else None))


def fit_profile(measurement: ProfileMeasurement) -> Profile:
    """Fit a profile to raw samples, keeping how good each layout's fit is."""
    layouts = []
    for measured in measurement.layouts:
        fitted = fit_cost([(sample.lengths, sample.time_ms) for sample in measured.samples])
        layouts.append(
            LayoutCost(
                tp=measured.tp,
                cp=measured.cp,
                pp=measured.pp,
                a_ms_per_token2=fitted.a,
                b_ms_per_token=fitted.b,
                c_ms=fitted.c,
                max_tokens=measured.max_tokens,
                fit=Fit(
                    num_samples=len(measured.samples),
                    r2=fitted.r2,
                    median_abs_pct_error=fitted.median_abs_pct_error,
                ),
            )
        )
    return Profile(
        name=measurement.name,
        source=measurement.source,
        model=measurement.model,
        device=measurement.device,
        sync_ms=measurement.sync_ms,
        layouts=layouts,
    )
