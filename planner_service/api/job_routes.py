"""The routes of jobs: read, hand over, answer."""

from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response

from planner_client.contract import (
    IterationList,
    IterationStatus,
    IterationTimings,
    Job,
    JobList,
    JobSpec,
    Plan,
    SourceBatch,
    SourceBatches,
)
from planner_client.contract.scalars import MAX_ITERATION, MAX_WAIT_MS
from planner_service.api import openapi
from planner_service.api.answers import json_answer
from planner_service.api.body import BodyReader
from planner_service.api.disconnect import while_connected
from planner_service.api.guard import caller_of, require_job
from planner_service.api.paging import AfterName, AfterNumber, Limit
from planner_service.jobs import JobDesk

JobPath = Annotated[str, Path(description="The job's name.", max_length=128)]
IterationPath = Annotated[int, Path(description="The iteration's number.", ge=0, le=MAX_ITERATION)]
SourcePath = Annotated[str, Path(description="The source's name.", max_length=128)]
WaitMs = Annotated[int, Query(description="How long to wait for the plan (ms).", ge=0, le=MAX_WAIT_MS)]


def job_routes(desk: JobDesk, bodies: BodyReader) -> APIRouter:
    """Return the routes below ``/v1/jobs``."""
    router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
    _add_registry(router, desk, bodies)
    _add_reports(router, desk, bodies)
    _add_iterations(router, desk)
    _add_timings(router, desk, bodies)
    return router


def _add_registry(router: APIRouter, desk: JobDesk, bodies: BodyReader) -> None:
    @router.post(
        "",
        response_model=Job,
        responses={
            **openapi.problems(404, 409, 413, 422, 500, 503),
            201: {"description": "Registered.", "model": Job},
            200: {"description": "The same job was registered before."},
        },
        openapi_extra=openapi.request_body(openapi.body_of("JobSpec")),
        summary="Register a job",
    )
    async def post_job(request: Request) -> Response:
        """Register a training run: its cluster, its constraints, and the sources of each iteration."""
        spec = await bodies.read(request, JobSpec.model_validate)
        require_job(request, spec.name)
        job, is_new = await desk.register(spec)
        return json_answer(job, status=201 if is_new else 200)

    @router.get("", response_model=JobList, responses=openapi.problems(422, 500, 503), summary="List jobs")
    async def list_jobs(request: Request, after: AfterName = "", limit: Limit = 100) -> Response:
        """List the jobs that the caller's token is good for, ascending by name."""
        return json_answer(await desk.page(after=after, limit=limit, patterns=caller_of(request).jobs))

    @router.get("/{job}", response_model=Job, responses=openapi.problems(404, 422, 500, 503), summary="Fetch a job")
    async def get_job(job: JobPath) -> Response:
        """Return a job as it was registered."""
        return json_answer(await desk.job(job))

    @router.delete("/{job}", status_code=204, responses=openapi.problems(404, 422, 500, 503), summary="Delete a job")
    async def delete_job(job: JobPath) -> Response:
        """Delete a job with its iterations and measured times; plans stay until they are old."""
        await desk.delete(job)
        return Response(status_code=204)


def _add_reports(router: APIRouter, desk: JobDesk, bodies: BodyReader) -> None:
    @router.put(
        "/{job}/iterations/{iteration}/histograms/{source:path}",
        response_model=IterationStatus,
        responses=openapi.problems(404, 409, 413, 422, 429, 500, 503),
        openapi_extra=openapi.request_body(openapi.body_of("SourceBatch")),
        summary="Report what one source holds of an iteration",
    )
    async def put_histogram(request: Request, job: JobPath, iteration: IterationPath, source: SourcePath) -> Response:
        """Report once; the same again changes nothing, something else is refused."""
        batch = await bodies.read(request, SourceBatch.model_validate)
        return json_answer(await desk.report(job, iteration, {source: batch}))

    @router.put(
        "/{job}/iterations/{iteration}/histograms",
        response_model=IterationStatus,
        responses=openapi.problems(404, 409, 413, 422, 429, 500, 503),
        openapi_extra=openapi.request_body(openapi.body_of("SourceBatches")),
        summary="Report what several sources hold of an iteration",
    )
    async def put_histograms(request: Request, job: JobPath, iteration: IterationPath) -> Response:
        """Report all of it or nothing."""
        sent = await bodies.read(request, SourceBatches.model_validate)
        return json_answer(await desk.report(job, iteration, sent.sources))


def _add_iterations(router: APIRouter, desk: JobDesk) -> None:
    @router.get(
        "/{job}/iterations",
        response_model=IterationList,
        responses=openapi.problems(404, 422, 500, 503),
        summary="List a job's iterations",
    )
    async def list_iterations(
        job: JobPath,
        after: AfterNumber = None,
        limit: Limit = 100,
        newest_first: Annotated[bool, Query(description="Descending by number, from the newest on.")] = False,  # noqa: FBT002 - a query's flag has a name
    ) -> Response:
        """List iterations with what their plans predict."""
        return json_answer(await desk.iterations(job, after=after, limit=limit, newest_first=newest_first))

    @router.get(
        "/{job}/iterations/{iteration}",
        response_model=IterationStatus,
        responses=openapi.problems(404, 422, 500, 503),
        summary="How far is an iteration?",
    )
    async def get_iteration(job: JobPath, iteration: IterationPath) -> Response:
        """Tell an iteration's state, which sources are missing, and why there is no plan if there is none."""
        return json_answer(await desk.iteration(job, iteration))

    @router.get(
        "/{job}/iterations/{iteration}/plan",
        response_model=Plan,
        responses={
            **openapi.problems(404, 422, 429, 500, 503, 504),
            202: {"description": "No plan yet; this is how far the iteration is.", "model": IterationStatus},
        },
        summary="Fetch an iteration's plan, waiting for it",
    )
    async def get_plan(request: Request, job: JobPath, iteration: IterationPath, wait_ms: WaitMs = 0) -> Response:
        """Return the plan, the same bytes to everybody and for ever; wait for it up to ``wait_ms``."""
        found = await while_connected(request, desk.plan(job, iteration, wait_s=wait_ms / 1000.0))
        if isinstance(found, IterationStatus):
            return json_answer(found, status=202)
        return Response(found.body, media_type="application/json")


def _add_timings(router: APIRouter, desk: JobDesk, bodies: BodyReader) -> None:
    @router.post(
        "/{job}/iterations/{iteration}/timings",
        response_model=None,
        status_code=204,
        responses=openapi.problems(404, 409, 413, 422, 500, 503),
        openapi_extra=openapi.request_body(openapi.body_of("IterationTimings")),
        summary="Give measured times of an iteration",
    )
    async def post_timings(request: Request, job: JobPath, iteration: IterationPath) -> Response:
        """Give what ranks measured; several ranks may give theirs one by one, and the same twice."""
        timings = await bodies.read(request, IterationTimings.model_validate)
        await desk.report_timings(job, iteration, timings)
        return Response(status_code=204)

    @router.get(
        "/{job}/iterations/{iteration}/timings",
        response_model=list[IterationTimings],
        responses=openapi.problems(404, 422, 500, 503),
        summary="Fetch measured times",
    )
    async def get_timings(job: JobPath, iteration: IterationPath) -> list[IterationTimings]:
        """Return all measured times of an iteration, in the order they came."""
        return await desk.timings(job, iteration)
