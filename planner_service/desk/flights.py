"""Equal requests at the same time share one run of the work."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass
class _Flight(Generic[Result]):
    task: "asyncio.Task[Result]"
    num_waiting: int = 0


class Flights(Generic[Result]):
    """Runs in progress, by key. A run that nobody waits for any more is cancelled."""

    def __init__(self) -> None:
        self._by_key: dict[str, _Flight[Result]] = {}

    def is_flying(self, key: str) -> bool:
        """Whether a run for this key is in progress."""
        return key in self._by_key

    async def join(self, key: str, start: Callable[[], Coroutine[None, None, Result]]) -> Result:
        """Wait for the run of this key, starting it if there is none; all who wait get its result or its error."""
        flight = self._by_key.get(key)
        if flight is None:
            flight = _Flight(asyncio.get_running_loop().create_task(start()))
            self._by_key[key] = flight
            flight.task.add_done_callback(lambda task: self._landed(key, task))
        flight.num_waiting += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.num_waiting -= 1
            if flight.num_waiting == 0 and not flight.task.done():
                self._landed(key, flight.task)
                flight.task.cancel()

    def _landed(self, key: str, task: "asyncio.Task[Result]") -> None:
        flight = self._by_key.get(key)
        if flight is not None and flight.task is task:
            del self._by_key[key]
        if task.done() and not task.cancelled():
            task.exception()
