"""Planners that solver processes import in tests: correct but trivial, stuck, dying, refusing or broken."""
# ruff: noqa: ARG001 - solvers are called with all of these arguments, whether they need them or not

import os
import time
from collections.abc import Callable

from planner_client.contract import MicroBatch, Plan, PlanRequest, Profile, Replica, SequenceCount
from planner_service.core.faults import PlanningFault

RemainingMs = Callable[[], float]
OnIncumbent = Callable[[Plan], None] | None


def trivial_plan(request: PlanRequest, profiles: tuple[Profile, ...], *, makespan_ms: float = 100.0) -> Plan:
    """Put every sequence into one micro-batch of one replica, whatever the caps say."""
    entries = [
        SequenceCount(source=source, length=length, count=count)
        for source, histogram in request.histograms_by_source().items()
        for length, count in zip(histogram.lengths, histogram.counts, strict=True)
    ]
    num_tokens = sum(entry.length * entry.count for entry in entries)
    micro_batches = [MicroBatch(sequences=entries, num_tokens=num_tokens, num_padding_tokens=0, time_ms=makespan_ms)]
    replica = Replica(
        tp=1,
        cp=1,
        pp=1,
        device=profiles[0].device.name,
        ranks=[0],
        max_tokens=2**31 - 1,
        makespan_ms=makespan_ms,
        simulated_ms=makespan_ms,
        micro_batches=micro_batches if entries else [],
    )
    return Plan.seal(
        profile=profiles[0].name,
        iteration=request.iteration,
        seed=request.options.seed,
        num_sequences=sum(entry.count for entry in entries),
        num_tokens=num_tokens,
        dropped=[],
        replicas=[replica],
        makespan_ms=makespan_ms,
        simulated_ms=makespan_ms,
        sync_ms=0.0,
        lower_bound_ms=None,
        gap=None,
        bound_scope=None,
        solved_by="heuristic",
        status="feasible",
        planning_ms=float(os.getpid()),
        num_gpus=request.total_gpus,
        strategy="(1,1)x1",
    )


def obliging(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    return trivial_plan(request, profiles)


def slow(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    """Use the deadline but for what a loaded machine may need to hand the plan over; stop when told to."""
    while remaining_ms() > 250:
        time.sleep(0.005)
    return trivial_plan(request, profiles)


def stuck(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    """Find nothing and ignore the deadline; requests with seed 1 are answered at once."""
    while request.options.seed != 1:
        time.sleep(60)
    return trivial_plan(request, profiles)


def stuck_after_incumbents(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    """Send a good plan and a worse one, then ignore the deadline."""
    assert on_incumbent is not None
    on_incumbent(trivial_plan(request, profiles, makespan_ms=50.0))
    on_incumbent(trivial_plan(request, profiles, makespan_ms=70.0))
    while True:
        time.sleep(60)


def dying(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    """End the process; seed 1 leaves a plan behind first, seed 2 dies once only."""
    if request.options.seed == 1 and on_incumbent is not None:
        on_incumbent(trivial_plan(request, profiles, makespan_ms=50.0))
        time.sleep(0.2)
    if request.options.seed == 2:
        marker = os.environ["HYDRAULIS_TEST_MARKER"]
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return trivial_plan(request, profiles)
    os._exit(9)


def greedy(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    """Take memory without end; requests with seed 1 are answered at once."""
    taken: list[bytes] = []
    while request.options.seed != 1:
        # Zeroed by the system, so that it counts as taken but is never written: quick on a slow machine too.
        taken.append(bytes(50_000_000))
    return trivial_plan(request, profiles)


def refusing(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    raise PlanningFault("sequence-too-long", "a sequence is 9 tokens, the limit 8", "drop it", length=9, limit=8)


def broken(
    request: PlanRequest, profiles: tuple[Profile, ...], *, remaining_ms: RemainingMs, on_incumbent: OnIncumbent = None
) -> Plan:
    raise KeyError("a bug of the planner")
