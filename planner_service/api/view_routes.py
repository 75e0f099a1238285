"""The routes of overviews: read, hand over, answer."""

from typing import Annotated

from fastapi import APIRouter, Query, Response

from planner_client.contract import CandidateList, JobSeries, PlanOverview, ReplicaList
from planner_client.contract.scalars import MAX_ITERATION
from planner_service.api import openapi
from planner_service.api.answers import json_answer
from planner_service.api.job_routes import IterationPath, JobPath
from planner_service.api.paging import AfterNumber, Limit
from planner_service.dashboard import ViewDesk

MAX_ITERATIONS = 20_000
MAX_POINTS = 1000

MaxPoints = Annotated[int, Query(description="Most points to return.", ge=10, le=MAX_POINTS)]


def view_routes(desk: ViewDesk) -> APIRouter:
    """Return the routes below ``/v1/jobs`` that give overviews of bounded size."""
    router = APIRouter(prefix="/v1/jobs", tags=["overviews"])

    @router.get(
        "/{job}/series",
        response_model=JobSeries,
        responses=openapi.problems(404, 422, 500, 503),
        summary="A job over its iterations, in a few points",
    )
    async def get_series(
        job: JobPath,
        before: Annotated[int | None, Query(description="Only iterations below this.", ge=0, le=MAX_ITERATION)] = None,
        limit: Annotated[int, Query(description="Most iterations, the newest.", ge=1, le=MAX_ITERATIONS)] = 1000,
        max_points: MaxPoints = 400,
    ) -> Response:
        """Return times, gaps and strategies over a job's newest iterations; neighbours share a point if need be."""
        return json_answer(await desk.series(job, before=before, limit=limit, max_points=max_points))

    @router.get(
        "/{job}/iterations/{iteration}/overview",
        response_model=PlanOverview,
        responses=openapi.problems(404, 422, 500, 503, 504),
        summary="An iteration's plan, in bounded size",
    )
    async def get_overview(job: JobPath, iteration: IterationPath, max_points: MaxPoints = 200) -> Response:
        """Return what a plan says of itself, its loads, lengths and pipelines; never larger than charts need."""
        return json_answer(await desk.overview(job, iteration, max_points=max_points))

    @router.get(
        "/{job}/iterations/{iteration}/replicas",
        response_model=ReplicaList,
        responses=openapi.problems(404, 422, 500, 503, 504),
        summary="List the replicas of an iteration's plan",
    )
    async def list_replicas(
        job: JobPath, iteration: IterationPath, after: AfterNumber = None, limit: Limit = 100
    ) -> Response:
        """List what replicas do, predicted and measured, ascending by number."""
        return json_answer(await desk.replicas(job, iteration, after=after, limit=limit))

    @router.get(
        "/{job}/iterations/{iteration}/candidates",
        response_model=CandidateList,
        responses=openapi.problems(404, 422, 500, 503, 504),
        summary="The candidate strategies of an iteration",
    )
    async def list_candidates(job: JobPath, iteration: IterationPath) -> Response:
        """Tell of each candidate that the job names what it could have done at best, or why it could not be used."""
        return json_answer(await desk.candidates(job, iteration))

    return router
