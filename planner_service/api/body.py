"""Request bodies: read with a bound on size and time, parsed off the event loop when they are large."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Request
from pydantic import ValidationError
from pydantic_core import InitErrorDetails, from_json

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault
from planner_service.desk.problem_documents import validation_fault
from planner_service.settings import Settings

INLINE_PARSE_BYTES = 32 * 1024
"""Bodies up to this size are parsed on the event loop: a thread would cost more than it saves."""

MAX_LARGE_PARSES = 2
"""Large bodies that are parsed at once: parsing takes many times a body's size in memory."""

MAX_NESTED = 400_000
"""Most objects and lists of one body, and most fields of all its objects together.

That is six for each of as many sources as a batch may have. A parser holds up the whole process, and a body of nothing
but brackets takes it half a minute and gigabytes.
"""

MAX_ELEMENTS = 2_000_000
"""Most values of one body; what has more sequences is sent as histograms."""

Parsed = TypeVar("Parsed")


class BodyReader:
    """Reads request bodies within the limits that the operator set."""

    def __init__(self, settings: Settings) -> None:
        self._limit_bytes = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s
        self._large_parses = asyncio.Semaphore(MAX_LARGE_PARSES)

    async def read(self, request: Request, validate: Callable[[Any], Parsed]) -> Parsed:
        """Read the whole body as JSON and validate it.

        Parameters
        ----------
        validate
            Makes what the route works with out of the JSON value, as a model's ``model_validate`` does.

        Raises
        ------
        PlanningFault
            Code ``body-too-large`` as soon as a limit is passed; ``invalid-request`` if the body does not arrive
            in time, is not JSON or not valid.
        """
        body = await self._bytes(request)
        try:
            if len(body) <= INLINE_PARSE_BYTES:
                return _parsed(body, validate)
            async with self._large_parses:
                return await asyncio.to_thread(_parsed, body, validate)
        except ValidationError as error:
            raise await asyncio.to_thread(validation_fault, error) from None

    async def _bytes(self, request: Request) -> bytes:
        announced = request.headers.get("content-length", "")
        if announced.isdecimal() and int(announced[:20]) > self._limit_bytes:
            raise _too_large(self._limit_bytes)
        body = bytearray()
        try:
            async with asyncio.timeout(self._timeout_s):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > self._limit_bytes:
                        raise _too_large(self._limit_bytes)
        except TimeoutError:
            raise PlanningFault(
                FaultCode.INVALID_REQUEST,
                f"the body did not arrive within {self._timeout_s:g} s ({len(body)} bytes did)",
                "send it faster, or send histograms in place of lists of lengths",
                num_bytes=len(body),
            ) from None
        return bytes(body)


def _parsed(body: bytes, validate: Callable[[Any], Parsed]) -> Parsed:
    """Read JSON, then validate what was read.

    Two steps, because a validator that reads JSON by itself copies the whole body for each error it notes.
    """
    _refuse_many(body)
    try:
        value = from_json(body)
    except ValueError as error:
        details: InitErrorDetails = {"type": "json_invalid", "input": body, "ctx": {"error": str(error)}}
        raise ValidationError.from_exception_data("body", [details]) from None
    return validate(value)


def _refuse_many(body: bytes) -> None:
    """Count before anything is made of it. What strings hold counts, too, which no valid body has that much of."""
    counted = {
        "objects and lists": (body.count(b"{") + body.count(b"["), MAX_NESTED),
        "fields": (body.count(b":"), MAX_NESTED),
        "values": (body.count(b","), MAX_ELEMENTS),
    }
    for what, (number, limit) in counted.items():
        if number > limit:
            raise PlanningFault(
                FaultCode.BODY_TOO_LARGE,
                f"the body has {number} {what}; at most {limit} are read",
                "send histograms in place of lists of lengths, and the sources of a large batch in several requests",
                limit=limit,
            )


def _too_large(limit: int) -> PlanningFault:
    return PlanningFault(
        FaultCode.BODY_TOO_LARGE,
        f"the body is over the limit of {limit} bytes",
        "send histograms in place of lists of lengths, or run the service with a higher HYDRAULIS_MAX_BODY_BYTES",
        limit_bytes=limit,
    )
