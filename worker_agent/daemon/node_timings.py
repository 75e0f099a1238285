"""Measured times of several ranks as one report of their node: pure."""

from collections.abc import Iterable, Mapping

from planner_client.contract import IterationTimings, Plan, ReplicaTiming
from worker_agent.daemon.wire import RankTimings


def merged_timings(iteration: int, held: Mapping[int, RankTimings]) -> IterationTimings | None:
    """Return what ranks measured of one plan; of a replica's ranks the slowest counts, for each micro-batch too.

    Parameters
    ----------
    iteration
        The iteration.
    held
        What each rank handed in; all of one plan.

    Returns
    -------
    IterationTimings or None
        None if nobody measured anything.
    """
    if not held:
        return None
    first = held[min(held)]
    by_replica: dict[int, list[ReplicaTiming]] = {}
    for rank in sorted(held):
        for timing in held[rank].replicas:
            by_replica.setdefault(timing.replica, []).append(timing)
    if not by_replica:
        return None
    replicas = [_slowest(by_replica[replica]) for replica in sorted(by_replica)]
    return IterationTimings(digest=first.digest, iteration=iteration, replicas=replicas, solved_by=first.solved_by)


def is_all(held: Mapping[int, RankTimings], plan: Plan | None) -> bool:
    """Whether no more is to be waited for: all ranks handed in, or every replica that works was measured."""
    if not held:
        return False
    if all(set(timings.ranks) <= held.keys() for timings in held.values()):
        return True
    if plan is None:
        return False
    working = {number for number, replica in enumerate(plan.replicas) if replica.micro_batches}
    return working <= {timing.replica for timings in held.values() for timing in timings.replicas}


def _slowest(timings: Iterable[ReplicaTiming]) -> ReplicaTiming:
    known = list(timings)
    cpu_ms = [timing.cpu_ms for timing in known if timing.cpu_ms is not None]
    # A rank that measured no single micro-batches tells only of the whole.
    num_micro_batches = max(len(timing.micro_batch_ms) for timing in known)
    measured = [timing.micro_batch_ms for timing in known if len(timing.micro_batch_ms) == num_micro_batches]
    return ReplicaTiming(
        replica=known[0].replica,
        wall_ms=max(timing.wall_ms for timing in known),
        cpu_ms=max(cpu_ms) if cpu_ms else None,
        micro_batch_ms=[max(times) for times in zip(*measured, strict=True)],
    )
