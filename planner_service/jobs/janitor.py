"""Deletes what is too old, a little at a time."""

import asyncio

import structlog

from planner_service.store import Store, StoreUnavailable

EVERY_S = 600.0
BETWEEN_BATCHES_S = 0.1
DAY_S = 86_400.0


class Janitor:
    """Retention of one service; several on one database do no harm.

    Parameters
    ----------
    store
        What to keep in order.
    keep_iterations_days, keep_plans_days, keep_audit_days, keep_nodes_days
        Ages; see `planner_service.settings.Settings`.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep_iterations_days: float,
        keep_plans_days: float,
        keep_audit_days: float,
        keep_nodes_days: float,
    ) -> None:
        self._store = store
        self._keep_iterations_s = keep_iterations_days * DAY_S
        self._keep_plans_s = keep_plans_days * DAY_S
        self._keep_audit_s = keep_audit_days * DAY_S
        self._keep_nodes_s = keep_nodes_days * DAY_S
        self._task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("hydraulis.retention")

    def start(self) -> None:
        """Begin to clean up now and then."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            num_deleted = 0
            try:
                while num := await asyncio.to_thread(
                    self._store.prune,
                    keep_iterations_s=self._keep_iterations_s,
                    keep_plans_s=self._keep_plans_s,
                    keep_audit_s=self._keep_audit_s,
                    keep_nodes_s=self._keep_nodes_s,
                ):
                    num_deleted += num
                    await asyncio.sleep(BETWEEN_BATCHES_S)
            except StoreUnavailable as failure:
                self._log.error("store_unavailable", detail=str(failure))
            if num_deleted:
                self._log.info("deleted_old", num_deleted=num_deleted)
            await asyncio.sleep(EVERY_S)
