"""Faults as RFC 9457 problem documents: one table of statuses, one shape of answer."""

import math
import reprlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault

STATUS_BY_CODE: dict[str, int] = {
    FaultCode.INVALID_REQUEST: 422,
    FaultCode.UNKNOWN_PROFILE: 404,
    FaultCode.PROFILE_CONFLICT: 409,
    FaultCode.PROFILE_UNUSABLE: 422,
    FaultCode.UNKNOWN_LAYOUT: 422,
    FaultCode.LAYOUT_WITHOUT_MEMORY: 422,
    FaultCode.STRATEGY_TOO_LARGE: 422,
    FaultCode.SEQUENCE_TOO_LONG: 422,
    FaultCode.OPTIMIZER_LAYOUT_MISMATCH: 422,
    FaultCode.NO_USABLE_STRATEGY: 422,
    FaultCode.CONSTRAINT_INFEASIBLE: 422,
    FaultCode.BATCH_TOO_LARGE: 422,
    FaultCode.BODY_TOO_LARGE: 413,
    FaultCode.NOT_FOUND: 404,
    FaultCode.METHOD_NOT_ALLOWED: 405,
    FaultCode.UNKNOWN_JOB: 404,
    FaultCode.JOB_CONFLICT: 409,
    FaultCode.UNKNOWN_SOURCE: 422,
    FaultCode.BATCH_CONFLICT: 409,
    FaultCode.ITERATION_CLOSED: 409,
    FaultCode.SOURCES_MISSING: 422,
    FaultCode.PLAN_TOO_LATE: 410,
    FaultCode.PLAN_MISMATCH: 409,
    FaultCode.PROFILE_IN_USE: 409,
    FaultCode.PLAN_IN_USE: 409,
    FaultCode.TOKEN_CONFLICT: 409,
    FaultCode.UNAUTHENTICATED: 401,
    FaultCode.TOKEN_EXPIRED: 401,
    FaultCode.FORBIDDEN: 403,
    FaultCode.OVERLOADED: 429,
    FaultCode.DEADLINE_EXCEEDED: 504,
    FaultCode.SHUTTING_DOWN: 503,
    FaultCode.INTERNAL: 500,
    FaultCode.NOT_READY: 503,
    FaultCode.STORE_UNAVAILABLE: 503,
}

MAX_FIELD_ERRORS = 20
MAX_EXPLAINED_ERRORS = 1000
JSON_WORDING = {
    "model_type": "Input should be an object",
    "dict_type": "Input should be an object",
    "list_type": "Input should be an array",
}
"""What callers sent is JSON, whatever the validator was given."""

BRANCH_MISMATCHES = frozenset({"dict_type", "list_type", "string_type", "model_type"})
MAX_TEXT = 2000
MAX_SAFE_INTEGER = 2**53

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 80


def status_of(fault: PlanningFault) -> int:
    """Return the HTTP status that a fault is answered with."""
    # A code from a newer planner than this table is still the caller's to read, as a refusal.
    return STATUS_BY_CODE.get(fault.code, 422)


def problem_document(fault: PlanningFault, *, request_id: str) -> bytes:
    """Write a fault as a problem document (JSON, UTF-8)."""
    status = status_of(fault)
    document = {
        **{name: _plain(value) for name, value in fault.numbers.items()},
        "type": f"urn:hydraulis:problem:{fault.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": _plain(fault.detail),
        "code": str(fault.code),
        "remedy": _plain(fault.remedy),
        "request_id": request_id,
    }
    return orjson.dumps(document)


_OWN_MEMBERS = frozenset({"type", "title", "status", "detail", "code", "remedy", "request_id"})


def fault_of(document: bytes) -> PlanningFault:
    """Read a problem document that this service wrote, back into its fault."""
    members = orjson.loads(document)
    numbers = {name: value for name, value in members.items() if name not in _OWN_MEMBERS}
    return PlanningFault(members["code"], members["detail"], members["remedy"], **numbers)


def unexpected(request_id: str) -> PlanningFault:
    """Return the fault that stands for an error nobody foresaw."""
    return PlanningFault(
        FaultCode.INTERNAL,
        f"the service met an unexpected error, logged under request id {request_id}",
        "report it with this id; the same request may work on another try",
    )


def validation_fault(error: ValidationError) -> PlanningFault:
    """Explain what is wrong with a body: each field's path, the rule and the value, the first few of them."""
    num_errors = error.error_count()
    if num_errors > MAX_EXPLAINED_ERRORS:
        # pydantic writes out all errors or none; a million of them take seconds and gigabytes.
        return PlanningFault(
            FaultCode.INVALID_REQUEST,
            f"{num_errors} values of the body are not what their fields take",
            "send one of them alone to see what is wrong with it; /docs describes every field",
            num_errors=num_errors,
        )
    found = _without_untaken_branches(error.errors(include_url=False, include_context=False))
    errors = [
        {
            "field": field_path(entry["loc"]),
            "message": JSON_WORDING.get(entry["type"], entry["msg"]).removeprefix("Value error, "),
            "value": shown(entry["input"]),
        }
        for entry in found[:MAX_FIELD_ERRORS]
    ]
    first = errors[0]
    where = f"{first['field']}: " if first["field"] else ""
    # What is wrong with a body or an object as a whole is in the message; the whole would only repeat the request.
    got = f", got {first['value']}" if _is_single(found[0]["input"]) else ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return PlanningFault(
        FaultCode.INVALID_REQUEST,
        f"{where}{first['message']}{got}{more}",
        "correct the fields listed under errors; /docs describes every field",
        errors=errors,
        num_errors=len(found),
    )


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def shown(value: Any) -> str:
    """Show a single value, shortened; of anything larger only what it is, so that no request is sent back."""
    if isinstance(value, bytes):
        return f"a body of {len(value)} bytes"
    if isinstance(value, Mapping):
        return f"an object with {len(value)} fields"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)} elements"
    return _SHORT.repr(value)


def _without_untaken_branches(errors: list[ErrorDetails]) -> list[ErrorDetails]:
    """Leave out "should be an object" and the like where another branch of the same union says more."""
    telling = [entry for entry in errors if entry["type"] not in BRANCH_MISMATCHES]
    told = {field_path(entry["loc"][:1]) for entry in telling}
    return [entry for entry in errors if entry in telling or field_path(entry["loc"][:1]) not in told]


def field_path(location: tuple[str | int, ...]) -> str:
    """Write a location such as ``("options", "seed")`` as ``options.seed``; steps that name a union's branch go."""
    steps = [str(step) for step in location if isinstance(step, int) or not any(mark in step for mark in "[(")]
    return ".".join(steps)


def _plain(value: Any) -> Any:
    """Reduce a value to JSON that every reader can hold: short text, safe integers, finite numbers."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_SAFE_INTEGER else _SHORT.repr(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(_plain(str(key))): _plain(item) for key, item in list(value.items())[:MAX_FIELD_ERRORS]}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in list(value)[:MAX_FIELD_ERRORS]]
    return str(value)[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8")
