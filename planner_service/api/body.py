"""Request bodies: read with a bound on size and time, parsed off the event loop when they are large."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError

from planner_client.contract import FaultCode
from planner_service.core.faults import PlanningFault
from planner_service.desk.problem_documents import validation_fault
from planner_service.settings import Settings

INLINE_PARSE_BYTES = 32 * 1024
"""Bodies up to this size are parsed on the event loop: a thread would cost more than it saves."""

MAX_LARGE_PARSES = 2
"""Large bodies that are parsed at once: parsing takes many times a body's size in memory."""

Parsed = TypeVar("Parsed")


class BodyReader:
    """Reads request bodies within the limits that the operator set."""

    def __init__(self, settings: Settings) -> None:
        self._limit_bytes = settings.max_body_bytes
        self._timeout_s = settings.body_timeout_s
        self._large_parses = asyncio.Semaphore(MAX_LARGE_PARSES)

    async def read(self, request: Request, parser: Callable[[bytes], Parsed]) -> Parsed:
        """Read the whole body and parse it.

        Raises
        ------
        PlanningFault
            Code ``body-too-large`` as soon as the limit is passed; ``invalid-request`` if the body does not arrive
            in time or the parser refuses it.
        """
        body = await self._bytes(request)
        try:
            if len(body) <= INLINE_PARSE_BYTES:
                return parser(body)
            async with self._large_parses:
                return await asyncio.to_thread(parser, body)
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


def _too_large(limit: int) -> PlanningFault:
    return PlanningFault(
        FaultCode.BODY_TOO_LARGE,
        f"the body is over the limit of {limit} bytes",
        "send histograms in place of lists of lengths, or run the service with a higher HYDRAULIS_MAX_BODY_BYTES",
        limit_bytes=limit,
    )
