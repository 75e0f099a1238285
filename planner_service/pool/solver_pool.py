"""The pool: admits requests, hands them to free solvers, and keeps the solvers alive."""

import asyncio
import itertools
import math
import threading
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog

from planner_client.contract import FaultCode, PlanRequest, Profile
from planner_service.core.faults import PlanningFault
from planner_service.pool.messages import FoundPlan, Job
from planner_service.pool.places import Places
from planner_service.pool.slot import START_ALLOWANCE_S, JobCancelled, Slot, SolverDied
from planner_service.tracing import note, span

PLANNER = "planner_service.translate:plan_request"
MAX_TRIES = 2
RESTART_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""Pauses before each try to start a solver anew; the last one repeats."""


@dataclass(frozen=True)
class PoolLimits:
    """Bounds of the pool; `planner_service.settings.Settings` describes each."""

    num_workers: int
    max_waiting: int
    max_wait_ms: float
    grace_ms: float
    start_timeout_s: float
    max_solver_bytes: int


@dataclass(frozen=True)
class Solved:
    """A plan, how long its request waited for a solver, and how long the solver had it (ms)."""

    plan: FoundPlan
    wait_ms: float
    solve_ms: float


class SolverPool:
    """Solver processes behind one asynchronous `solve`.

    Parameters
    ----------
    limits
        Number of processes, and bounds of waiting.
    solve_name
        ``package.module:function`` that each process imports and calls as `plan_request` is called.
    """

    def __init__(self, limits: PoolLimits, *, solve_name: str = PLANNER) -> None:
        self._limits = limits
        self._slots = [
            Slot(
                solve_name,
                grace_ms=limits.grace_ms,
                start_timeout_s=limits.start_timeout_s,
                max_bytes=limits.max_solver_bytes,
            )
            for _ in range(limits.num_workers)
        ]
        self._threads = ThreadPoolExecutor(limits.num_workers, thread_name_prefix="hydraulis-slot")
        self._places: Places[Slot] = Places(
            (), "solver", max_waiting=limits.max_waiting, max_wait_ms=limits.max_wait_ms, crowded=self._overloaded
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: set[threading.Event] = set()
        self._job_numbers = itertools.count(1)
        self._closing = asyncio.Event()
        self._usual_solve_s = 1.0
        self._log = structlog.get_logger("hydraulis.pool")
        self.num_ready = 0
        self.num_replaced = 0
        self.start_failure: str | None = None

    @property
    def pids(self) -> list[int]:
        """Process ids of the solvers."""
        return [pid for slot in self._slots if (pid := slot.pid) is not None]

    @property
    def num_solvers(self) -> int:
        """Solvers that there should be."""
        return len(self._slots)

    @property
    def num_busy(self) -> int:
        """Solvers that have a request."""
        return len(self._running)

    @property
    def is_ready(self) -> bool:
        """Whether at least one solver can take jobs."""
        return self.num_ready > 0 and not self._closing.is_set()

    @property
    def num_waiting(self) -> int:
        """Requests that wait for a solver."""
        return self._places.num_waiting

    async def start(self) -> None:
        """Begin to start all solvers; returns at once, `is_ready` turns True when the first is warm."""
        for slot in self._slots:
            self._spawn(self._start_slot(slot))

    async def solve(self, request: PlanRequest, profiles: tuple[Profile, ...], *, tenant: str = "") -> Solved:
        """Plan a request in the next free solver.

        Parameters
        ----------
        tenant
            On whose behalf. Tenants take turns; where too many wait, whoever has most waiting is refused.

        Raises
        ------
        PlanningFault
            Code ``overloaded`` if too many wait or the wait is too long (with ``retry_after_s``), ``shutting-down``,
            ``deadline-exceeded``, or whatever the planner refuses the request for.
        PlannerBroken
            If the planner raised an unexpected error.
        SolverDied
            If the solver died during this request, and once more during its second try.
        """
        wait_ms = 0.0
        for attempt in range(1, MAX_TRIES + 1):
            if self._closing.is_set():
                raise _shutting_down()
            with span("wait for a solver"):
                slot, waited_ms = await self._places.take(tenant)
            wait_ms += waited_ms
            started = time.monotonic()
            try:
                with span("solve", attempt=attempt):
                    plan = await self._run_on(slot, request, profiles)
                    note(digest=plan.digest, gap=plan.gap, planning_ms=plan.planning_ms)
            except SolverDied as death:
                self._log.error("solver_died", detail=str(death), attempt=attempt, had_plan=death.best is not None)
                if death.best is None:
                    if attempt == MAX_TRIES:
                        raise
                    continue
                plan = death.best
            solve_s = time.monotonic() - started
            self._usual_solve_s = 0.8 * self._usual_solve_s + 0.2 * solve_s
            return Solved(plan, wait_ms, solve_s * 1000.0)
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """Give up what still runs or waits, and end every process."""
        self._closing.set()
        for cancelled in self._running:
            cancelled.set()
        self._places.send_all_away(_shutting_down())
        for slot in self._slots:
            slot.interrupt()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._limits.start_timeout_s)
        for slot in self._slots:
            await asyncio.to_thread(slot.kill)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self.num_ready = 0

    async def _run_on(self, slot: Slot, request: PlanRequest, profiles: tuple[Profile, ...]) -> FoundPlan:
        """Run one job; if this call is cancelled the job is told to stop, and the slot comes back by itself."""
        job = Job(next(self._job_numbers), request, profiles, float(request.options.deadline_ms))
        cancelled = threading.Event()
        answer: asyncio.Future[FoundPlan] = asyncio.get_running_loop().create_future()
        self._spawn(self._occupy(slot, job, cancelled, answer))
        try:
            return await answer
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def _occupy(
        self, slot: Slot, job: Job, cancelled: threading.Event, answer: "asyncio.Future[FoundPlan]"
    ) -> None:
        loop = asyncio.get_running_loop()
        self._running.add(cancelled)
        # A pipe that stops in the middle of a message would hold the thread; killing the process closes the pipe.
        last_resort_s = job.deadline_ms / 1000.0 + 2 * START_ALLOWANCE_S
        last_resort = loop.call_later(last_resort_s, slot.interrupt)
        try:
            plan = await loop.run_in_executor(self._threads, slot.run, job, cancelled)
            if not answer.done():
                answer.set_result(plan)
        except JobCancelled:
            if not answer.done():
                answer.set_exception(_shutting_down())
        except Exception as fault:  # noqa: BLE001 - whatever it is, the one who waits gets it, and the slot comes back
            if not answer.done():
                answer.set_exception(fault)
        finally:
            last_resort.cancel()
            self._running.discard(cancelled)
            if not answer.done():
                answer.cancel()
        await self._give_back(slot)

    async def _give_back(self, slot: Slot) -> None:
        """Free the slot, with a new process where the old one is gone or does not stop."""
        if self._closing.is_set():
            return
        if await asyncio.get_running_loop().run_in_executor(self._threads, slot.settle):
            self._places.free(slot)
            return
        self.num_ready -= 1
        self.num_replaced += 1
        self._log.warning("solver_replaced", num_replaced=self.num_replaced)
        await self._start_slot(slot)

    async def _start_slot(self, slot: Slot) -> None:
        """Start the slot's process, again and again if need be, and free the slot."""
        for pause_s in itertools.chain(RESTART_PAUSES_S, itertools.repeat(RESTART_PAUSES_S[-1])):
            if await self._closed_within(pause_s):
                return
            try:
                await asyncio.get_running_loop().run_in_executor(self._threads, slot.start)
            except SolverDied as death:
                self.start_failure = str(death)
                self._log.error("solver_start_failed", detail=str(death))
                continue
            if self._closing.is_set():
                return
            self.start_failure = None
            self.num_ready += 1
            self._places.free(slot)
            return

    async def _closed_within(self, pause_s: float) -> bool:
        try:
            async with asyncio.timeout(pause_s):
                await self._closing.wait()
        except TimeoutError:
            return self._closing.is_set()
        return True

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _overloaded(self, detail: str, limit: float) -> PlanningFault:
        rounds = (self.num_waiting + 1) / max(1, self._limits.num_workers)
        retry_after_s = max(1, min(60, math.ceil(rounds * self._usual_solve_s)))
        return PlanningFault(
            FaultCode.OVERLOADED,
            detail,
            f"try again in {retry_after_s} s, or run the service with more workers",
            retry_after_s=retry_after_s,
            limit=limit,
        )


def _shutting_down() -> PlanningFault:
    return PlanningFault(
        FaultCode.SHUTTING_DOWN, "the service is shutting down", "send the request to another one", retry_after_s=1
    )
