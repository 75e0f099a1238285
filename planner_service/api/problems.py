"""Problem documents as HTTP answers."""

from collections.abc import Mapping
from http import HTTPStatus

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from planner_client.contract import PROBLEM_MEDIA_TYPE, FaultCode
from planner_service.api.needs import methods_at
from planner_service.core.faults import PlanningFault
from planner_service.desk.problem_documents import MAX_TEXT, problem_document, shown, status_of
from planner_service.store import StoreUnavailable

CODE = "hydraulis.code"
"""Where in a request's scope the code of the problem is that it was answered with."""


class ProblemResponse(Response):
    """A problem document on its way out; whoever logs and counts the request finds its code in the scope."""

    media_type = PROBLEM_MEDIA_TYPE

    def __init__(self, fault: PlanningFault, *, request_id: str, headers: Mapping[str, str]) -> None:
        super().__init__(problem_document(fault, request_id=request_id), status_of(fault), headers)
        self._code = str(fault.code)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope[CODE] = self._code
        await super().__call__(scope, receive, send)


def problem_response(fault: PlanningFault, *, request_id: str, headers: Mapping[str, str] | None = None) -> Response:
    """Answer with a fault; ``retry_after_s`` among its numbers becomes the ``Retry-After`` header."""
    sent = dict(headers or {})
    if "retry_after_s" in fault.numbers:
        sent["Retry-After"] = str(fault.numbers["retry_after_s"])
    return ProblemResponse(fault, request_id=request_id, headers=sent)


def install_problem_handlers(app: FastAPI) -> None:
    """Answer faults, and what the framework itself refuses, as problem documents."""
    app.add_exception_handler(PlanningFault, _on_fault)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_bad_parameters)
    app.add_exception_handler(StoreUnavailable, _on_store_unavailable)


def store_fault(failure: StoreUnavailable) -> PlanningFault:
    """Return the fault that callers are told of; which database, and why, is the operator's to read in the log."""
    structlog.get_logger("hydraulis.store").error("store_unavailable", detail=str(failure))
    return PlanningFault(
        FaultCode.STORE_UNAVAILABLE,
        "the service cannot use its database",
        "try again; the operator finds the reason in the service's log",
        retry_after_s=1,
    )


async def _on_store_unavailable(request: Request, failure: Exception) -> Response:
    if not isinstance(failure, StoreUnavailable):
        raise failure
    return problem_response(store_fault(failure), request_id=request_id_of(request))


async def _on_fault(request: Request, fault: Exception) -> Response:
    if not isinstance(fault, PlanningFault):
        raise fault
    return problem_response(fault, request_id=request_id_of(request))


async def _on_bad_parameters(request: Request, refused: Exception) -> Response:
    """Answer what is wrong with the path or the query; routes read bodies themselves."""
    if not isinstance(refused, RequestValidationError):
        raise refused
    first = refused.errors()[0]
    place, *name = (str(step) for step in first["loc"])
    fault = PlanningFault(
        FaultCode.INVALID_REQUEST,
        f"{place} parameter {'.'.join(name)}: {first['msg']}, got {shown(first.get('input'))}",
        "correct the parameter; /docs describes every one",
        parameter=".".join(name),
        num_errors=len(refused.errors()),
    )
    return problem_response(fault, request_id=request_id_of(request))


async def _on_http_exception(request: Request, refused: Exception) -> Response:
    if not isinstance(refused, HTTPException):
        raise refused
    # Not that of the request's URL, which the caller's Host is a part of.
    path = str(request.scope["path"])
    shown_path = path[:MAX_TEXT]
    headers = dict(refused.headers or {})
    if refused.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        # The router names the methods of the first route alone that has the path.
        headers["Allow"] = ", ".join(methods_at(path.removeprefix(request.scope.get("root_path", ""))))
        fault = PlanningFault(
            FaultCode.METHOD_NOT_ALLOWED,
            f"{request.method} is not offered at {shown_path}",
            f"use {headers['Allow']}",
        )
    elif refused.status_code == HTTPStatus.NOT_FOUND:
        fault = PlanningFault(FaultCode.NOT_FOUND, f"there is nothing at {shown_path}", "see /docs for what is offered")
    else:
        fault = PlanningFault(FaultCode.INVALID_REQUEST, str(refused.detail), "see /docs", status=refused.status_code)
    return problem_response(fault, request_id=request_id_of(request), headers=headers)


def request_id_of(request: Request) -> str:
    """Return the id that the request log gave this request."""
    return str(request.scope.get("hydraulis.request_id", ""))
