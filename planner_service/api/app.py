"""The app factory: builds every part once and ties them together."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from planner_service.access import AuditRecord, TokenLookup, TokenRegister
from planner_service.api.access_routes import access_routes
from planner_service.api.body import BodyReader
from planner_service.api.dashboard import dashboard_routes
from planner_service.api.guard import Doors, Guard
from planner_service.api.headers import ProtectiveHeaders
from planner_service.api.job_routes import job_routes
from planner_service.api.learning_routes import learning_routes
from planner_service.api.needs import refuse_unlisted
from planner_service.api.node_routes import node_routes
from planner_service.api.openapi import openapi_of
from planner_service.api.problems import install_problem_handlers
from planner_service.api.request_log import RequestLog
from planner_service.api.routes import operations_routes, plan_routes, profile_routes
from planner_service.api.view_routes import view_routes
from planner_service.api.viewer import viewer_routes
from planner_service.dashboard import ViewDesk
from planner_service.desk.catalog import Catalog
from planner_service.desk.metrics import Metrics
from planner_service.desk.nodes import NodeRegister
from planner_service.desk.plan_desk import PlanDesk
from planner_service.desk.store_watch import StoreWatch
from planner_service.jobs import (
    Congestion,
    CrowdLimits,
    Dispatcher,
    DispatchLimits,
    Janitor,
    JobDesk,
    JobLimits,
    Learner,
    LearningDesk,
    Waiters,
)
from planner_service.pool import PoolLimits, SolverPool
from planner_service.pool.solver_pool import PLANNER
from planner_service.profiles import builtin_profiles
from planner_service.settings import Settings
from planner_service.store import SqlStore, Store
from planner_service.tracing import Tracing, requests_traced

DISTRIBUTION = "hydraulis-planner"
STORE_THREADS = 32


def create_app(
    settings: Settings,
    *,
    store: Store | None = None,
    solve_name: str = PLANNER,
    is_local: bool = True,
    tracing: Tracing | None = None,
) -> FastAPI:
    """Build the service.

    Parameters
    ----------
    settings
        What the operator set.
    store
        Where plans and profiles are kept; opened from ``settings.database`` if not given. The app closes it.
    solve_name
        ``package.module:function`` that solver processes import and call.
    is_local
        Whether the app is served on loopback addresses alone. Say so if it is not: others are asked for tokens then,
        unless the settings say otherwise.
    tracing
        Where traces go; nothing is traced without. Whoever began it closes it.

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
    waiters = Waiters(settings.max_long_polls)
    planner_version = version(DISTRIBUTION)
    metrics = Metrics(pool, num_long_polls=lambda: waiters.num_waiting, version=planner_version)
    kept.watch(metrics.observe_store)
    watch = StoreWatch(kept, metrics)
    catalog = Catalog(kept, builtin_profiles())
    desk = PlanDesk(store=kept, catalog=catalog, pool=pool, metrics=metrics, planner_version=planner_version)
    congestion = Congestion()
    learner = Learner(store=kept, catalog=catalog, metrics=metrics)
    jobs = JobDesk(
        store=kept,
        catalog=catalog,
        waiters=waiters,
        metrics=metrics,
        learner=learner,
        limits=JobLimits(
            settings.max_open_iterations,
            CrowdLimits(settings.max_reports_waiting, settings.max_report_wait_ms),
        ),
        congestion=congestion,
    )
    dispatcher = Dispatcher(
        store=kept,
        desk=desk,
        waiters=waiters,
        metrics=metrics,
        limits=DispatchLimits(settings.workers, settings.lease_s, float(settings.drain_timeout_s)),
        congestion=congestion,
    )
    janitor = Janitor(
        kept,
        keep_iterations_days=settings.keep_iterations_days,
        keep_plans_days=settings.keep_plans_days,
        keep_audit_days=settings.keep_audit_days,
        keep_nodes_days=settings.keep_nodes_days,
    )
    lookup = TokenLookup(kept.access)
    bodies = BodyReader(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        # Store calls block; those of many callers must not wait for one another's.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(STORE_THREADS, "hydraulis-blocking"))
        waiters.bind()
        kept.listen(waiters.on_change)
        await pool.start()
        await dispatcher.start()
        janitor.start()
        watch.start()
        try:
            yield
        finally:
            waiters.close()
            await watch.close()
            await janitor.close()
            await dispatcher.close()
            await pool.close()
            kept.close()

    app = FastAPI(
        title="Hydraulis Planner",
        version=planner_version,
        description="Plans the parallel strategy and the sequence assignment of each training iteration.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        telemetry=requests_traced(tracing),
    )
    app.state.pool = pool
    app.state.begin_shutdown = waiters.close
    for router in (
        plan_routes(desk, bodies),
        job_routes(jobs, bodies),
        learning_routes(LearningDesk(kept, learner)),
        view_routes(ViewDesk(kept, jobs, catalog)),
        profile_routes(catalog, bodies),
        node_routes(NodeRegister(kept.nodes), bodies),
        access_routes(TokenRegister(kept.access), lookup, bodies),
        operations_routes(pool, kept, metrics, planner_version),
        viewer_routes(),
        dashboard_routes(),
    ):
        app.include_router(router)
    install_problem_handlers(app)
    refuse_unlisted(app.routes)
    doors = Doors(asks_for_tokens=settings.asks_for_tokens(is_local=is_local), refuses_pages=settings.auth == "auto")
    # The last one added is the outermost.
    app.add_middleware(Guard, lookup=lookup, record=AuditRecord(kept.access), doors=doors)
    app.add_middleware(RequestLog, metrics=metrics)
    app.add_middleware(ProtectiveHeaders)
    app.openapi = openapi_of(app)  # type: ignore[method-assign]  # FastAPI documents replacing it like this
    return app
