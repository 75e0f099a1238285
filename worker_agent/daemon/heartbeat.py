"""Tells the planner again and again that the node is there."""

import asyncio
import logging

from planner_client.contract import FaultCode, NodeReport
from planner_client.errors import HydraulisError, RequestRefused
from worker_agent.daemon.metrics import AgentMetrics
from worker_agent.daemon.planner_link import PlannerLink

_log = logging.getLogger("hydraulis.agent")

REFUSES_CALLER = frozenset({FaultCode.UNAUTHENTICATED, FaultCode.TOKEN_EXPIRED, FaultCode.FORBIDDEN})


class Heartbeat:
    """Reports a node every few seconds.

    Parameters
    ----------
    link, metrics
        The line to the planner, who counts.
    node, report
        The node's name, and what is said of it.
    """

    def __init__(self, link: PlannerLink, metrics: AgentMetrics, node: str, report: NodeReport) -> None:
        self._link = link
        self._metrics = metrics
        self._node = node
        self._report = report
        self._task: asyncio.Task[None] | None = None
        self._last_code: str | None = None

    def start(self) -> None:
        """Go on reporting."""
        self._task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def once(self) -> RequestRefused | None:
        """Report the node; return the refusal if the planner refuses it. A planner that is away is no refusal."""
        try:
            await self._link.ask(lambda client: client.report_node(self._node, self._report))
        except RequestRefused as refused:
            self._metrics.planner_up.set(0)
            if refused.problem.code != self._last_code:
                _log.error("node_refused", extra={"fields": {"code": refused.problem.code, "detail": str(refused)}})
            self._last_code = refused.problem.code
            return refused
        except HydraulisError:
            self._metrics.planner_up.set(0)
            return None
        self._metrics.planner_up.set(1)
        if self._last_code is not None:
            _log.info("node_taken_again")
        self._last_code = None
        return None

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._report.every_s)
            await self.once()
