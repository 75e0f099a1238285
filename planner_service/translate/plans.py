"""Solutions to plans."""

from collections.abc import Sequence

from planner_client.contract import (
    GroupCount,
    MicroBatch,
    PassedOver,
    Plan,
    PlanRequest,
    Profile,
    Replica,
    SequenceCount,
)
from planner_service.core.problem import SourceRow
from planner_service.core.solution import PlannedReplica, Solution


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
                groups=[
                    GroupCount(source=group.source, lengths=list(group.lengths), count=group.count)
                    for group in micro_batch.groups
                ],
                num_tokens=micro_batch.num_tokens,
                num_padding_tokens=micro_batch.num_padding_tokens,
                time_ms=micro_batch.time_ms,
            )
            for micro_batch in replica.micro_batches
        ],
    )


def plan_of(solution: Solution, request: PlanRequest, profiles: Sequence[Profile], planning_ms: float) -> Plan:
    """Turn a solution into a sealed plan."""
    micro_batches = [entry for replica in solution.replicas for entry in replica.micro_batches]
    lower = solution.lower_bound_ms
    sync_ms = request.options.sync_ms
    return Plan.seal(
        profile=request.profile_names,
        iteration=request.iteration,
        seed=request.options.seed,
        num_sequences=sum(row.count for entry in micro_batches for row in entry.rows),
        num_tokens=sum(entry.num_tokens for entry in micro_batches),
        dropped=_rows(solution.dropped),
        replicas=[_replica(replica) for replica in solution.replicas],
        makespan_ms=solution.makespan_ms,
        simulated_ms=solution.simulated_ms,
        sync_ms=max(profile.sync_ms for profile in profiles) if sync_ms is None else sync_ms,
        lower_bound_ms=lower,
        gap=max(0.0, solution.makespan_ms / lower - 1) if lower > 0 else 0.0,
        bound_scope=solution.bound_scope,
        solved_by=solution.solved_by,
        status="optimal" if solution.optimal else "feasible",
        planning_ms=planning_ms,
        method=request.options.method,
        cost=request.options.cost,
        num_gpus=request.total_gpus,
        alignment=request.options.alignment,
        strategy=str(solution.strategy),
        all_strategies_lower_bound_ms=solution.all_strategies_bound_ms,
        profile_version=request.profile_version,
        cut_by_wall_clock=solution.cut_by_wall_clock,
        passed_over=[PassedOver(strategy=name, reason=reason) for name, reason in solution.passed_over],
    )
