"""Measured times: collected from ranks, sent to the planner in the background."""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from planner_client.contract import FaultCode, IterationTimings, Plan
from planner_client.errors import HydraulisError
from worker_agent.daemon.decisions import is_final
from worker_agent.daemon.jobs import KnownJobs
from worker_agent.daemon.metrics import AgentMetrics
from worker_agent.daemon.node_iteration import changed_within
from worker_agent.daemon.node_timings import is_all, merged_timings
from worker_agent.daemon.planner_link import PlannerLink, retry_after_s
from worker_agent.daemon.problems import AgentProblem
from worker_agent.daemon.wire import RankTimings

TIMINGS_WAIT_S = 5.0
"""How long the times of other ranks are waited for."""

MAX_WAITING = 1024
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0

_log = logging.getLogger("hydraulis.agent")


@dataclass(eq=False)
class _Collected:
    began_at: float
    held: dict[int, RankTimings] = field(default_factory=dict)


class TimingsDesk:
    """Takes measured times in and sends them on, the oldest first; where too many wait, the oldest go.

    Parameters
    ----------
    link, jobs, metrics
        The line to the planner, the jobs of this node, who counts.
    plan_of
        Tells an iteration's plan if it is here.
    clock
        Monotonic time (s).
    """

    def __init__(
        self,
        link: PlannerLink,
        jobs: KnownJobs,
        metrics: AgentMetrics,
        plan_of: Callable[[str, int], Plan | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link = link
        self._jobs = jobs
        self._metrics = metrics
        self._plan_of = plan_of
        self._clock = clock
        self._collected: dict[tuple[str, int, str], _Collected] = {}
        self._queue: deque[tuple[str, IterationTimings]] = deque()
        self._changed = asyncio.Event()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def num_waiting(self) -> int:
        """Reports that the planner has not taken, those still collected included."""
        return len(self._queue) + len(self._collected)

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.create_task(self._run())

    def take_in(self, job: str, iteration: int, rank: int, timings: RankTimings) -> None:
        """Take in what one rank measured; the same twice counts once.

        Raises
        ------
        AgentProblem
            Code ``other-job``, or ``invalid-request`` if the rank is none of its own list.
        """
        self._jobs.refuse_other(job)
        if rank not in timings.ranks:
            raise AgentProblem(
                422,
                FaultCode.INVALID_REQUEST,
                f"rank {rank} gives times for ranks {sorted(timings.ranks)} and is none of them",
                "list all ranks of this node that give times, the sender among them",
            )
        key = (job, iteration, timings.digest)
        collected = self._collected.setdefault(key, _Collected(self._clock()))
        collected.held[rank] = timings
        if is_all(collected.held, self._plan_of(job, iteration)):
            self._queue_up(key)
        self._tell()

    async def close(self, drain_s: float) -> None:
        """Send what there is for so long; what is left then is dropped."""
        self._closing = True
        for key in list(self._collected):
            self._queue_up(key)
        self._tell()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=drain_s)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._metrics.timings_dropped.inc(len(self._queue))
        self._queue.clear()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _queue_up(self, key: tuple[str, int, str]) -> None:
        job, iteration, _ = key
        merged = merged_timings(iteration, self._collected.pop(key).held)
        if merged is None:
            return
        if len(self._queue) >= MAX_WAITING:
            self._queue.popleft()
            self._metrics.timings_dropped.inc()
        self._queue.append((job, merged))

    def _queue_up_overdue(self) -> float:
        """Queue what has waited long enough for other ranks; return when the next one has (s from now)."""
        now = self._clock()
        for key, collected in list(self._collected.items()):
            if now - collected.began_at >= TIMINGS_WAIT_S:
                self._queue_up(key)
        return min((held.began_at + TIMINGS_WAIT_S - now for held in self._collected.values()), default=TIMINGS_WAIT_S)

    async def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            changed = self._changed
            next_s = self._queue_up_overdue()
            if not self._queue:
                if self._closing:
                    return
                await changed_within(changed, next_s)
                continue
            job, timings = self._queue[0]
            try:
                await self._link.ask(
                    lambda client, job=job, timings=timings: client.report_timings(  # type: ignore[misc]
                        job, timings.iteration, timings
                    )
                )
                is_taken = True
            except HydraulisError as error:
                if not is_final(error):
                    await changed_within(asyncio.Event(), max(pause_s, min(retry_after_s(error), MAX_PAUSE_S)))
                    pause_s = min(MAX_PAUSE_S, 2 * pause_s)
                    continue
                is_taken = False
                _log.warning(
                    "timings_not_taken",
                    extra={"fields": {"job": job, "iteration": timings.iteration, "detail": str(error)}},
                )
            except Exception:  # noqa: BLE001 - one report that cannot be sent must not keep the others
                is_taken = False
                _log.exception("unexpected_error", extra={"fields": {"job": job, "iteration": timings.iteration}})
            pause_s = FIRST_PAUSE_S
            if self._queue and self._queue[0][1] is timings:
                self._queue.popleft()
            (self._metrics.timings_sent if is_taken else self._metrics.timings_dropped).inc()
