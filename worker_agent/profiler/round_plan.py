"""The plan that a round runs by. Pure: no torch."""

from collections import Counter
from collections.abc import Sequence

from planner_client.contract import MicroBatch, Plan, Replica, SequenceCount
from worker_agent.profiler.records import Round
from worker_agent.profiler.settings import ProfilingSettings


def replica_packings(settings: ProfilingSettings, measured: Round, replica: int) -> tuple[int, ...]:
    """Return the micro-batches that one replica runs in a round, in order.

    In rounds of kind ``time`` replicas begin at different ones, so that equal micro-batches do not run at once.
    """
    layout = settings.layouts[measured.layout]
    if measured.kind == "memory":
        return measured.packings * layout.pp
    begin = replica * len(measured.packings) // settings.num_replicas(layout)
    return measured.packings[begin:] + measured.packings[:begin]


def plan_of(settings: ProfilingSettings, packings: Sequence[Sequence[int]], measured: Round) -> Plan:
    """Return the plan of a round: replicas of one layout side by side, each on sequences that its first rank holds."""
    layout = settings.layouts[measured.layout]
    replicas = [
        _replica(
            list(range(number * layout.num_ranks, (number + 1) * layout.num_ranks)),
            (layout.tp, layout.pp),
            [packings[packing] for packing in replica_packings(settings, measured, number)],
            settings.max_tokens,
        )
        for number in range(settings.num_replicas(layout))
    ]
    lengths = [
        length
        for number in range(len(replicas))
        for packing in replica_packings(settings, measured, number)
        for length in packings[packing]
    ]
    return Plan.seal(
        profile=settings.name,
        iteration=None,
        seed=settings.seed,
        num_sequences=len(lengths),
        num_tokens=sum(lengths),
        dropped=[],
        replicas=replicas,
        makespan_ms=0.0,
        simulated_ms=0.0,
        sync_ms=0.0,
        lower_bound_ms=None,
        gap=None,
        bound_scope=None,
        solved_by="fallback",
        status="feasible",
        planning_ms=0.0,
        num_gpus=settings.num_ranks,
        strategy=f"({layout.tp},{layout.pp})x{len(replicas)}",
    )


def _replica(
    ranks: list[int], degrees: tuple[int, int], micro_batches: Sequence[Sequence[int]], max_tokens: int
) -> Replica:
    tp, pp = degrees
    return Replica(
        tp=tp,
        cp=1,
        pp=pp,
        device="measured",
        ranks=ranks,
        max_tokens=max_tokens,
        makespan_ms=0.0,
        simulated_ms=0.0,
        micro_batches=[
            MicroBatch(
                sequences=[
                    SequenceCount(source=f"rank-{ranks[0]}", length=length, count=count)
                    for length, count in sorted(Counter(lengths).items())
                ],
                num_tokens=sum(lengths),
                num_padding_tokens=0,
                time_ms=0.0,
            )
            for lengths in micro_batches
        ],
    )
