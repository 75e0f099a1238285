"""Those who wait for an iteration, woken by whichever process finishes it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault
from planner_service.store import IterationChanged


class Waiters:
    """Callers that wait, by iteration; used from one event loop, told of changes from any thread.

    Parameters
    ----------
    max_waiting
        Most callers that may wait at a time.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._loop: asyncio.AbstractEventLoop | None = None
        self._events: dict[tuple[str, int], set[asyncio.Event]] = {}
        self._due = asyncio.Event()
        self.num_waiting = 0
        self.is_closing = False

    def bind(self) -> None:
        """Take the running event loop as the one that waits."""
        self._loop = asyncio.get_running_loop()

    def on_change(self, change: IterationChanged) -> None:
        """Wake whoever waits for this; callable from any thread."""
        if self._loop is None:
            return
        try:
            self._loop.call_soon_threadsafe(self._wake, change)
        except RuntimeError:
            # The loop has ended and with it everybody who waited.
            return

    @property
    def due(self) -> asyncio.Event:
        """Set whenever an iteration became due; whoever acts on it clears it first."""
        return self._due

    @contextmanager
    def waiting(self, job: str, iteration: int) -> Iterator[asyncio.Event]:
        """Give an event that is set when the iteration is finished, or the service stops.

        Raises
        ------
        PlanningFault
            Code ``overloaded`` if too many wait.
        """
        if self.num_waiting >= self._max_waiting:
            raise PlanningFault(
                FaultCode.OVERLOADED,
                f"{self.num_waiting} callers wait for plans already",
                "try again in 1 s, let one caller a job wait, or run more services",
                retry_after_s=1,
                limit=self._max_waiting,
            )
        event = asyncio.Event()
        key = (job, iteration)
        self._events.setdefault(key, set()).add(event)
        self.num_waiting += 1
        if self.is_closing:
            event.set()
        try:
            yield event
        finally:
            self.num_waiting -= 1
            events = self._events[key]
            events.discard(event)
            if not events:
                del self._events[key]

    def close(self) -> None:
        """Wake everybody for good, since the service stops."""
        self.is_closing = True
        for events in self._events.values():
            for event in events:
                event.set()
        self._due.set()

    def _wake(self, change: IterationChanged) -> None:
        if change.kind == "due":
            self._due.set()
            return
        for event in self._events.get((change.job, change.iteration), ()):
            event.set()
