"""Fetches the next plan in the background, and tells how much of that time training waited for."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from queue import SimpleQueue
from types import TracebackType
from typing import Self

from planner_client.contract import Plan


@dataclass(frozen=True)
class FetchedPlan:
    """A plan and what it took to have it.

    Attributes
    ----------
    plan
        The plan.
    fetch_ms
        From asking the planner to having its answer.
    waited_ms
        How long the caller was kept waiting; the rest was hidden behind other work.
    """

    plan: Plan
    fetch_ms: float
    waited_ms: float


_Pending = Future[tuple[Plan, float]]


class PlanPrefetcher:
    """Fetches plans by iteration, one at a time, on a thread of its own.

    The thread does not keep the process from ending, whatever it waits for then.

    Parameters
    ----------
    fetch
        Returns the plan of an iteration; it has a time limit of its own, since a thread cannot be ended.
    timeout_s
        Most time to wait for a plan; None trusts the limit of ``fetch``.
    """

    def __init__(self, fetch: Callable[[int], Plan], *, timeout_s: float | None = None) -> None:
        self._fetch = fetch
        self._timeout_s = timeout_s
        self._pending: dict[int, _Pending] = {}
        self._asked: SimpleQueue[tuple[int, _Pending] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop what nobody has begun to fetch; the thread ends with what it is fetching, and nobody waits for it."""
        for pending in self._pending.values():
            pending.cancel()
        self._pending.clear()
        if self._thread is not None:
            self._asked.put(None)
            self._thread = None

    def start(self, iteration: int) -> None:
        """Begin to fetch the plan of an iteration, unless that has begun already."""
        if iteration in self._pending:
            return
        if self._thread is None:
            # Not a ThreadPoolExecutor: the interpreter waits at its end for the threads of all of those.
            self._thread = threading.Thread(target=self._work, name="plan-prefetch", daemon=True)
            self._thread.start()
        pending: _Pending = Future()
        self._pending[iteration] = pending
        self._asked.put((iteration, pending))

    def take(self, iteration: int) -> FetchedPlan:
        """Return the plan of an iteration, waiting for it where needed; begins to fetch it if nobody did.

        Raises
        ------
        TimeoutError
            If it is not there within the time limit.
        Exception
            Whatever fetching it raised.
        """
        started = time.perf_counter()
        self.start(iteration)
        pending = self._pending.pop(iteration)
        try:
            plan, fetch_ms = pending.result(self._timeout_s)
        except TimeoutError as overdue:
            if pending.done() and not pending.cancelled():
                raise
            # Not begun yet, it is not begun any more: the one before it takes the time.
            pending.cancel()
            raise TimeoutError(
                f"no plan for iteration {iteration} within {self._timeout_s:g} s; whoever makes it takes too long"
            ) from overdue
        except CancelledError as closed:
            raise RuntimeError(f"plan {iteration} was dropped, since the prefetcher was closed") from closed
        return FetchedPlan(plan, fetch_ms, 1000 * (time.perf_counter() - started))

    def _work(self) -> None:
        while (asked := self._asked.get()) is not None:
            iteration, pending = asked
            if not pending.set_running_or_notify_cancel():
                continue
            started = time.perf_counter()
            try:
                plan = self._fetch(iteration)
            except BaseException as fault:  # noqa: BLE001 - whatever it is, the one who takes the plan must hear of it
                pending.set_exception(fault)
            else:
                pending.set_result((plan, 1000 * (time.perf_counter() - started)))
