"""What callers do with jobs: register them, report what sources hold, fetch plans, give measured times."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

from planner_client.contract import (
    FaultCode,
    IterationList,
    IterationStatus,
    IterationTimings,
    Job,
    JobList,
    JobSpec,
    Plan,
    SourceBatch,
)
from planner_service.access import visible_jobs
from planner_service.core.faults import PlanningFault
from planner_service.desk.canonical import canonical_json, content_digest
from planner_service.desk.catalog import Catalog
from planner_service.desk.metrics import Metrics
from planner_service.desk.problem_documents import fault_of
from planner_service.jobs.assemble import refuse_unfit, sources_of, spec_of, terms_of, unknown_job
from planner_service.jobs.crowd import Crowd, CrowdLimits
from planner_service.jobs.describe import iteration_status, iteration_summary, job_of, job_summary
from planner_service.jobs.lateness import Congestion
from planner_service.jobs.learner import Learner
from planner_service.jobs.timings import measured_ms, refuse_mismatch
from planner_service.jobs.waiters import Waiters
from planner_service.store import (
    BatchConflict,
    IterationClosed,
    IterationRow,
    JobConflict,
    JobRow,
    JobUnknown,
    PlanRow,
    Store,
    TooManyOpen,
)

RECHECK_S = 1.0
"""How often a caller that waits looks for itself, since notices can be lost."""


@dataclass(frozen=True)
class JobLimits:
    """Bounds of jobs.

    Attributes
    ----------
    max_open
        Most unfinished iterations that a job may have.
    reports
        Bounds of the reports that wait to be taken in.
    """

    max_open: int
    reports: CrowdLimits


class JobDesk:
    """Answers everything that concerns jobs.

    Parameters
    ----------
    store, catalog, waiters, metrics, learner
        Where jobs are kept, where named profiles are, who waits for plans, who counts, who learns from measured times.
    limits
        Bounds of one job.
    congestion
        Knows how long iterations wait for a solver.
    """

    def __init__(  # noqa: PLR0913 - each part of the service that it asks
        self,
        *,
        store: Store,
        catalog: Catalog,
        waiters: Waiters,
        metrics: Metrics,
        learner: Learner,
        limits: JobLimits,
        congestion: Congestion,
    ) -> None:
        self._store = store
        self._jobs = store.jobs
        self._catalog = catalog
        self._waiters = waiters
        self._metrics = metrics
        self._learner = learner
        self._crowd = Crowd(limits.reports)
        self._limits = limits
        self._congestion = congestion

    async def register(self, spec: JobSpec) -> tuple[Job, bool]:
        """Register a job; return it, and whether it is new.

        Raises
        ------
        PlanningFault
            Code ``job-conflict`` if another job has the name, or whatever makes a profile unusable.
        """
        for pool in spec.pools:
            await self._catalog.profile_of(pool)
        content = await asyncio.to_thread(canonical_json, spec)
        try:
            row, is_new = await asyncio.to_thread(self._jobs.put, JobRow(spec.name, content))
        except JobConflict:
            known = await asyncio.to_thread(self._jobs.get, spec.name)
            # An earlier version of the planner wrote a spec without the fields that are new since then.
            if known is not None and await asyncio.to_thread(spec_of, known.spec) == spec:
                return job_of(known, spec), False
            raise PlanningFault(
                FaultCode.JOB_CONFLICT,
                f"job {spec.name} is registered already and differs",
                "register yours under another name, or delete the other one first",
                job=spec.name,
            ) from None
        return job_of(row, spec), is_new

    async def job(self, name: str) -> Job:
        """Return a job.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        row = await self._row(name)
        return job_of(row, await asyncio.to_thread(spec_of, row.spec))

    async def page(self, *, after: str, limit: int, patterns: tuple[str, ...] | None = None) -> JobList:
        """Return some jobs, ascending by name; of those that match a pattern, if there are any patterns."""
        return await asyncio.to_thread(self._page, after, limit, patterns)

    def _page(self, after: str, limit: int, patterns: tuple[str, ...] | None) -> JobList:
        rows = visible_jobs(self._jobs, patterns, after=after, limit=limit)
        counts = self._jobs.counts_of([row.name for row in rows])
        return JobList(
            # One that was deleted between the two looks is not there any more.
            jobs=[job_summary(row, counts[row.name]) for row in rows if row.name in counts],
            next_after=rows[-1].name if len(rows) == limit else None,
        )

    async def delete(self, name: str) -> None:
        """Delete a job with all its iterations.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        if not await asyncio.to_thread(self._jobs.delete, name):
            raise unknown_job(name)
        self._learner.forget(name)

    async def report(self, name: str, iteration: int, batches: Mapping[str, SourceBatch]) -> IterationStatus:
        """Keep what sources hold of an iteration.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``, ``unknown-source``, ``batch-conflict``, ``iteration-closed``, ``overloaded``, or
            ``invalid-request`` where no plan could honour the report.
        """
        async with self._crowd.place(name):
            return await asyncio.to_thread(self._take_in, name, iteration, batches)

    def _take_in(self, name: str, iteration: int, batches: Mapping[str, SourceBatch]) -> IterationStatus:
        job = self._row_now(name)
        spec = spec_of(job.spec)
        self._refuse_in_vain(spec, iteration)
        refuse_unfit(spec, sources_of(job.spec), batches)
        contents = {source: canonical_json(batch) for source, batch in batches.items()}
        try:
            row = self._jobs.report(name, iteration, contents, terms_of(spec, self._limits.max_open))
        except JobUnknown:
            raise unknown_job(name) from None
        except BatchConflict as conflict:
            raise _batch_conflict(name, iteration, conflict.source) from None
        except IterationClosed as closed:
            raise _closed(name, iteration, closed.source) from None
        except TooManyOpen as many:
            raise self._too_many(name, many.num_open) from None
        return self._status(row, spec)

    def _refuse_in_vain(self, spec: JobSpec, iteration: int) -> None:
        """Refuse to begin what would not be planned in time: it takes the time of what could be."""
        congestion, now = self._congestion, time.monotonic()
        if spec.plan_wait_ms is None or not congestion.is_too_much(spec.plan_wait_ms, now=now):
            return
        is_begun = self._jobs.iteration(spec.name, iteration) is not None
        if not is_begun and not congestion.may_begin(spec.name, spec.plan_wait_ms, now=now):
            raise _congested(spec)

    async def iteration(self, name: str, iteration: int) -> IterationStatus:
        """Return how far an iteration is; one that nobody reported yet is ``collecting`` with all sources missing.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        return await asyncio.to_thread(self._iteration, name, iteration)

    def _iteration(self, name: str, iteration: int) -> IterationStatus:
        spec = spec_of(self._row_now(name).spec)
        row = self._jobs.iteration(name, iteration)
        if row is None:
            row = IterationRow(name, iteration, "collecting", len(spec.sources), 0, 0.0)
        return self._status(row, spec)

    def _status(self, row: IterationRow, spec: JobSpec) -> IterationStatus:
        reported = spec.sources if row.num_reported >= len(spec.sources) else self._jobs.sources(row.job, row.iteration)
        return iteration_status(row, spec, frozenset(reported))

    async def iterations(self, name: str, *, after: int | None, limit: int, newest_first: bool) -> IterationList:
        """Return some iterations of a job.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        await self._row(name)
        rows = await asyncio.to_thread(self._jobs.iterations, name, after=after, limit=limit, newest_first=newest_first)
        return IterationList(
            iterations=[iteration_summary(row) for row in rows],
            next_after=rows[-1].iteration if len(rows) == limit else None,
        )

    async def plan(self, name: str, iteration: int, *, wait_s: float) -> PlanRow | IterationStatus:
        """Return an iteration's plan, waiting for it a while; how far the iteration is if there is none by then.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``, ``shutting-down``, ``overloaded`` if too many wait, or why there is no plan.
        """
        await self._row(name)
        ends_at = time.monotonic() + wait_s
        with self._waiters.waiting(name, iteration) as finished:
            while True:
                finished.clear()
                if self._waiters.is_closing:
                    raise PlanningFault(
                        FaultCode.SHUTTING_DOWN, "the service is shutting down", "ask another one", retry_after_s=1
                    )
                found = await self._finished(name, iteration)
                if found is not None:
                    return found
                left_s = ends_at - time.monotonic()
                if left_s <= 0:
                    return await self.iteration(name, iteration)
                try:
                    async with asyncio.timeout(min(left_s, RECHECK_S)):
                        await finished.wait()
                except TimeoutError:
                    continue

    async def report_timings(self, name: str, iteration: int, timings: IterationTimings) -> bool:
        """Keep measured times of an iteration; return whether they are new.

        Those of a plan that a client made by itself are counted and not kept.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``, ``not-found`` if the iteration has no plan, ``plan-mismatch`` if another plan ran.
        """
        job = await self._row(name)
        if timings.solved_by == "fallback":
            self._metrics.fallbacks.inc()
            return False
        async with self._crowd.place(name):
            plan, is_new = await asyncio.to_thread(self._take_timings_in, name, iteration, timings)
        if is_new:
            self._metrics.observe_measured(plan, timings)
            await self._learner.catch_up(name, spec_of(job.spec))
        return is_new

    def _take_timings_in(self, name: str, iteration: int, timings: IterationTimings) -> tuple[Plan, bool]:
        _, row = self._planned(name, iteration)
        if row is None:
            raise _no_plan(name, iteration)
        plan = Plan.model_validate_json(row.body)
        refuse_mismatch(plan, iteration, timings)
        body = canonical_json(timings)
        try:
            is_new = self._jobs.put_timings(name, iteration, content_digest(body), body, measured_ms(timings))
        except JobUnknown:
            raise _no_plan(name, iteration) from None
        return plan, is_new

    async def timings(self, name: str, iteration: int) -> list[IterationTimings]:
        """Return all measured times of an iteration.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        await self._row(name)
        bodies = await asyncio.to_thread(self._jobs.timings, name, iteration)
        return [IterationTimings.model_validate_json(body) for body in bodies]

    async def _finished(self, name: str, iteration: int) -> PlanRow | None:
        row, plan = await asyncio.to_thread(self._planned, name, iteration)
        if row is None:
            # A job deleted while somebody waits has no iterations any more, and never will.
            await self._row(name)
            return None
        if row.problem is not None:
            raise fault_of(row.problem)
        return plan

    def _planned(self, name: str, iteration: int) -> tuple[IterationRow | None, PlanRow | None]:
        """Return an iteration, and its plan if it has one."""
        row = self._jobs.iteration(name, iteration)
        if row is None or row.request_key is None:
            return row, None
        return row, self._store.plans.of_request(row.request_key)

    async def _row(self, name: str) -> JobRow:
        return await asyncio.to_thread(self._row_now, name)

    def _row_now(self, name: str) -> JobRow:
        row = self._jobs.get(name)
        if row is None:
            raise unknown_job(name)
        return row

    def _too_many(self, name: str, num_open: int) -> PlanningFault:
        return PlanningFault(
            FaultCode.OVERLOADED,
            f"job {name} has {num_open} unfinished iterations already",
            "report fewer iterations ahead, or run the service with a higher HYDRAULIS_MAX_OPEN_ITERATIONS",
            retry_after_s=1,
            limit=self._limits.max_open,
        )


def _congested(spec: JobSpec) -> PlanningFault:
    return PlanningFault(
        FaultCode.OVERLOADED,
        f"iterations wait for a solver for more than half of the {spec.plan_wait_ms} ms in which a plan of job "
        f"{spec.name} is of use",
        "train this iteration by a plan of your own, run more services or solvers, or ask for less of a plan "
        "(a larger target_gap)",
        retry_after_s=1,
        job=spec.name,
        limit=spec.plan_wait_ms,
    )


def _no_plan(name: str, iteration: int) -> PlanningFault:
    return PlanningFault(
        FaultCode.NOT_FOUND,
        f"iteration {iteration} of job {name} has no plan",
        "give measured times of iterations that were planned here and are still kept",
        job=name,
        iteration=iteration,
    )


def _batch_conflict(name: str, iteration: int, source: str) -> PlanningFault:
    return PlanningFault(
        FaultCode.BATCH_CONFLICT,
        f"source {source} reported something else for iteration {iteration} of job {name} before",
        "report an iteration once; what was reported first holds",
        job=name,
        iteration=iteration,
        source=source,
    )


def _closed(name: str, iteration: int, source: str) -> PlanningFault:
    return PlanningFault(
        FaultCode.ITERATION_CLOSED,
        f"iteration {iteration} of job {name} was taken up without source {source}, whose report came too late",
        "keep these sequences for a later iteration; a longer source_wait_ms waits longer",
        job=name,
        iteration=iteration,
        source=source,
    )
