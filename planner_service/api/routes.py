"""The routes: read, hand over, answer."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel

from planner_client.contract import FaultCode, Plan, PlanList, PlanRequest, Profile, ProfileList
from planner_service.api import openapi
from planner_service.api.answers import json_answer
from planner_service.api.body import BodyReader
from planner_service.api.disconnect import while_connected
from planner_service.api.guard import caller_of
from planner_service.api.paging import AfterNumber, Limit
from planner_service.core.faults import PlanningFault
from planner_service.desk.catalog import Catalog, parse_submission
from planner_service.desk.metrics import Metrics
from planner_service.desk.plan_desk import PlanDesk
from planner_service.pool import SolverPool
from planner_service.store import Store


class Alive(BaseModel):
    """The process answers."""

    status: str = "ok"
    version: str


class Readiness(BaseModel):
    """The service can plan."""

    status: str = "ready"
    num_solvers: int


def plan_routes(desk: PlanDesk, bodies: BodyReader) -> APIRouter:
    """Return the routes below ``/v1/plans``."""
    router = APIRouter(prefix="/v1/plans", tags=["plans"])

    @router.post(
        "",
        response_model=Plan,
        responses=openapi.problems(404, 413, 422, 429, 500, 503, 504),
        openapi_extra=openapi.request_body(openapi.body_of("PlanRequest")),
        summary="Plan one iteration",
    )
    async def post_plan(request: Request) -> Response:
        """Plan one iteration. The same request always gets the same bytes."""
        asked = await bodies.read(request, PlanRequest.model_validate)
        answer = await while_connected(request, desk.plan(asked, tenant=caller_of(request).name or ""))
        headers = {"X-Plan-Cache": "hit" if answer.was_known else "miss"}
        return Response(answer.row.body, media_type="application/json", headers=headers)

    @router.get("", response_model=PlanList, responses=openapi.problems(422, 500, 503), summary="List plans")
    async def list_plans(after: AfterNumber = None, limit: Limit = 100) -> Response:
        """List the plans that are kept, in the order they were stored."""
        listing = await desk.page(after=after or 0, limit=limit)
        return json_answer(listing)

    @router.delete(
        "/{digest}", status_code=204, responses=openapi.problems(404, 409, 500, 503), summary="Delete a plan"
    )
    async def delete_plan(digest: Annotated[str, Path(description="The plan's digest, `sha256:...`.")]) -> Response:
        """Delete the plans with this digest that no job's iteration has."""
        await desk.delete(digest)
        return Response(status_code=204)

    @router.get(
        "/{digest}",
        response_model=Plan,
        responses=openapi.problems(404, 500, 503),
        summary="Fetch a plan again",
    )
    async def get_plan(digest: Annotated[str, Path(description="The plan's digest, `sha256:...`.")]) -> Response:
        """Return the plan with this digest that was stored first."""
        row = await desk.plan_with_digest(digest)
        return Response(row.body, media_type="application/json")

    return router


def profile_routes(catalog: Catalog, bodies: BodyReader) -> APIRouter:
    """Return the routes below ``/v1/profiles``."""
    router = APIRouter(prefix="/v1/profiles", tags=["profiles"])

    @router.post(
        "",
        response_model=Profile,
        responses={
            **openapi.problems(409, 413, 422, 500, 503),
            201: {"description": "Registered.", "model": Profile},
            200: {"description": "The same profile was registered before."},
        },
        openapi_extra=openapi.request_body(openapi.PROFILE_BODY),
        summary="Register a profile, or samples to fit one to",
    )
    async def post_profile(request: Request) -> Response:
        """Register coefficients, or raw samples that are fitted; each fitted layout carries its error."""
        sent = await bodies.read(request, parse_submission)
        profile, is_new = await asyncio.to_thread(catalog.register, sent)
        return json_answer(profile, status=201 if is_new else 200)

    @router.get("", response_model=ProfileList, responses=openapi.problems(500, 503), summary="List all profiles")
    async def list_profiles() -> Response:
        """List all profiles, ascending by name, the built-in ones included."""
        listing = await catalog.list()
        return json_answer(listing)

    @router.get("/{name}", response_model=Profile, responses=openapi.problems(404, 500, 503), summary="Fetch a profile")
    async def get_profile(name: Annotated[str, Path(description="The profile's name.")]) -> Response:
        """Return one profile."""
        profile = await catalog.find(name)
        return json_answer(profile)

    @router.delete(
        "/{name}", status_code=204, responses=openapi.problems(404, 409, 500, 503), summary="Delete a profile"
    )
    async def delete_profile(name: Annotated[str, Path(description="The profile's name.")]) -> Response:
        """Delete a registered profile that no job names."""
        await asyncio.to_thread(catalog.delete, name)
        return Response(status_code=204)

    return router


def operations_routes(pool: SolverPool, store: Store, metrics: Metrics, planner_version: str) -> APIRouter:
    """Return the routes that an operator's tools read."""
    router = APIRouter(tags=["operations"])

    @router.get("/healthz", response_model=Alive, summary="Is the process alive?")
    async def healthz() -> Alive:
        """Answer as long as the process can."""
        return Alive(version=planner_version)

    @router.get("/readyz", response_model=Readiness, responses=openapi.problems(503), summary="Can it plan?")
    async def readyz() -> Readiness:
        """Answer 200 once a solver is warm and the store can be read."""
        if not pool.is_ready:
            why = f" ({pool.start_failure})" if pool.start_failure else ""
            raise PlanningFault(
                FaultCode.NOT_READY, f"no solver process is warm{why}", "wait, and ask again", retry_after_s=1
            )
        await asyncio.to_thread(store.check)
        return Readiness(num_solvers=pool.num_ready)

    @router.get(
        "/metrics",
        summary="Metrics for Prometheus",
        response_class=Response,
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
    )
    async def get_metrics() -> Response:
        """Return all metrics in Prometheus' text format."""
        return Response(generate_latest(metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    return router
