"""The app factory: builds every part once and ties them together."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request, Response

from planner_client.contract import FaultCode
from planner_service.api.body import BodyReader
from planner_service.api.catalog import Catalog
from planner_service.api.desk import PlanDesk
from planner_service.api.metrics import Metrics
from planner_service.api.openapi import openapi_of
from planner_service.api.problems import install_problem_handlers, problem_response, request_id_of
from planner_service.api.request_log import RequestLog
from planner_service.api.routes import operations_routes, plan_routes, profile_routes
from planner_service.core.faults import PlanningFault
from planner_service.pool import PoolLimits, SolverPool
from planner_service.pool.solver_pool import PLANNER
from planner_service.profiles import builtin_profiles
from planner_service.settings import Settings
from planner_service.store import SqlStore, Store, StoreUnavailable

DISTRIBUTION = "hydraulis-planner"


def create_app(settings: Settings, *, store: Store | None = None, solve_name: str = PLANNER) -> FastAPI:
    """Build the service.

    Parameters
    ----------
    settings
        What the operator set.
    store
        Where plans and profiles are kept; opened from ``settings.database`` if not given. The app closes it.
    solve_name
        ``package.module:function`` that solver processes import and call.

    Raises
    ------
    StoreUnavailable
        If the database cannot be used.
    """
    kept = store if store is not None else SqlStore(settings.database)
    pool = SolverPool(
        PoolLimits(
            num_workers=settings.workers,
            max_waiting=settings.max_waiting,
            max_wait_ms=settings.max_wait_ms,
            grace_ms=settings.grace_ms,
            start_timeout_s=settings.start_timeout_s,
            max_solver_bytes=settings.max_solver_bytes,
        ),
        solve_name=solve_name,
    )
    metrics = Metrics(pool)
    catalog = Catalog(kept, builtin_profiles())
    planner_version = version(DISTRIBUTION)
    desk = PlanDesk(store=kept, catalog=catalog, pool=pool, metrics=metrics, planner_version=planner_version)

    bodies = BodyReader(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await pool.start()
        try:
            yield
        finally:
            await pool.close()
            kept.close()

    app = FastAPI(
        title="Hydraulis Planner",
        version=planner_version,
        description="Plans the parallel strategy and the sequence assignment of each training iteration.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.pool = pool
    for router in (
        plan_routes(desk, bodies),
        profile_routes(catalog, bodies),
        operations_routes(pool, kept, metrics),
    ):
        app.include_router(router)
    install_problem_handlers(app)
    app.add_exception_handler(StoreUnavailable, _on_store_unavailable)
    app.add_middleware(RequestLog, metrics=metrics)
    app.openapi = openapi_of(app)  # type: ignore[method-assign]  # FastAPI documents replacing it like this
    return app


async def _on_store_unavailable(request: Request, failure: Exception) -> Response:
    fault = PlanningFault(
        FaultCode.STORE_UNAVAILABLE, str(failure), "try again; the operator must mend the database", retry_after_s=1
    )
    return problem_response(fault, request_id=request_id_of(request))
