"""Lets in whoever may come in, before anything of the request but its head is read."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

import structlog
from fastapi import Request, Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from planner_client.contract import FaultCode
from planner_service.access import (
    ANYBODY,
    NOBODY,
    AuditRecord,
    Caller,
    Need,
    Refused,
    TokenLookup,
    decide,
    is_secret,
    without_secrets,
)
from planner_service.access.pages import is_foreign
from planner_service.api.needs import Matched, NeedsTable
from planner_service.api.problems import problem_response, request_id_of, store_fault
from planner_service.core.faults import PlanningFault
from planner_service.store import StoreUnavailable
from planner_service.tracing import note

CALLER = "hydraulis.caller"
SUBJECT = "hydraulis.subject"
TEMPLATE = "hydraulis.template"
CHALLENGE = 'Bearer realm="hydraulis"'


def caller_of(request: Request) -> Caller:
    """Return on whose behalf a request is served."""
    caller = request.scope[CALLER]
    if not isinstance(caller, Caller):
        raise TypeError(f"no guard saw this request: {caller!r}")
    return caller


def require_job(request: Request, job: str) -> None:
    """Check that the caller may touch a job whose name only the body tells.

    Raises
    ------
    PlanningFault
        Code ``forbidden``.
    """
    caller = caller_of(request)
    if not caller.reaches(job):
        raise PlanningFault(
            FaultCode.FORBIDDEN,
            f"token {caller.name} is not good for job {job[:128]!r}",
            "use a token for this job, or a name that this token is good for",
        )


def name_subject(request: Request, subject: str) -> None:
    """Tell the audit record what a request was about, where its path does not."""
    request.scope[SUBJECT] = subject


@dataclass(frozen=True)
class Doors:
    """How a service is guarded.

    Attributes
    ----------
    asks_for_tokens
        Whether tokens are asked for; if not, everybody may do everything.
    refuses_pages
        Whether requests that a foreign web page makes a browser send are refused; of use without tokens, which no
        such page has.
    """

    asks_for_tokens: bool
    refuses_pages: bool


class Guard:
    """ASGI middleware: 401 and 403 by the table of needs, and the audit record of what administrators do.

    Parameters
    ----------
    lookup, record
        Where tokens are found, and what was done is written down.
    doors
        How the service is guarded.
    """

    def __init__(self, app: ASGIApp, *, lookup: TokenLookup, record: AuditRecord, doors: Doors) -> None:
        self._app = app
        self._lookup = lookup
        self._record = record
        self._doors = doors
        self._table = NeedsTable()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        matched = self._table.match(scope["method"], scope["path"].removeprefix(scope.get("root_path", "")))
        if matched is not None:
            scope[TEMPLATE] = matched.path
            _tell(matched.parameters)
        try:
            caller = await self._caller(scope, matched)
        except StoreUnavailable as failure:
            answer = problem_response(store_fault(failure), request_id=request_id_of(Request(scope)))
            await answer(scope, receive, send)
            return
        if isinstance(caller, Refused):
            await self._note_refusal(scope, matched, caller)
            await _refusal(scope, caller)(scope, receive, send)
            return
        scope[CALLER] = caller
        if matched is not None and matched.rule.action is not None and matched.rule.is_recorded_done:
            send = self._recording(scope, matched, caller, send)
        await self._app(scope, receive, send)

    async def _caller(self, scope: Scope, matched: Matched | None) -> Caller | Refused:
        headers = Headers(scope=scope)
        need = None if matched is None else matched.rule.need(matched.parameters)
        if not self._doors.asks_for_tokens:
            if self._doors.refuses_pages and need is not None and _is_from_page(headers):
                return _FOREIGN_PAGE
            return ANYBODY
        if matched is not None and need is None:
            return NOBODY
        sent = _secret_in(headers)
        if isinstance(sent, Refused):
            return sent
        token = await self._lookup.find(sent)
        if need is None and token is not None and not token.is_expired:
            # There is nothing at this path, which any holder of a token may hear.
            return Caller(token.name, token.scope, token.jobs)
        decision = decide(token, need or _NOTHING_THERE)
        return decision if isinstance(decision, Refused) else decision.caller

    async def _note_refusal(self, scope: Scope, matched: Matched | None, refused: Refused) -> None:
        if matched is None or matched.rule.action is None:
            return
        subject = _subject(scope, matched)
        await asyncio.to_thread(self._record.refused, token=refused.token, action=matched.rule.action, subject=subject)

    def _recording(self, scope: Scope, matched: Matched, caller: Caller, send: Send) -> Send:
        """Return a ``send`` that records what was done before its answer goes out."""

        async def record_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                await asyncio.to_thread(
                    self._record.done,
                    token=caller.name,
                    action=str(matched.rule.action),
                    subject=_subject(scope, matched),
                )
            await send(message)

        return record_and_send


_NOTHING_THERE = Need("read", "any")

_NO_TOKEN = Refused(
    FaultCode.UNAUTHENTICATED,
    "this needs a token, and none was sent",
    "send 'Authorization: Bearer ...'; `hydraulis tokens create` makes a token",
)
_MALFORMED = Refused(
    FaultCode.UNAUTHENTICATED,
    "the Authorization header holds no token of this service",
    "send it once, as 'Bearer', a space, and the token: hyd_ and 43 letters, digits, '-' or '_'",
)
_FOREIGN_PAGE = Refused(
    FaultCode.FORBIDDEN,
    "the request's Host or Origin is that of a web page that is not this service's own",
    "address this service as localhost or by an IP address, or run it with HYDRAULIS_AUTH=tokens",
)


def _tell(parameters: Mapping[str, str]) -> None:
    """Let log lines and the trace of a request say which job and iteration it is about."""
    told = {name: parameters[name] for name in ("job", "iteration") if name in parameters}
    structlog.contextvars.bind_contextvars(**told)
    note(**{name: without_secrets(it) for name, it in told.items()})


def _secret_in(headers: Headers) -> str | Refused:
    sent = headers.getlist("authorization")
    if not sent:
        return _NO_TOKEN
    scheme, _, secret = sent[0].partition(" ")
    secret = secret.strip(" ")
    if len(sent) > 1 or scheme.lower() != "bearer" or not is_secret(secret):
        return _MALFORMED
    return secret


def _is_from_page(headers: Headers) -> bool:
    return is_foreign(host=headers.get("host", ""), origin=headers.get("origin"))


def _subject(scope: Scope, matched: Matched) -> str:
    rule = matched.rule
    return str(scope.get(SUBJECT, "")) if rule.subject is None else matched.parameters[rule.subject]


def _refusal(scope: Scope, refused: Refused) -> Response:
    is_unknown = refused.code in {FaultCode.UNAUTHENTICATED, FaultCode.TOKEN_EXPIRED}
    fault = PlanningFault(refused.code, refused.detail, refused.remedy)
    headers = {"WWW-Authenticate": CHALLENGE} if is_unknown else {}
    return problem_response(fault, request_id=request_id_of(Request(scope)), headers=headers)
