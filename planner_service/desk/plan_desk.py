"""Where a request becomes a plan: look it up, or let a solver find it and keep it."""

import asyncio
from dataclasses import dataclass, replace

import structlog

from planner_client.contract import FaultCode, PlanList, PlanRequest, PlanSummary, Profile
from planner_service.core.faults import PlanningFault
from planner_service.desk.canonical import canonical_request, request_key
from planner_service.desk.catalog import Catalog
from planner_service.desk.flights import Flights
from planner_service.desk.metrics import Metrics
from planner_service.pool import SolverPool
from planner_service.store import PlanRow, Store
from planner_service.tracing import note, span


@dataclass(frozen=True)
class Answer:
    """A plan's bytes, whether they were known before, and whether they are in the store."""

    row: PlanRow
    was_known: bool
    is_kept: bool


class PlanDesk:
    """Answers plan requests: the same request always gets the same bytes.

    Parameters
    ----------
    store, catalog, pool, metrics
        Where plans are kept, where named profiles are, who finds plans, who counts.
    planner_version
        Part of each request's key: another version of the planner may find another plan.
    """

    def __init__(
        self, *, store: Store, catalog: Catalog, pool: SolverPool, metrics: Metrics, planner_version: str
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._pool = pool
        self._metrics = metrics
        self._planner_version = planner_version
        self._flights: Flights[PlanRow] = Flights()
        self._log = structlog.get_logger("hydraulis.plans")

    async def plan(self, request: PlanRequest, *, tenant: str = "") -> Answer:
        """Return the request's plan, which is kept; see `find`."""
        answer = await self.find(request, tenant=tenant)
        if answer.is_kept:
            return answer
        return replace(answer, row=await asyncio.to_thread(self._store.plans.put, answer.row), is_kept=True)

    async def find(self, request: PlanRequest, *, tenant: str = "") -> Answer:
        """Return the request's plan; one that is new is left to the caller to keep.

        Parameters
        ----------
        tenant
            On whose behalf; those who wait for a solver take turns by it.

        Raises
        ------
        PlanningFault
            Whatever keeps the request from being planned.
        """
        with span("plan", num_gpus=request.total_gpus):
            answer = await self._answer(request, tenant)
            note(digest=answer.row.digest, was_known=answer.was_known)
            return answer

    async def _answer(self, request: PlanRequest, tenant: str) -> Answer:
        profiles = tuple([await self._catalog.profile_of(pool) for pool in request.pools])
        asked = canonical_request(request)
        key, known = await asyncio.to_thread(self._look_up, asked, profiles)
        if known is not None:
            self._metrics.cache_hits.inc()
            return Answer(known, was_known=True, is_kept=True)
        is_shared = self._flights.is_flying(key)
        row = await self._flights.join(key, lambda: self._find(key, asked, profiles, tenant))
        if is_shared:
            self._metrics.cache_hits.inc()
        return Answer(row, was_known=is_shared, is_kept=False)

    async def plan_with_digest(self, digest: str) -> PlanRow:
        """Return the stored plan with this digest.

        Raises
        ------
        PlanningFault
            Code ``not-found``.
        """
        row = await asyncio.to_thread(self._store.plans.with_digest, digest)
        if row is None:
            raise PlanningFault(
                FaultCode.NOT_FOUND,
                f"there is no plan with digest {digest[:100]!r}",
                "ask for a plan with POST /v1/plans; its digest finds it again here",
                digest=digest[:100],
            )
        return row

    async def page(self, *, after: int, limit: int) -> PlanList:
        """Return some of the plans that are kept, in the order they were stored."""
        rows = await asyncio.to_thread(self._store.plans.page, after=after, limit=limit)
        plans = [
            PlanSummary(digest=row.digest, number=row.number, created_at=row.created_at, num_bytes=row.num_bytes)
            for row in rows
        ]
        return PlanList(plans=plans, next_after=rows[-1].number if len(rows) == limit else None)

    async def delete(self, digest: str) -> None:
        """Delete the plans with this digest that no iteration names.

        Raises
        ------
        PlanningFault
            Code ``not-found`` or ``plan-in-use``.
        """
        await self.plan_with_digest(digest)
        if await asyncio.to_thread(self._store.plans.delete, digest) == 0:
            raise PlanningFault(
                FaultCode.PLAN_IN_USE,
                f"plan {digest[:100]} is that of a job's iteration",
                "delete the job, or wait until the iteration is old enough to go",
                digest=digest[:100],
            )

    def _look_up(self, asked: PlanRequest, profiles: tuple[Profile, ...]) -> tuple[str, PlanRow | None]:
        key = request_key(asked, profiles, self._planner_version)
        return key, self._store.plans.of_request(key)

    async def _find(self, key: str, request: PlanRequest, profiles: tuple[Profile, ...], tenant: str) -> PlanRow:
        try:
            solved = await self._pool.solve(request, profiles, tenant=tenant)
        except PlanningFault as fault:
            self._metrics.observe_no_plan(fault.code)
            raise
        except Exception:
            self._metrics.observe_no_plan(FaultCode.INTERNAL)
            raise
        self._metrics.observe_plan(solved)
        plan = solved.plan
        self._log.info(
            "planned",
            digest=plan.digest,
            planning_ms=plan.planning_ms,
            wait_ms=round(solved.wait_ms, 2),
            solve_ms=round(solved.solve_ms, 2),
            gap=plan.gap,
            cut_by_wall_clock=plan.cut_by_wall_clock,
        )
        return PlanRow(key, plan.digest, plan.body)
