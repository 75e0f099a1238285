"""Few places for many: whoever finds none waits for a turn, bounded in number and in time."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from planner_service.core.faults import PlanningFault
from planner_service.pool.turns import Turns

Place = TypeVar("Place")

Crowded = Callable[[str, float], PlanningFault]
"""Says why somebody is sent away, given what is exceeded and its limit."""


class Places(Generic[Place]):
    """Places that are taken and freed; used from one event loop.

    Parameters
    ----------
    free
        Places to begin with.
    noun
        What they are called where somebody waits in vain for one.
    max_waiting, max_wait_ms
        Most who wait, and for how long.
    crowded
        Makes the fault of whoever is sent away.
    """

    def __init__(
        self, free: Iterable[Place], noun: str, *, max_waiting: int, max_wait_ms: float, crowded: Crowded
    ) -> None:
        self._free = deque(free)
        self._noun = noun
        self._max_waiting = max_waiting
        self._max_wait_ms = max_wait_ms
        self._crowded = crowded
        self._turns: Turns[Place] = Turns()

    @property
    def num_waiting(self) -> int:
        """How many wait."""
        return len(self._turns)

    async def take(self, tenant: str) -> tuple[Place, float]:
        """Wait for a place; return it and the wait (ms).

        Tenants take turns; where too many wait, whoever has most waiting is sent away.

        Raises
        ------
        PlanningFault
            If too many wait, or the wait is too long.
        """
        if self._free:
            return self._free.popleft(), 0.0
        if len(self._turns) >= self._max_waiting:
            self._make_room(tenant)
        began_at = time.monotonic()
        turn = self._turns.join(tenant)
        try:
            async with asyncio.timeout(self._max_wait_ms / 1000.0):
                place = await turn
        except TimeoutError:
            self._return_unused(turn)
            raise self._crowded(
                f"no {self._noun} became free within {self._max_wait_ms:g} ms", self._max_wait_ms
            ) from None
        except asyncio.CancelledError:
            self._return_unused(turn)
            raise
        finally:
            self._turns.leave(tenant, turn)
        return place, (time.monotonic() - began_at) * 1000.0

    def free(self, place: Place) -> None:
        """Give a place to whoever comes next."""
        turn = self._turns.next()
        if turn is None:
            self._free.append(place)
        else:
            turn.set_result(place)

    def send_all_away(self, fault: PlanningFault) -> None:
        """Let everybody who waits hear a fault."""
        for turn in self._turns.drain():
            turn.set_exception(fault)

    def _make_room(self, tenant: str) -> None:
        """Send one of those away who have most waiting, or else this one."""
        crowded = self._crowded(f"{len(self._turns)} requests already wait for a {self._noun}", self._max_waiting)
        sent_away = self._turns.make_room(tenant)
        if sent_away is None:
            raise crowded
        if not sent_away.done():
            sent_away.set_exception(crowded)

    def _return_unused(self, turn: "asyncio.Future[Place]") -> None:
        """Pass a place on that was given at the very moment its taker gave up waiting."""
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            self.free(turn.result())
