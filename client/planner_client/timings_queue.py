"""Sends measured times in the background; training is never kept waiting for it."""

import logging
import threading
import time
from collections import deque

from planner_client.asking import Asking
from planner_client.contract import IterationTimings
from planner_client.errors import HydraulisError, PlannerUnavailable

SEND_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
DRAIN_S = 2.0

_log = logging.getLogger("planner_client.steady")


class TimingsQueue:
    """Holds measured times until the planner takes them; the oldest go where there are too many.

    Parameters
    ----------
    asking
        Takes them to the planner.
    capacity
        Most of them that wait.
    """

    def __init__(self, asking: Asking, capacity: int) -> None:
        self._asking = asking
        self._capacity = capacity
        self._waiting: deque[IterationTimings] = deque()
        self._changed = threading.Condition()
        self._closes_at: float | None = None
        self._thread: threading.Thread | None = None
        self.num_sent = 0
        self.num_dropped = 0

    def put(self, timings: IterationTimings) -> None:
        """Hand over measured times; returns at once."""
        with self._changed:
            if self._closes_at is not None:
                self.num_dropped += 1
                return
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self.num_dropped += 1
            self._waiting.append(timings)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="planner-timings", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Give what waits a last chance, for so long; what is left then is dropped."""
        with self._changed:
            self._closes_at = time.monotonic() + drain_s
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(drain_s)
        with self._changed:
            self.num_dropped += len(self._waiting)
            self._waiting.clear()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while (timings := self._next()) is not None:
            try:
                is_taken = self._asking.report_timings(timings, self._time_for_one_s())
            except PlannerUnavailable as away:
                _log.debug("measured times of iteration %d wait: %s", timings.iteration, away)
                self._pause(away.retry_after_s or pause_s)
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
                continue
            except HydraulisError as refused:
                _log.warning("measured times of iteration %d were not taken: %s", timings.iteration, refused)
                is_taken = False
            except Exception:  # noqa: BLE001 - the thread must go on, whatever one report met
                _log.exception("measured times of iteration %d could not be sent", timings.iteration)
                is_taken = False
            pause_s = FIRST_PAUSE_S
            self._settle(timings, is_taken=is_taken)

    def _next(self) -> IterationTimings | None:
        """Return the oldest that waits, which stays where it is until it is settled; None at the end."""
        with self._changed:
            while not self._waiting and self._closes_at is None:
                self._changed.wait()
            is_over = self._closes_at is not None and time.monotonic() >= self._closes_at
            return self._waiting[0] if self._waiting and not is_over else None

    def _settle(self, timings: IterationTimings, *, is_taken: bool) -> None:
        with self._changed:
            if not self._waiting or self._waiting[0] is not timings:
                # It was pushed out, and counted as dropped, while it was on its way.
                self.num_dropped -= is_taken
            else:
                self._waiting.popleft()
                self.num_dropped += not is_taken
            self.num_sent += is_taken

    def _pause(self, seconds: float) -> None:
        ends_at = time.monotonic() + min(seconds, MAX_PAUSE_S)
        with self._changed:
            while self._closes_at is None and (left_s := ends_at - time.monotonic()) > 0:
                self._changed.wait(left_s)
            if self._closes_at is not None:
                self._changed.wait(min(0.1, max(0.0, self._closes_at - time.monotonic())))

    def _time_for_one_s(self) -> float:
        with self._changed:
            if self._closes_at is None:
                return SEND_TIMEOUT_S
            return max(0.001, min(SEND_TIMEOUT_S, self._closes_at - time.monotonic()))
