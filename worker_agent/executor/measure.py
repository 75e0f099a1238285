"""Clocks of an iteration, and the ranks' timings brought together."""

import time

import torch

from planner_client.contract import IterationTimings, Plan, ReplicaTiming
from worker_agent.executor.collectives import Group, gather_values


class Stopwatch:
    """Wall time and process CPU time between laps, both in milliseconds.

    On CUDA a lap waits for the device, so that it times the work and not its launch.

    Parameters
    ----------
    device
        The device that works.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._wall_ns, self._cpu_ns = self._read()

    def lap(self) -> tuple[float, float]:
        """Return (wall ms, CPU ms) since the last lap and begin the next."""
        wall_ns, cpu_ns = self._read()
        lap = (wall_ns - self._wall_ns) / 1e6, (cpu_ns - self._cpu_ns) / 1e6
        self._wall_ns, self._cpu_ns = wall_ns, cpu_ns
        return lap

    def _read(self) -> tuple[int, int]:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter_ns(), time.process_time_ns()


def gather_timings(
    plan: Plan, timing: ReplicaTiming | None, *, iteration: int | None = None, group: Group = None
) -> IterationTimings | None:
    """Bring all replicas' timings to every rank; a collective that every rank of the group calls.

    Parameters
    ----------
    plan
        The plan that was run.
    timing
        This rank's timing; None on an idle rank.
    iteration
        Number of the iteration; the plan's own by default, or 0 if it has none.
    group
        The process group; by default all ranks.

    Returns
    -------
    IterationTimings or None
        In the plan's order of replicas, as the planner takes it; None for a plan without replicas.

    Raises
    ------
    RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    widest = max((len(replica.micro_batches) for replica in plan.replicas), default=0)
    own = [0.0, 0.0] if timing is None else [timing.wall_ms, timing.cpu_ms or 0.0, *timing.micro_batch_ms]
    by_rank = gather_values(own + [0.0] * (2 + widest - len(own)), group, "gathering timings")
    replicas = []
    for number, replica in enumerate(plan.replicas):
        wall_ms, cpu_ms, *micro_batch_ms = by_rank[replica.ranks[0]]
        ran = micro_batch_ms[: len(replica.micro_batches)]
        replicas.append(ReplicaTiming(replica=number, wall_ms=wall_ms, cpu_ms=cpu_ms, micro_batch_ms=ran))
    if not replicas:
        return None
    counted = plan.iteration if iteration is None else iteration
    return IterationTimings(digest=plan.digest, iteration=counted or 0, replicas=replicas)
