"""Whether measured times fit the plan they are said to be of: pure."""

from planner_client.contract import FaultCode, IterationTimings, Plan
from planner_service.core.faults import PlanningFault


def measured_ms(timings: IterationTimings) -> float:
    """Return the longest time that a replica took (ms)."""
    return max(replica.wall_ms for replica in timings.replicas)


def refuse_mismatch(plan: Plan, iteration: int, timings: IterationTimings) -> None:
    """Refuse times that cannot be of this plan.

    Raises
    ------
    PlanningFault
        Code ``plan-mismatch``.
    """
    if timings.iteration != iteration:
        raise _mismatch(f"times of iteration {timings.iteration} were sent as those of iteration {iteration}")
    if timings.digest != plan.digest:
        raise _mismatch(f"times are of plan {timings.digest[:100]} but iteration {iteration} has plan {plan.digest}")
    seen: set[int] = set()
    for timing in timings.replicas:
        if timing.replica in seen:
            raise _mismatch(f"replica {timing.replica} is measured twice; one report has each replica once")
        seen.add(timing.replica)
        if timing.replica >= len(plan.replicas):
            raise _mismatch(f"there is no replica {timing.replica}; the plan has {len(plan.replicas)}")
        expected = len(plan.replicas[timing.replica].micro_batches)
        if timing.micro_batch_ms and len(timing.micro_batch_ms) != expected:
            raise _mismatch(
                f"replica {timing.replica} measured {len(timing.micro_batch_ms)} micro-batches but runs {expected}"
            )


def _mismatch(detail: str) -> PlanningFault:
    return PlanningFault(
        FaultCode.PLAN_MISMATCH, detail, "send the times of the plan that this iteration was answered with"
    )
