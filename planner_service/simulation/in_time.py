"""Plan in this process and keep the deadline, whatever the solver does."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from planner_client.contract import Plan, PlanRequest, Profile
from planner_service.translate import plan_request

Result = TypeVar("Result")

GRACE_SHARE = 0.1
"""Share of the deadline that a solver may overrun it by before the incumbent is taken from it."""


def run_in_time(work: Callable[[Callable[[], float]], Result], limit_ms: float) -> Result | None:
    """Run something in a thread and leave it there if it overruns its limit.

    Parameters
    ----------
    work
        What to run; it is given how to ask for the wall-clock time left, in ms.
    limit_ms
        Its deadline.

    Returns
    -------
    Result | None
        What it returned; None if it did not end in time.

    Raises
    ------
    BaseException
        What it raised.
    """
    started = time.perf_counter()
    results: list[Result] = []
    failures: list[BaseException] = []

    def remaining_ms() -> float:
        return limit_ms - (time.perf_counter() - started) * 1000

    def run() -> None:
        try:
            results.append(work(remaining_ms))
        except BaseException as failure:  # noqa: BLE001 - handed to the waiting thread, which raises it
            failures.append(failure)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    worker.join(limit_ms * (1 + GRACE_SHARE) / 1000)
    if failures:
        raise failures[0]
    return results[0] if results else None


def plan_in_time(request: PlanRequest, profiles: Sequence[Profile]) -> Plan | None:
    """Plan, and take the best incumbent if the solver overruns the deadline.

    Parameters
    ----------
    request
        What to plan, with its deadline.
    profiles
        The profile of each of its pools of GPUs.

    Returns
    -------
    Plan | None
        The plan; None if there was none by the deadline.

    Raises
    ------
    PlanningFault
        If the request cannot be planned as it is.
    """
    incumbents: list[Plan] = []

    def search(remaining_ms: Callable[[], float]) -> Plan:
        return plan_request(request, profiles, remaining_ms=remaining_ms, on_incumbent=incumbents.append)

    found = run_in_time(search, request.options.deadline_ms)
    if found is None and incumbents:
        return incumbents[-1].model_copy(update={"cut_by_wall_clock": True})
    return found
