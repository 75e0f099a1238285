"""Clocks of an iteration, and the ranks' timings brought together."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

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


class OperationClock:
    """Times the operations of each micro-batch without stopping the device between them.

    Parameters
    ----------
    device
        The device that works.
    waited_ms
        Tells how long computation has waited for parameters so far; what passes of that during an operation is not
        counted. On CUDA such waiting happens on the device and is not seen.
    """

    def __init__(self, device: torch.device, waited_ms: Callable[[], float]) -> None:
        self._device = device
        self._waited_ms = waited_ms
        self._host: list[tuple[int, float]] = []
        self._cpu: list[tuple[int, float]] = []
        self._events: list[tuple[int, torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def operation(self, micro_batch: int) -> Iterator[None]:
        """Count the time of what is done inside to a micro-batch."""
        if self._device.type == "cuda":
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            begin.record()
            yield
            end.record()
            self._events.append((micro_batch, begin, end))
            return
        began_ns, began_cpu_ns, waited_ms = time.perf_counter_ns(), time.process_time_ns(), self._waited_ms()
        yield
        taken_ms = (time.perf_counter_ns() - began_ns) / 1e6
        self._cpu.append((micro_batch, (time.process_time_ns() - began_cpu_ns) / 1e6))
        self._host.append((micro_batch, max(0.0, taken_ms - (self._waited_ms() - waited_ms))))

    def times_ms(self, num_micro_batches: int) -> tuple[float, ...]:
        """Return the time of each micro-batch (ms), forward and backward together."""
        if self._events:
            torch.cuda.synchronize(self._device)
        taken = [*self._host, *((number, begin.elapsed_time(end)) for number, begin, end in self._events)]
        return _summed(taken, num_micro_batches)

    def cpu_times_ms(self, num_micro_batches: int) -> tuple[float, ...]:
        """Return the CPU time of this process during each micro-batch's operations (ms); empty on CUDA."""
        return () if self._device.type == "cuda" else _summed(self._cpu, num_micro_batches)


def _summed(taken: Sequence[tuple[int, float]], num_micro_batches: int) -> tuple[float, ...]:
    times = [0.0] * num_micro_batches
    for micro_batch, taken_ms in taken:
        times[micro_batch] += taken_ms
    return tuple(times)


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
        In the plan's order of replicas, as the planner takes it: of a replica's ranks, the slowest counts, for each
        micro-batch and as a whole. None for a plan without replicas.

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
        slowest = [max(values) for values in zip(*(by_rank[rank] for rank in replica.ranks), strict=True)]
        wall_ms, cpu_ms, *micro_batch_ms = slowest
        ran = micro_batch_ms[: len(replica.micro_batches)]
        replicas.append(ReplicaTiming(replica=number, wall_ms=wall_ms, cpu_ms=cpu_ms, micro_batch_ms=ran))
    if not replicas:
        return None
    counted = plan.iteration if iteration is None else iteration
    return IterationTimings(digest=plan.digest, iteration=counted or 0, replicas=replicas)
