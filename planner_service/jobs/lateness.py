"""Iterations that come too late: how long they wait and plans take, and what is told where one would be of no use."""

import statistics
from collections import deque

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault
from planner_service.desk.problem_documents import problem_document

NUM_REMEMBERED = 64
"""Iterations from whose times the usual one is taken."""

SHARE_IN_TIME = 0.9
"""Share of the remembered iterations that took no longer than the usual time."""

LATE = problem_document(
    PlanningFault(
        FaultCode.PLAN_TOO_LATE,
        "no solver was free while a plan was of use: the plan_wait_ms of the job passed since no source was waited for",
        "train by a plan of your own; run more services or solvers, or register the job with a longer plan_wait_ms",
    ),
    request_id="",
)
"""Why an iteration has no plan that nobody took up in time."""


class UsualTime:
    """How long it takes from taking up an iteration until its plan is kept (s), from those of late."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def add(self, seconds: float) -> None:
        """Take one more time into account."""
        self._seconds.append(seconds)

    @property
    def seconds(self) -> float:
        """The usual time (s); 0 while nothing is known."""
        if not self._seconds:
            return 0.0
        return sorted(self._seconds)[int(SHARE_IN_TIME * (len(self._seconds) - 1))]


NUM_WAITS = 16
RECENT_S = 3.0
"""Most iterations from whose waits congestion is taken, and how long ago they were taken up."""

CONGESTED = 0.5
"""Share of the time in which a plan is of use that iterations wait for a solver, from which on there is too much."""


class Congestion:
    """How long iterations wait for a solver, from those that were taken up of late."""

    def __init__(self) -> None:
        self._waits: deque[tuple[float, float]] = deque(maxlen=NUM_WAITS)

    def add(self, waited_s: float, *, now: float) -> None:
        """Take the wait of one more iteration into account, at a monotonic time."""
        self._waits.append((now, waited_s))

    def wait_s(self, now: float) -> float:
        """Return the usual wait (s); 0 if nothing was taken up of late."""
        recent = [waited_s for at, waited_s in tuple(self._waits) if at > now - RECENT_S]
        return statistics.median(recent) if recent else 0.0

    def is_too_much(self, plan_wait_ms: int | None, *, now: float) -> bool:
        """Whether what is begun now would probably wait until its plan is of no use."""
        return plan_wait_ms is not None and self.wait_s(now) > CONGESTED * plan_wait_ms / 1000.0
