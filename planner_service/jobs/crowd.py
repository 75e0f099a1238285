"""Reports of jobs are taken in a few at a time, so that a flood of them leaves time to plan what they ask for."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault
from planner_service.pool.places import Places

NUM_AT_ONCE = 4
"""Reports that are taken in at a time: enough that one is read while another is written, as few as leave the database
to whoever plans."""

RETRY_AFTER_S = 1


@dataclass(frozen=True)
class CrowdLimits:
    """Bounds of the reports that wait to be taken in.

    Attributes
    ----------
    max_waiting, max_wait_ms
        Most that wait, and for how long.
    """

    max_waiting: int
    max_wait_ms: float


class Crowd:
    """Lets reports in by turns of their jobs; used from one event loop.

    Parameters
    ----------
    limits
        Bounds.
    """

    def __init__(self, limits: CrowdLimits) -> None:
        self._places: Places[None] = Places(
            [None] * NUM_AT_ONCE,
            "place to take a report in",
            max_waiting=limits.max_waiting,
            max_wait_ms=limits.max_wait_ms,
            crowded=_crowded,
        )

    @property
    def num_waiting(self) -> int:
        """Reports that wait to be taken in."""
        return self._places.num_waiting

    @asynccontextmanager
    async def place(self, job: str) -> AsyncIterator[None]:
        """Hold a place.

        Raises
        ------
        PlanningFault
            Code ``overloaded`` if too many wait, or for too long.
        """
        taken, _ = await self._places.take(job)
        try:
            yield
        finally:
            self._places.free(taken)


def _crowded(exceeded: str, limit: float) -> PlanningFault:
    return PlanningFault(
        FaultCode.OVERLOADED,
        exceeded,
        f"try again in {RETRY_AFTER_S} s, report all sources of an iteration in one request, or run more services",
        retry_after_s=RETRY_AFTER_S,
        limit=limit,
    )
