"""Takes iterations up as they become due, has them solved, and keeps what comes of it."""

import asyncio
import socket
import time
import uuid
from dataclasses import dataclass

import structlog
from pydantic import ValidationError

from planner_client.contract import FaultCode, JobSpec, PlanRequest, SourceBatch, request_for
from planner_service.core.faults import PlanningFault
from planner_service.desk.metrics import Metrics
from planner_service.desk.plan_desk import PlanDesk
from planner_service.desk.problem_documents import problem_document, unexpected
from planner_service.jobs.assemble import sources_missing, spec_of
from planner_service.jobs.describe import num_dropped_of, summary_of_plan
from planner_service.jobs.lateness import LATE, Congestion, UsualTime
from planner_service.jobs.learning_desk import version_told
from planner_service.jobs.waiters import Waiters
from planner_service.store import Claim, PlanRow, PlanStands, Store, StoreUnavailable
from planner_service.tracing import begin
from planner_service.translate.learned import LearnedRequest, learned_request

POLL_S = 1.0
"""How often a service looks for due iterations by itself: those of a service that died, and where no notice came."""

LATE_POLL_S = 0.25
"""How often at most a service looks for iterations to give up."""

SOONEST_S = 0.01
"""Shortest pause between two looks, where others hold what could be done next."""

PAUSE_S = 1.0
"""Pause after the store could not be used, and before another try where nothing is wrong with the iteration."""

MAX_TRIES = 5
"""Times an iteration is taken up before it counts as failed, where nothing is wrong with its request."""

_PASSING = frozenset({FaultCode.OVERLOADED, FaultCode.SHUTTING_DOWN, FaultCode.STORE_UNAVAILABLE, FaultCode.NOT_READY})
"""Faults of the moment: they tell nothing about the iteration."""


@dataclass(frozen=True)
class DispatchLimits:
    """Bounds of one service's part of the work.

    Attributes
    ----------
    num_at_once
        Iterations that it has in work at a time.
    lease_s
        How long an iteration is left to a service that gives no sign of life.
    drain_s
        Time that iterations in work get to finish when the service stops.
    """

    num_at_once: int
    lease_s: float
    drain_s: float


class Dispatcher:
    """One service's share of the iterations.

    Parameters
    ----------
    store, desk, waiters, metrics
        Where iterations are, who plans, whom to tell, who counts.
    limits
        Bounds.
    congestion
        Is told how long iterations wait.
    """

    def __init__(  # noqa: PLR0913 - each part of the service that it works with
        self,
        *,
        store: Store,
        desk: PlanDesk,
        waiters: Waiters,
        metrics: Metrics,
        limits: DispatchLimits,
        congestion: Congestion,
    ) -> None:
        self._store = store
        self._desk = desk
        self._waiters = waiters
        self._metrics = metrics
        self._limits = limits
        self._congestion = congestion
        self._owner = f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self._usual = UsualTime()
        self._looks_for_late_at = 0.0
        self._working: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        self._log = structlog.get_logger("hydraulis.jobs")

    async def start(self) -> None:
        """Begin to take up iterations."""
        self._loop_task = asyncio.create_task(self._run())

    async def close(self) -> None:
        """Take up nothing more, let what is in work finish for a while, and give the rest back."""
        if self._loop_task is not None:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
        if self._working:
            _, late = await asyncio.wait(self._working, timeout=self._limits.drain_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            pause_s = POLL_S
            self._waiters.due.clear()
            try:
                if time.monotonic() >= self._looks_for_late_at:
                    await self._give_up_late()
                pause_s = await self._take_up()
            except StoreUnavailable as failure:
                self._log.error("store_unavailable", detail=str(failure))
                pause_s = PAUSE_S
            except Exception:  # noqa: BLE001 - the loop must go on, whatever one round of it met
                self._log.exception("dispatch_failed")
                pause_s = PAUSE_S
            try:
                async with asyncio.timeout(pause_s):
                    await self._waiters.due.wait()
            except TimeoutError:
                continue

    async def _give_up_late(self) -> None:
        """Leave alone what nobody can be helped with any more."""
        self._looks_for_late_at = time.monotonic() + LATE_POLL_S
        while num := await asyncio.to_thread(self._store.jobs.give_up_late, LATE):
            for _ in range(num):
                self._metrics.observe_iteration("too late", is_overdue=False, code=FaultCode.PLAN_TOO_LATE)
            self._log.warning("given_up", num_iterations=num, reason="no solver was free while a plan was of use")

    async def _take_up(self) -> float:
        """Claim as many iterations as this service has room for; return when to look again (s)."""
        while len(self._working) < self._limits.num_at_once:
            claim = await asyncio.to_thread(
                self._store.jobs.claim, self._owner, self._limits.lease_s, self._usual.seconds
            )
            if claim is None:
                break
            self._metrics.observe_claim(claim)
            self._congestion.add(claim.job, claim.waited_s, now=time.monotonic())
            task = asyncio.create_task(self._traced(claim))
            self._working.add(task)
            task.add_done_callback(self._worked)
        else:
            return POLL_S
        upcoming = await asyncio.to_thread(self._store.jobs.next_due_at)
        return POLL_S if upcoming is None else min(POLL_S, max(SOONEST_S, upcoming[0] - upcoming[1]))

    async def _traced(self, claim: Claim) -> None:
        """Work, with a trace of its own; what the log says meanwhile names the iteration."""
        structlog.contextvars.bind_contextvars(job=claim.job, iteration=claim.iteration)
        trace = begin("iteration", job=claim.job, iteration=claim.iteration, num_tries=claim.num_tries)
        with self._metrics.in_work.track_inprogress(), trace:
            await self._work(claim)

    def _worked(self, task: "asyncio.Task[None]") -> None:
        self._working.discard(task)
        self._waiters.due.set()

    async def _work(self, claim: Claim) -> None:
        log = self._log.bind(job=claim.job, iteration=claim.iteration, num_tries=claim.num_tries)
        began_at = time.monotonic()
        solving = asyncio.create_task(self._plan(claim))
        keeping = asyncio.create_task(self._keep_lease(claim))
        try:
            await asyncio.wait({solving, keeping}, return_when=asyncio.FIRST_COMPLETED)
            if solving.done():
                await self._settle(claim, solving, log)
                self._usual.add(time.monotonic() - began_at)
            else:
                self._metrics.leases_lost.inc()
                log.warning("lease_lost")
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.to_thread(self._store.jobs.give_back, claim))
            log.info("given_back", reason="the service stops")
            raise
        except StoreUnavailable as failure:
            # The lease ends by itself, and whoever takes the iteration up then finds the plan where it was kept.
            log.error("store_unavailable", detail=str(failure))  # noqa: TRY400 - an outage, not a defect
        finally:
            for task in (solving, keeping):
                task.cancel()
            await asyncio.gather(solving, keeping, return_exceptions=True)

    async def _plan(self, claim: Claim) -> PlanRow:
        spec = spec_of(claim.spec)
        if claim.is_overdue and spec.missing_sources == "refuse":
            raise sources_missing(spec, claim.iteration, claim.batches)
        try:
            request = await asyncio.to_thread(_request_of, spec, claim)
        except ValidationError as unfit:
            message = unfit.errors(include_url=False, include_context=False)[0]["msg"]
            raise PlanningFault(
                FaultCode.INVALID_REQUEST,
                f"what the sources reported cannot be planned together: {message}",
                "correct what the sources report",
            ) from unfit
        learned = await asyncio.to_thread(self._learned, claim, request) if spec.learning == "on" else None
        if learned is not None and (row := await self._plan_learned(claim, request, learned)) is not None:
            return row
        return await self._found(claim, request)

    async def _found(self, claim: Claim, request: PlanRequest) -> PlanRow:
        return (await self._desk.find(request, tenant=f"job {claim.job}")).row

    async def _plan_learned(self, claim: Claim, request: PlanRequest, learned: LearnedRequest) -> PlanRow | None:
        """Plan with what was learned; None where that keeps sequences from being trained on that could be without."""
        try:
            row = await self._found(claim, learned)
        except PlanningFault as fault:
            if fault.code in _PASSING or fault.code == FaultCode.DEADLINE_EXCEEDED:
                raise
            self._log.warning("learned_unfit", version=learned.version, code=str(fault.code), detail=fault.detail)
            return None
        num_dropped = num_dropped_of(row.body)
        if num_dropped and num_dropped > num_dropped_of((await self._found(claim, request)).body):
            detail = f"it would drop {num_dropped} sequences, more than without it"
            self._log.warning("learned_unfit", version=learned.version, code=FaultCode.SEQUENCE_TOO_LONG, detail=detail)
            return None
        return row

    def _learned(self, claim: Claim, request: PlanRequest) -> LearnedRequest | None:
        """Return a request with what the job learned by now; None if that is nothing."""
        newest = self._store.learning.newest(claim.job)
        if newest is None:
            return None
        try:
            return learned_request(request, version_told(newest))
        except ValidationError as unfit:
            detail = unfit.errors(include_url=False, include_context=False)[0]["msg"]
            self._log.warning("learned_unfit", version=newest.version, code=FaultCode.INVALID_REQUEST, detail=detail)
            return None

    async def _settle(
        self, claim: Claim, solving: "asyncio.Task[PlanRow]", log: "structlog.stdlib.BoundLogger"
    ) -> None:
        """Keep the plan, or why there is none, or let another try follow."""
        try:
            row = solving.result()
        except PlanningFault as fault:
            is_passing = fault.code in _PASSING
            may_pass = fault.code == FaultCode.DEADLINE_EXCEEDED and claim.num_tries < MAX_TRIES
            if is_passing or may_pass:
                await self._try_again(claim, str(fault), log)
                return
            await self._fail(claim, fault, log)
        except StoreUnavailable:
            raise
        except Exception as error:
            if claim.num_tries < MAX_TRIES:
                await self._try_again(claim, f"{type(error).__name__}: {error}", log)
                return
            log.exception("iteration_failed_unexpectedly")
            await self._fail(claim, unexpected(f"{claim.job}/{claim.iteration}"), log)
        else:
            row = await asyncio.to_thread(self._finish, claim, row)
            self._metrics.observe_iteration("planned", is_overdue=claim.is_overdue)
            log.info("iteration_planned", digest=row.digest, is_overdue=claim.is_overdue)

    def _finish(self, claim: Claim, row: PlanRow) -> PlanRow:
        """Keep a plan with its iteration; return the one that is kept, where another service found one, too."""
        while True:
            try:
                self._store.jobs.finish(claim, row, summary_of_plan(row.body))
            except PlanStands as other:
                row = other.row
            else:
                return row

    async def _fail(self, claim: Claim, fault: PlanningFault, log: "structlog.stdlib.BoundLogger") -> None:
        problem = problem_document(fault, request_id=f"{claim.job}/{claim.iteration}")
        await asyncio.to_thread(self._store.jobs.fail, claim, problem)
        self._metrics.observe_iteration("failed", is_overdue=claim.is_overdue, code=fault.code)
        log.warning("iteration_failed", code=str(fault.code), detail=fault.detail)

    async def _try_again(self, claim: Claim, reason: str, log: "structlog.stdlib.BoundLogger") -> None:
        self._metrics.given_back.inc()
        log.warning("given_back", reason=reason)
        await asyncio.sleep(PAUSE_S)
        await asyncio.to_thread(self._store.jobs.give_back, claim)

    async def _keep_lease(self, claim: Claim) -> None:
        """Renew the lease for as long as the iteration is this service's; returns when it is not any more."""
        while True:
            await asyncio.sleep(self._limits.lease_s / 3.0)
            try:
                if not await asyncio.to_thread(self._store.jobs.renew, claim, self._limits.lease_s):
                    return
            except StoreUnavailable as failure:
                self._log.error("lease_not_renewed", job=claim.job, iteration=claim.iteration, detail=str(failure))


def _request_of(spec: JobSpec, claim: Claim) -> PlanRequest:
    batches = {source: SourceBatch.model_validate_json(body) for source, body in claim.batches.items()}
    return request_for(spec, claim.iteration, batches)
