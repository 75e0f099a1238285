"""Fetches the next plan in the background, and tells how much of that time training waited for."""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
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


class PlanPrefetcher:
    """Fetches plans by iteration, one at a time, on a thread of its own.

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
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="plan-prefetch")
        self._pending: dict[int, Future[tuple[Plan, float]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def start(self, iteration: int) -> None:
        """Begin to fetch the plan of an iteration, unless that has begun already."""
        if iteration not in self._pending:
            self._pending[iteration] = self._thread.submit(self._timed, iteration)

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
            if pending.done():
                raise
            raise TimeoutError(
                f"no plan for iteration {iteration} within {self._timeout_s:g} s; whoever makes it takes too long"
            ) from overdue
        return FetchedPlan(plan, fetch_ms, 1000 * (time.perf_counter() - started))

    def _timed(self, iteration: int) -> tuple[Plan, float]:
        started = time.perf_counter()
        plan = self._fetch(iteration)
        return plan, 1000 * (time.perf_counter() - started)
