"""The routes of tokens and of the audit record."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from planner_client.contract import AuditList, NewToken, TokenList, TokenRequest
from planner_service.access import TokenLookup, TokenRegister
from planner_service.api import openapi
from planner_service.api.answers import json_answer
from planner_service.api.body import BodyReader
from planner_service.api.guard import name_subject
from planner_service.api.paging import AfterNumber, Limit


def access_routes(register: TokenRegister, lookup: TokenLookup, bodies: BodyReader) -> APIRouter:
    """Return the routes ``/v1/tokens`` and ``/v1/audit``."""
    router = APIRouter(prefix="/v1", tags=["access"])

    @router.post(
        "/tokens",
        response_model=NewToken,
        status_code=201,
        responses=openapi.problems(409, 413, 422, 500, 503),
        openapi_extra=openapi.request_body(openapi.body_of("TokenRequest")),
        summary="Give a token",
    )
    async def post_token(request: Request) -> Response:
        """Give a token. Its secret is in this answer and nowhere else: the planner keeps a hash."""
        wanted = await bodies.read(request, TokenRequest.model_validate)
        name_subject(request, wanted.name)
        token = await asyncio.to_thread(register.give, wanted)
        lookup.forget()
        return json_answer(token, status=201)

    @router.get("/tokens", response_model=TokenList, responses=openapi.problems(500, 503), summary="List tokens")
    async def list_tokens() -> Response:
        """List all tokens, ascending by name, without their secrets."""
        listing = await asyncio.to_thread(register.all)
        return json_answer(listing)

    @router.delete(
        "/tokens/{name}", status_code=204, responses=openapi.problems(404, 500, 503), summary="Revoke a token"
    )
    async def delete_token(name: Annotated[str, Path(description="The token's name.")]) -> Response:
        """Take a token back: at once here, within 5 s in other services on the same database."""
        await asyncio.to_thread(register.revoke, name)
        lookup.forget()
        return Response(status_code=204)

    @router.get(
        "/audit", response_model=AuditList, responses=openapi.problems(422, 500, 503), summary="Read the audit record"
    )
    async def get_audit(after: AfterNumber = None, limit: Limit = 100) -> Response:
        """Return what administrators did, and what was refused for want of the right, in the order it happened."""
        listing = await asyncio.to_thread(register.audit, after=after or 0, limit=limit)
        return json_answer(listing)

    return router
