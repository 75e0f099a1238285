"""The agent's line to the planner: one client, whose token may be replaced while the agent runs."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from planner_client.client import AsyncPlannerClient
from planner_client.contract import FaultCode
from planner_client.errors import HydraulisError, PlannerUnavailable, RequestRefused
from planner_client.flow import RetryPolicy
from worker_agent.daemon.settings import AgentSettings

CALL_TIMEOUT_S = 10.0

Value = TypeVar("Value")

_log = logging.getLogger("hydraulis.agent")

_TOKEN_REFUSALS = frozenset({FaultCode.UNAUTHENTICATED, FaultCode.TOKEN_EXPIRED})


class PlannerLink:
    """Asks the planner, and knows when it last answered.

    Every call is tried once: whoever asks decides when to try again.

    Parameters
    ----------
    settings
        Where the planner is, and who asks.
    clock
        Monotonic time (s).
    """

    def __init__(self, settings: AgentSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._token = settings.token()
        self._client = self._new_client()
        self._renewing = asyncio.Lock()
        self.is_reached: bool | None = None
        self.answered_at: float | None = None
        self.on_error: Callable[[], None] = lambda: None

    async def ask(self, call: Callable[[AsyncPlannerClient], Awaitable[Value]]) -> Value:
        """Ask something, once more if the planner refuses the token and the file holds another by now.

        Raises
        ------
        HydraulisError
            If there is no answer, or a refusal.
        """
        used = self._token
        try:
            return await self._noted(call)
        except RequestRefused as refused:
            if refused.problem.code not in _TOKEN_REFUSALS or not await self._renew(used):
                raise
        return await self._noted(call)

    async def close(self) -> None:
        """Close connections."""
        await self._client.close()

    async def _noted(self, call: Callable[[AsyncPlannerClient], Awaitable[Value]]) -> Value:
        try:
            value = await call(self._client)
        except HydraulisError as error:
            # A planner that refuses is there.
            self._note(is_reached=isinstance(error, RequestRefused), why=str(error))
            self.on_error()
            raise
        self._note(is_reached=True)
        return value

    def _note(self, *, is_reached: bool, why: str = "") -> None:
        if is_reached:
            self.answered_at = self._clock()
        if is_reached != self.is_reached:
            if not is_reached:
                _log.warning("planner_away", extra={"fields": {"detail": why}})
            elif self.is_reached is not None:
                _log.info("planner_back")
        self.is_reached = is_reached

    async def _renew(self, used: str | None) -> bool:
        """Read the token again; return whether it is another one than that which was used."""
        async with self._renewing:
            if self._token != used:
                return True
            try:
                token = self._settings.token()
            except ValueError as unreadable:
                _log.error("token_unusable", extra={"fields": {"detail": str(unreadable)}})
                return False
            if token == used:
                return False
            old, self._token = self._client, token
            self._client = self._new_client()
            _log.info("token_renewed")
            await old.close()
            return True

    def _new_client(self) -> AsyncPlannerClient:
        return AsyncPlannerClient(
            self._settings.planner_url,
            token=self._token,
            ca_file=self._settings.ca_file,
            timeout_s=CALL_TIMEOUT_S,
            policy=RetryPolicy(max_attempts=1),
        )


def retry_after_s(error: HydraulisError) -> float:
    """Return when the planner asked to come again (s); 0 if it did not."""
    return (error.retry_after_s or 0.0) if isinstance(error, PlannerUnavailable) else 0.0
