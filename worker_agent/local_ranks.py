"""Run one function on several ranks of this machine: start, listen, and end them whatever happens.

Each rank is a process of its own with one compute thread and a process group, gloo's unless GPUs are asked for.
Whatever a rank emits reaches the caller while the ranks run; the first fault of any rank ends them all and reaches the
caller as one error.
"""

import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import socket
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch.multiprocessing.spawn import ProcessContext

Emit = Callable[[Any], None]
"""Sends one picklable value from a rank to the caller."""

RankWork = Callable[[int, int, Any, Emit], Any]
"""``work(rank, num_ranks, argument, emit)``: what each rank runs; importable, so that a fresh process finds it."""

_POLL_S = 0.2
_STOP_GRACE_S = 5.0
_LOST_PEER_SIGNS = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""What gloo says of a peer that is gone."""

_FAULT_GRACE_S = 1.5


class RanksFailed(RuntimeError):  # noqa: N818 - names what happened, as the other faults do
    """One rank or more could not finish.

    Attributes
    ----------
    faults
        Message of each rank that reported one, by rank.
    """

    def __init__(self, message: str, faults: dict[int, str]) -> None:
        super().__init__(message)
        self.faults = faults


@dataclass(frozen=True)
class _Event:
    value: Any


@dataclass(frozen=True)
class _Result:
    rank: int
    value: Any


@dataclass(frozen=True)
class _Fault:
    rank: int
    message: str
    trace: str


def run_on_local_ranks(  # noqa: PLR0913 - what to run, where, and three limits that only the caller knows
    work: RankWork,
    argument: Any,
    *,
    num_ranks: int,
    timeout_s: float,
    collective_timeout_s: float = 60.0,
    on_event: Callable[[Any], None] | None = None,
    device: Literal["cpu", "cuda"] = "cpu",
) -> list[Any]:
    """Run ``work`` on ``num_ranks`` new processes and return what each returned, by rank.

    Parameters
    ----------
    work
        Importable function; see `RankWork`.
    argument
        Passed to every rank (pickled).
    timeout_s
        Wall-clock limit of the whole run.
    collective_timeout_s
        Wall-clock limit of each collective, so that no rank waits for ever for one that is gone.
    on_event
        Called here, in order of arrival, with each value a rank emits.
    device
        With ``cuda``, rank r works on GPU r and the process group is one of NCCL.

    Raises
    ------
    RanksFailed
        If a rank raises, dies or the limit passes; every rank has ended by then.
    ValueError
        If a limit is not a number of seconds above 0, or there is no rank.
    """
    _check_limits(num_ranks, {"timeout_s": timeout_s, "collective_timeout_s": collective_timeout_s})
    from torch.multiprocessing.spawn import spawn  # noqa: PLC0415 - torch takes seconds to import and most commands need none

    inbox: Queue[Any] = multiprocessing.get_context("spawn").Queue()
    with tempfile.TemporaryDirectory(prefix="hydraulis-ranks-") as directory:
        context = spawn(  # type: ignore[no-untyped-call]
            _enter,
            args=(
                _Launch(work, argument, num_ranks, str(Path(directory) / "store"), collective_timeout_s, device),
                inbox,
            ),
            nprocs=num_ranks,
            join=False,
            daemon=True,
        )
        try:
            return _collect(context, inbox, timeout_s, on_event)
        finally:
            _stop(context)
            inbox.close()


@dataclass(frozen=True)
class _Launch:
    """What every rank of one run is started with."""

    work: RankWork
    argument: Any
    num_ranks: int
    store: str
    collective_timeout_s: float
    device: Literal["cpu", "cuda"]


def _enter(rank: int, launch: _Launch, inbox: "Queue[Any]") -> None:
    import torch  # noqa: PLC0415
    import torch.distributed as dist  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    _stay_on_this_machine()
    _end_with_the_parent()
    try:
        if launch.device == "cuda":
            torch.cuda.set_device(rank)
        dist.init_process_group(
            "nccl" if launch.device == "cuda" else "gloo",
            init_method=f"file://{launch.store}",
            rank=rank,
            world_size=launch.num_ranks,
            timeout=timedelta(seconds=launch.collective_timeout_s),
        )
        try:
            value = launch.work(rank, launch.num_ranks, launch.argument, lambda event: inbox.put(_Event(event)))
            inbox.put(_Result(rank, value))
        finally:
            dist.destroy_process_group()
    except Exception as fault:  # noqa: BLE001 - whatever a rank raises has to reach the caller, who names it
        inbox.put(_Fault(rank, f"{type(fault).__name__}: {fault}", traceback.format_exc()))
    inbox.close()
    inbox.join_thread()


def _end_with_the_parent() -> None:
    """End this rank when the process that started it is gone, however it ended."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="end-with-the-parent", daemon=True).start()


def _stay_on_this_machine() -> None:
    """Let gloo use the loopback address: a machine's own name may resolve to none that it can reach."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and any(name == "lo" for _, name in socket.if_nameindex()):
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"


def _collect(
    context: "ProcessContext", inbox: "Queue[Any]", timeout_s: float, on_event: Callable[[Any], None] | None
) -> list[Any]:
    results: dict[int, Any] = {}
    ended: set[int] = set()
    num_ranks = len(context.processes)
    ends_at = time.monotonic() + timeout_s
    while len(results) < num_ranks:
        if time.monotonic() > ends_at:
            raise RanksFailed(f"the ranks did not finish within {timeout_s:g} s and were stopped", {})
        try:
            message = inbox.get(timeout=_POLL_S)
        except queue.Empty:
            _check_alive(context, results, ended)
            continue
        if isinstance(message, _Event) and on_event is not None:
            on_event(message.value)
        elif isinstance(message, _Result):
            results[message.rank] = message.value
        elif isinstance(message, _Fault):
            raise _failure(message, inbox, context)
    return [results[rank] for rank in range(num_ranks)]


def _failure(first: _Fault, inbox: "Queue[Any]", context: "ProcessContext") -> RanksFailed:
    """Hear the other ranks out for a moment, then name the cause: a rank that died, or a fault that is no lost peer."""
    faults = {first.rank: first}
    ends_at = time.monotonic() + _FAULT_GRACE_S
    while (left := ends_at - time.monotonic()) > 0:
        try:
            message = inbox.get(timeout=left)
        except queue.Empty:
            break
        if isinstance(message, _Fault):
            faults[message.rank] = message
    messages = {rank: fault.message for rank, fault in sorted(faults.items())}
    dead = [
        f"rank {rank} {_how_it_died(process.exitcode)}"
        for rank, process in enumerate(context.processes)
        if rank not in faults and process is not None and process.exitcode not in (None, 0)
    ]
    if dead:
        survivors = "; ".join(f"rank {rank}: {message}" for rank, message in messages.items())
        return RanksFailed(f"{'; '.join(dead)}; of the others: {survivors}", messages)
    causes = [fault for fault in faults.values() if not any(sign in fault.message for sign in _LOST_PEER_SIGNS)]
    cause = (causes or [first])[0]
    failure = RanksFailed(f"rank {cause.rank} failed: {cause.message}", messages)
    failure.add_note(f"on rank {cause.rank}:\n{cause.trace}")
    return failure


def _how_it_died(exit_code: int | None) -> str:
    """Say how a process ended that left no message."""
    if exit_code is not None and exit_code < 0:
        number = -exit_code
        name = next((f" ({one.name})" for one in signal.Signals if one == number), "")
        return f"was killed by signal {number}{name}; the machine may have run out of memory"
    return f"died with exit code {exit_code} and left no message"


def _check_limits(num_ranks: int, limits_s: dict[str, float]) -> None:
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks}; give 1 or more")
    for name, value in limits_s.items():
        # Written so that it refuses what is not a number, too.
        if not 0 < value <= threading.TIMEOUT_MAX:
            raise ValueError(f"{name} is {value}; give more than 0 s and at most {threading.TIMEOUT_MAX:.0f} s")


def _check_alive(context: "ProcessContext", results: dict[int, Any], ended: set[int]) -> None:
    """Raise if a rank is gone without a result; one that left in good order gets one more look at its messages."""
    for rank, process in enumerate(context.processes):
        if rank not in results and process is not None and process.exitcode == 0:
            if rank in ended:
                raise RanksFailed(f"rank {rank} ended without a result, or with one that cannot be pickled", {})
            ended.add(rank)
        if rank not in results and process is not None and process.exitcode not in (None, 0):
            raise RanksFailed(f"rank {rank} {_how_it_died(process.exitcode)}", {})


def _stop(context: "ProcessContext") -> None:
    """End every rank: ask, wait a moment, then kill."""
    processes = [process for process in context.processes if process is not None]
    ends_at = time.monotonic() + _STOP_GRACE_S
    for process in processes:
        if process.exitcode is None and not _left_by_itself(process, 0.5):
            process.terminate()
    for process in processes:
        process.join(max(0.0, ends_at - time.monotonic()))
        if process.exitcode is None:
            process.kill()
            process.join(_STOP_GRACE_S)


def _left_by_itself(process: Any, wait_s: float) -> bool:
    process.join(wait_s)
    return process.exitcode is not None
