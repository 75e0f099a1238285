"""The routes of what jobs learn: read, hand over, answer."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from planner_client.contract import LearnedVersion, LearnedVersionList, Learning
from planner_service.api import openapi
from planner_service.api.answers import json_answer
from planner_service.api.job_routes import JobPath
from planner_service.api.paging import AfterNumber, Limit
from planner_service.jobs.learning_desk import LearningDesk

VersionPath = Annotated[int, Path(description="The version's number.", ge=1, le=2**53)]


def learning_routes(desk: LearningDesk) -> APIRouter:
    """Return the routes below ``/v1/jobs/{job}/learning``."""
    router = APIRouter(prefix="/v1/jobs/{job}/learning", tags=["learning"])

    @router.get(
        "", response_model=Learning, responses=openapi.problems(404, 422, 500, 503), summary="What does a job learn?"
    )
    async def get_learning(job: JobPath) -> Response:
        """Tell what measured times say of a job's profiles and ranks by now."""
        return json_answer(await desk.learning(job))

    @router.get(
        "/versions",
        response_model=LearnedVersionList,
        responses=openapi.problems(404, 422, 500, 503),
        summary="List versions of what a job learned",
    )
    async def list_versions(job: JobPath, after: AfterNumber = None, limit: Limit = 100) -> Response:
        """List versions with why they were made, from the newest on."""
        return json_answer(await desk.versions(job, after=after, limit=limit))

    @router.get(
        "/versions/{version}",
        response_model=LearnedVersion,
        responses=openapi.problems(404, 422, 500, 503),
        summary="Fetch a version of what a job learned",
    )
    async def get_version(job: JobPath, version: VersionPath) -> Response:
        """Return what plans that name this version were made with, and what was before."""
        return json_answer(await desk.version(job, version))

    @router.post(
        "/reset",
        response_model=LearnedVersion,
        responses=openapi.problems(404, 422, 500, 503),
        summary="Forget what a job learned",
    )
    async def post_reset(job: JobPath) -> Response:
        """Let what was registered hold again, as a new version, and learn anew from times that come from now on."""
        return json_answer(await desk.reset(job))

    return router
