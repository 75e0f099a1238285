"""Answers what the dashboard asks for: reads the store, and hands over to what decides how it is shown."""

import asyncio

from planner_client.contract import (
    DEFAULT_SOURCE,
    CandidateList,
    FaultCode,
    JobSeries,
    JobSpec,
    PlanOverview,
    Profile,
    ReplicaList,
    SourceBatch,
    request_for,
)
from planner_service.core.faults import PlanningFault
from planner_service.dashboard.candidates import candidates_of, placed_lengths
from planner_service.dashboard.plan_reading import PlanReading, overview_of
from planner_service.dashboard.series import Window, series_of
from planner_service.desk.catalog import Catalog
from planner_service.desk.problem_documents import fault_of
from planner_service.jobs import JobDesk
from planner_service.store import Store
from planner_service.translate.candidates import candidate_bounds


class ViewDesk:
    """Overviews of jobs and plans.

    Parameters
    ----------
    store
        Where they are kept.
    jobs
        Knows which jobs there are.
    catalog
        Where named profiles are.
    """

    def __init__(self, store: Store, jobs: JobDesk, catalog: Catalog) -> None:
        self._store = store
        self._jobs = jobs
        self._catalog = catalog

    async def series(self, job: str, *, before: int | None, limit: int, max_points: int) -> JobSeries:
        """Return the newest ``limit`` iterations below ``before`` in at most ``max_points`` points.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``.
        """
        await self._jobs.job(job)
        return await asyncio.to_thread(self._series, job, before, limit, max_points)

    def _series(self, job: str, before: int | None, limit: int, max_points: int) -> JobSeries:
        newest = self._store.jobs.iterations(job, after=before, limit=limit + 1, newest_first=True)
        rows = newest[:limit][::-1]
        counts = self._store.jobs.counts(job)
        last = rows[-1].iteration if rows else -1
        has_newer = counts.last_iteration is not None and counts.last_iteration > last
        window = Window(rows, counts.num_iterations, has_older=len(newest) > limit, has_newer=has_newer)
        return series_of(job, window, max_points)

    async def overview(self, job: str, iteration: int, *, max_points: int) -> PlanOverview:
        """Return an iteration's plan in bounded size.

        Raises
        ------
        PlanningFault
            Code ``unknown-job``, ``not-found`` if there is no plan yet, or why there is none.
        """
        await self._jobs.job(job)
        return await asyncio.to_thread(lambda: overview_of(job, iteration, self._read(job, iteration), max_points))

    async def replicas(self, job: str, iteration: int, *, after: int | None, limit: int) -> ReplicaList:
        """Return some replicas of an iteration's plan, ascending by number.

        Raises
        ------
        PlanningFault
            As `overview` does.
        """
        await self._jobs.job(job)
        return await asyncio.to_thread(self._replicas, job, iteration, after, limit)

    def _replicas(self, job: str, iteration: int, after: int | None, limit: int) -> ReplicaList:
        reading = self._read(job, iteration)
        first = 0 if after is None else after + 1
        end = min(first + limit, reading.num_replicas)
        loads = [reading.load(number) for number in range(first, end)]
        return ReplicaList(replicas=loads, next_after=end - 1 if loads and end < reading.num_replicas else None)

    async def candidates(self, job: str, iteration: int) -> CandidateList:
        """Return the candidate strategies that a job names, as they stood for an iteration.

        Raises
        ------
        PlanningFault
            As `overview` does.
        """
        spec = (await self._jobs.job(job)).spec
        profiles = [await self._catalog.profile_of(pool) for pool in spec.pools]
        return await asyncio.to_thread(self._candidates, job, spec, iteration, profiles)

    def _candidates(self, job: str, spec: JobSpec, iteration: int, profiles: list[Profile]) -> CandidateList:
        plan = self._read(job, iteration).plan
        # Other methods may need the order of the sequences, which a plan does not have.
        if not spec.strategies or spec.options.method != "hydraulis":
            return candidates_of(plan, {})
        placed = {DEFAULT_SOURCE: SourceBatch(histogram=placed_lengths(plan))}
        return candidates_of(plan, candidate_bounds(request_for(spec, iteration, placed), profiles))

    def _read(self, job: str, iteration: int) -> PlanReading:
        row = self._store.jobs.iteration(job, iteration)
        if row is not None and row.problem is not None:
            raise fault_of(row.problem)
        plan = None if row is None or row.request_key is None else self._store.plans.of_request(row.request_key)
        if plan is None:
            raise PlanningFault(
                FaultCode.NOT_FOUND,
                f"iteration {iteration} of job {job} has no plan",
                "ask again when its state is planned",
                job=job,
                iteration=iteration,
            )
        return PlanReading.of(plan.body, self._store.jobs.timings(job, iteration))
