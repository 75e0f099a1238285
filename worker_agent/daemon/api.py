"""The local API that ranks use: read, hand over, answer. See `docs/agent.md`."""

import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar
from urllib.parse import urlsplit

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from planner_client.contract import PROBLEM_MEDIA_TYPE, FaultCode, JobSpec, PlanRequest, Problem
from planner_client.contract.scalars import MAX_GPUS, MAX_ITERATION, MAX_WAIT_MS
from planner_client.errors import HydraulisError
from worker_agent.daemon.desk import AgentDesk, AnsweredWith
from worker_agent.daemon.jobs import KnownJobs
from worker_agent.daemon.metrics import AgentMetrics
from worker_agent.daemon.planner_link import PlannerLink
from worker_agent.daemon.problems import AgentProblem, problem_document, problem_of
from worker_agent.daemon.timings_desk import TimingsDesk
from worker_agent.daemon.wire import AgentStatus, RankBatch, RankTimings

MAX_BODY_BYTES = 64 * 1024 * 1024
LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", ""})

_log = logging.getLogger("hydraulis.agent")

Wire = TypeVar("Wire", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]

_RANK = "/v1/jobs/{job}/iterations/{iteration}/ranks/{rank}"


class LocalApi:
    """What ranks may ask.

    Parameters
    ----------
    desk, timings, jobs
        Who takes hand-ins, measured times, and jobs.
    link
        The line to the planner, for what is passed through.
    metrics
        Who counts.
    status
        Tells what the agent says of itself.
    """

    def __init__(  # noqa: PLR0913 - one for each thing that ranks ask of
        self,
        *,
        desk: AgentDesk,
        timings: TimingsDesk,
        jobs: KnownJobs,
        link: PlannerLink,
        metrics: AgentMetrics,
        status: Callable[[], AgentStatus],
    ) -> None:
        self._desk = desk
        self._timings = timings
        self._jobs = jobs
        self._link = link
        self._metrics = metrics
        self._status = status

    def app(self) -> Starlette:
        """Return the app."""
        endpoints: list[tuple[str, str, Endpoint]] = [
            ("GET", "/healthz", self._get_health),
            ("GET", "/metrics", self._get_metrics),
            ("GET", "/v1/agent", self._get_status),
            ("PUT", "/v1/jobs/{job}", self._put_job),
            ("PUT", _RANK, self._put_rank),
            ("GET", _RANK, self._get_rank),
            ("GET", _RANK + "/plan", self._get_plan),
            ("PUT", _RANK + "/timings", self._put_timings),
            ("POST", "/v1/plans", self._post_plan),
        ]
        return Starlette(
            routes=[Route(path, _answering(endpoint), methods=[method]) for method, path, endpoint in endpoints],
            exception_handlers={HTTPException: _on_http_exception, Exception: _on_defect},
        )

    async def _get_health(self, _request: Request) -> Response:
        return Response(b'{"status":"ok"}', media_type="application/json")

    async def _get_metrics(self, _request: Request) -> Response:
        return Response(generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def _get_status(self, _request: Request) -> Response:
        return _json(self._status())

    async def _put_job(self, request: Request) -> Response:
        spec = await _read(request, JobSpec)
        if spec.name != request.path_params["job"]:
            raise _invalid(f"the address names job {request.path_params['job'][:128]!r} and the body {spec.name!r}")
        return _json(await self._jobs.register(spec))

    async def _put_rank(self, request: Request) -> Response:
        job, iteration, rank = _whose(request)
        batch = await _read(request, RankBatch)
        wait_s = _wait_s(request)
        self._metrics.hand_ins.inc()
        told = self._desk.hand_in(job, iteration, rank, batch)
        return await self._plan(job, iteration, rank, wait_s) if wait_s else _json(told, 202)

    async def _get_rank(self, request: Request) -> Response:
        return _json(self._desk.status(*_whose(request)))

    async def _get_plan(self, request: Request) -> Response:
        return await self._plan(*_whose(request), _wait_s(request))

    async def _plan(self, job: str, iteration: int, rank: int, wait_s: float) -> Response:
        found = await self._desk.plan(job, iteration, rank, wait_s)
        return _json(found, 202) if isinstance(found, BaseModel) else Response(found, media_type="application/json")

    async def _put_timings(self, request: Request) -> Response:
        job, iteration, rank = _whose(request)
        self._timings.take_in(job, iteration, rank, await _read(request, RankTimings))
        return Response(status_code=202)

    async def _post_plan(self, request: Request) -> Response:
        asked = await _read(request, PlanRequest)
        return _json(await self._link.ask(lambda client: client.plan(asked)))


def _answering(endpoint: Endpoint) -> Endpoint:
    """Make an endpoint answer what it cannot do with a problem document."""

    async def answer(request: Request) -> Response:
        _refuse_pages(request)
        try:
            return await endpoint(request)
        except (AgentProblem, AnsweredWith) as told:
            return _problem(told.problem)
        except HydraulisError as error:
            return _problem(problem_of(error))
        except ClientDisconnect:
            return Response(status_code=400)

    return answer


def _refuse_pages(request: Request) -> None:
    """Refuse what a web page made a browser on this machine send: no rank has an origin, or comes by another name."""
    try:
        host = urlsplit("//" + request.headers.get("host", "")).hostname or ""
    except ValueError:
        host = "unreadable"
    if "origin" in request.headers or host not in LOCAL_HOSTS:
        raise HTTPException(403, "requests of web pages are refused; address the agent as localhost, or by its socket")


def _whose(request: Request) -> tuple[str, int, int]:
    iteration = _number("iteration", request.path_params["iteration"], MAX_ITERATION)
    return request.path_params["job"], iteration, _number("rank", request.path_params["rank"], MAX_GPUS - 1)


def _wait_s(request: Request) -> float:
    return _number("wait_ms", request.query_params.get("wait_ms", "0"), MAX_WAIT_MS) / 1000.0


def _number(name: str, text: str, most: int) -> int:
    """Read a whole number; one of thousands of digits is not even converted."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and int(text) <= most):
        raise _invalid(f"{name} is {text[:40]!r}; give a whole number from 0 to {most}")
    return int(text)


async def _read(request: Request, model: type[Wire]) -> Wire:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise AgentProblem(
                413, FaultCode.BODY_TOO_LARGE, f"the body is over the limit of {MAX_BODY_BYTES} bytes", "send less"
            )
    try:
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise _invalid(f"{where}: {first['msg']}" if where else first["msg"]) from None


def _invalid(detail: str) -> AgentProblem:
    return AgentProblem(422, FaultCode.INVALID_REQUEST, detail, "correct the request; docs/agent.md shows each")


def _json(value: BaseModel, status: int = 200) -> Response:
    return Response(value.model_dump_json(), status_code=status, media_type="application/json")


def _problem(problem: Problem) -> Response:
    retry_after_s = problem.numbers.get("retry_after_s", 1 if problem.status == 503 else None)
    headers = {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}
    return Response(problem.model_dump_json(), problem.status, headers, media_type=PROBLEM_MEDIA_TYPE)


async def _on_http_exception(_request: Request, refused: Exception) -> Response:
    status = refused.status_code if isinstance(refused, HTTPException) else 500
    codes = {404: FaultCode.NOT_FOUND, 405: FaultCode.METHOD_NOT_ALLOWED, 403: FaultCode.FORBIDDEN}
    detail = refused.detail if isinstance(refused, HTTPException) else str(refused)
    remedy = "docs/agent.md lists what an agent answers"
    return _problem(problem_document(status, codes.get(status, FaultCode.INVALID_REQUEST), detail, remedy))


async def _on_defect(_request: Request, defect: Exception) -> Response:
    _log.error("unexpected_error", exc_info=defect)
    return _problem(problem_of(defect))
