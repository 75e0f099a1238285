"""Looks at the database now and then, for metrics that only it knows; asking for metrics waits for no database."""

import asyncio

from planner_service.desk.metrics import Metrics
from planner_service.store import Store, StoreUnavailable

EVERY_S = 5.0


class StoreWatch:
    """One service's look at its database.

    Parameters
    ----------
    store, metrics
        What to look at, and who is told.
    every_s
        Pause between two looks.
    """

    def __init__(self, store: Store, metrics: Metrics, *, every_s: float = EVERY_S) -> None:
        self._store = store
        self._metrics = metrics
        self._every_s = every_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                num_open = await asyncio.to_thread(self._store.jobs.num_open)
                upcoming = await asyncio.to_thread(self._store.jobs.next_due_at)
            except StoreUnavailable:
                # Whoever needed the database logs why; here it would be once every few seconds.
                self._metrics.observe_store_lost()
            else:
                waited_s = 0.0 if upcoming is None else max(0.0, upcoming[1] - upcoming[0])
                self._metrics.observe_backlog(num_open, waited_s)
            await asyncio.sleep(self._every_s)
