"""The routes of nodes: read, hand over, answer."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from planner_client.contract import FaultCode, Node, NodeList, NodeReport
from planner_service.api import openapi
from planner_service.api.answers import json_answer
from planner_service.api.body import BodyReader
from planner_service.api.guard import caller_of, require_job
from planner_service.api.paging import AfterName, Limit
from planner_service.core.faults import PlanningFault
from planner_service.desk.nodes import NodeRegister

NodePath = Annotated[
    str,
    Path(description="The node's name.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$", max_length=128),
]


def node_routes(register: NodeRegister, bodies: BodyReader) -> APIRouter:
    """Return the routes below ``/v1/nodes``."""
    router = APIRouter(prefix="/v1/nodes", tags=["nodes"])

    @router.put(
        "/{node}",
        response_model=Node,
        responses=openapi.problems(413, 422, 500, 503),
        openapi_extra=openapi.request_body(openapi.body_of("NodeReport")),
        summary="Report that a node is there",
    )
    async def put_node(request: Request, node: NodePath) -> Response:
        """Report a node as it is now; its agent does so again and again, and whoever lists nodes sees how long ago."""
        report = await bodies.read(request, NodeReport.model_validate)
        _require_job_of(request, report)
        seen = await asyncio.to_thread(register.report, node, report)
        return json_answer(seen)

    @router.get("", response_model=NodeList, responses=openapi.problems(422, 500, 503), summary="List nodes")
    async def list_nodes(request: Request, after: AfterName = "", limit: Limit = 100) -> Response:
        """List nodes, ascending by name; with a token for some jobs, those that work for these jobs alone."""
        jobs = caller_of(request).jobs
        listing = await asyncio.to_thread(register.page, after=after, limit=limit, jobs=jobs)
        return json_answer(listing)

    return router


def _require_job_of(request: Request, report: NodeReport) -> None:
    """Let a token for some jobs report nodes of these jobs alone."""
    if report.job is not None:
        require_job(request, report.job)
        return
    caller = caller_of(request)
    if caller.jobs is not None:
        raise PlanningFault(
            FaultCode.FORBIDDEN,
            f"token {caller.name} is good for some jobs only, and the node names none",
            "let the node work for one of these jobs (`hydraulis agent --job`), or use a token for all",
        )
