"""Work for a caller who may leave: it is cancelled when the connection closes."""

import asyncio
from collections.abc import Coroutine
from typing import TypeVar

from fastapi import Request
from starlette.requests import ClientDisconnect

Result = TypeVar("Result")


async def while_connected(request: Request, work: Coroutine[None, None, Result]) -> Result:
    """Await the work, or cancel it as soon as the client is gone. The body must have been read before.

    Raises
    ------
    ClientDisconnect
        If the client left first.
    """
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise ClientDisconnect
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
