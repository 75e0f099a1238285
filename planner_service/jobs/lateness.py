"""Iterations that come too late: how long they wait and plans take, and what is told where one would be of no use."""

import statistics
import threading
from collections import OrderedDict, deque

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


LEFT_ALONE = 2.0
"""Times in which a plan is of use after which a job that got no solver comes before those that did."""

MOST_SAVED = 4
"""Iterations that were taken up, and in whose place another one may be begun, at most."""

NUM_JOBS = 10_000
"""Most jobs of which it is remembered when they got a solver."""


class Congestion:
    """Whether iterations wait too long for a solver, from those that this service took up of late; for any thread.

    Where they do, one may be begun for each that is taken up, so that those that wait are planned in time, and the time
    of this service is not spent on others in vain.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: deque[tuple[float, float]] = deque(maxlen=NUM_WAITS)
        self._served_at: OrderedDict[str, float] = OrderedDict()
        self._num_saved = 0

    def add(self, job: str, waited_s: float, *, now: float) -> None:
        """Take one more iteration into account that was taken up, at a monotonic time."""
        with self._lock:
            self._waits.append((now, waited_s))
            self._served_at[job] = now
            self._served_at.move_to_end(job)
            if len(self._served_at) > NUM_JOBS:
                self._served_at.popitem(last=False)
            self._num_saved = min(MOST_SAVED, self._num_saved + 1)

    def is_too_much(self, plan_wait_ms: int | None, *, now: float) -> bool:
        """Whether what is begun now would probably wait until its plan is of no use."""
        if plan_wait_ms is None:
            return False
        with self._lock:
            recent = [waited_s for at, waited_s in self._waits if at > now - RECENT_S]
        return bool(recent) and statistics.median(recent) > CONGESTED * plan_wait_ms / 1000.0

    def may_begin(self, job: str, plan_wait_ms: int, *, now: float) -> bool:
        """Whether a job may begin an iteration although there is too much; if so, it counts as begun.

        Jobs that got a solver a moment ago leave this to others.
        """
        with self._lock:
            served_at = self._served_at.get(job)
            was_served = served_at is not None and served_at > now - LEFT_ALONE * plan_wait_ms / 1000.0
            if was_served or self._num_saved == 0:
                return False
            self._num_saved -= 1
            return True
