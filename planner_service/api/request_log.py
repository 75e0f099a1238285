"""The outermost layer: gives each request an id, logs it, counts it, and answers what nobody expected."""

import re
import time
import uuid

import structlog
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner_service.access import without_secrets
from planner_service.api.problems import CODE, problem_response
from planner_service.desk.metrics import Metrics
from planner_service.desk.problem_documents import unexpected
from planner_service.tracing import note

REQUEST_ID_HEADER = b"x-request-id"
STATUS_CLIENT_GONE = 499
_ACCEPTED_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class RequestLog:
    """ASGI middleware; a caller's own ``X-Request-ID`` is kept and echoed."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._log = structlog.get_logger("hydraulis.requests")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(scope)
        scope["hydraulis.request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        note(request_id=without_secrets(request_id))
        started = time.perf_counter()
        status = STATUS_CLIENT_GONE
        has_begun = False

        async def send_with_id(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status = message["status"]
                has_begun = True
                note(code=scope.get(CODE))
                message["headers"] = [*message.get("headers", []), (REQUEST_ID_HEADER, request_id.encode())]
            await send(message)

        self._metrics.requests_in_progress.inc()
        try:
            await self._app(scope, receive, send_with_id)
        except ClientDisconnect:
            self._log.info("client_gone")
        except Exception:  # the last line of defence: logged whole, answered with the id that finds it
            self._log.exception("unexpected_error", request_id=request_id)
            if has_begun:
                raise
            await problem_response(unexpected(request_id), request_id=request_id)(scope, receive, send_with_id)
        finally:
            self._metrics.requests_in_progress.dec()
            self._record(scope, status, time.perf_counter() - started)

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        # The route's template, not the path: a caller must not be able to create metrics without end.
        # What the guard refused never came to a route; the guard tells which one was meant.
        route = getattr(scope.get("route"), "path", None) or scope.get("hydraulis.template", "unmatched")
        method = scope["method"] if route != "unmatched" else "any"
        self._metrics.requests.labels(method, route, str(status)).inc()
        self._metrics.request_seconds.labels(route).observe(seconds)
        told = {}
        if CODE in scope:
            self._metrics.observe_refusal(scope[CODE])
            told["code"] = scope[CODE]
        self._log.info(
            "request", method=scope["method"], path=scope["path"], status=status, ms=round(seconds * 1000.0, 2), **told
        )


def _request_id(scope: Scope) -> str:
    for name, value in scope["headers"]:
        if name == REQUEST_ID_HEADER and _ACCEPTED_ID.fullmatch(value):
            return str(value.decode("ascii"))
    return uuid.uuid4().hex
