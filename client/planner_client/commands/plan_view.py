"""One plan for people: what it promises, what each replica does, and how long that took where it was measured."""

from collections.abc import Mapping, Sequence
from itertools import groupby

from planner_client.commands.figures import assignment_of, layout_name
from planner_client.commands.shown import milliseconds, percent, print_facts, print_space, print_table
from planner_client.contract import IterationTimings, Plan


def show_plan(plan: Plan, measured: Mapping[int, float] | None = None) -> None:
    """Print a plan.

    Parameters
    ----------
    plan
        The plan.
    measured
        Measured time of replicas (ms) by their number.
    """
    figures = assignment_of(plan)
    scope = "all strategies" if plan.bound_scope == "all-strategies" else "this strategy"
    bound = None if plan.lower_bound_ms is None else f"{milliseconds(plan.lower_bound_ms)} ms, proven for {scope}"
    shortest, longest = figures["shortest_tokens"], figures["longest_tokens"]
    lengths = f", each of {shortest:,} to {longest:,}" if longest else ""
    print_facts(
        (
            ("sha256", plan.digest.removeprefix("sha256:")),
            ("profile", plan.profile),
            ("iteration", None if plan.iteration is None else str(plan.iteration)),
            ("strategy", f"{plan.strategy} on {plan.num_gpus:,} GPUs"),
            ("sequences", f"{plan.num_sequences:,} with {plan.num_tokens:,} tokens{lengths}"),
            ("dropped", f"{figures['num_dropped']:,} over-long sequence(s)" if plan.dropped else None),
            ("makespan", f"{milliseconds(plan.makespan_ms)} ms (1F1B simulation {milliseconds(plan.simulated_ms)} ms)"),
            ("sync", f"{milliseconds(plan.sync_ms)} ms on top" if plan.sync_ms else None),
            ("measured", f"{milliseconds(max(measured.values()))} ms, the slowest replica" if measured else None),
            ("lower bound", bound),
            ("gap", f"{percent(plan.gap)} ({plan.status}, by {plan.solved_by})"),
            ("planning", f"{milliseconds(plan.planning_ms)} ms"),
        )
    )
    _show_replicas(plan, measured or {})


def slowest_by_replica(timings: Sequence[IterationTimings], digest: str) -> dict[int, float]:
    """Return the longest time (ms) that anybody measured of each replica of a plan."""
    slowest: dict[int, float] = {}
    for timing in (timing for report in timings if report.digest == digest for timing in report.replicas):
        slowest[timing.replica] = max(timing.wall_ms, slowest.get(timing.replica, 0.0))
    return slowest


def _show_replicas(plan: Plan, measured: Mapping[int, float]) -> None:
    has_devices = len({replica.device for replica in plan.replicas}) > 1
    figures = ["seqs", "tokens", "mb", "predicted ms", *(["measured ms"] if measured else [])]
    rows = [
        [
            str(number),
            layout_name(replica),
            *([replica.device] if has_devices else []),
            ranges(replica.ranks),
            f"{sum(entry.count for batch in replica.micro_batches for entry in batch.sequences):,}",
            f"{sum(batch.num_tokens for batch in replica.micro_batches):,}",
            str(len(replica.micro_batches)) if replica.micro_batches else "idle",
            milliseconds(replica.makespan_ms),
            *([milliseconds(measured.get(number))] if measured else []),
        ]
        for number, replica in enumerate(plan.replicas)
    ]
    print_space()
    print_table(["#", "layout", *(["device"] if has_devices else []), "ranks", *figures], rows, right=["#", *figures])


def ranges(ranks: Sequence[int]) -> str:
    """Write ranks as ranges: 0-15,32."""
    parts = []
    for _, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts)
