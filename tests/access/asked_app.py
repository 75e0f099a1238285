"""Requests put to an app directly, so that a test sees whether it reads their bodies."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from fastapi import FastAPI

from planner_client.contract import TokenRequest
from planner_service.access import TokenRegister
from planner_service.api import create_app
from planner_service.settings import Settings
from planner_service.store import AccessStore, SqlStore


@dataclass
class Answer:
    """What the app answered, and how often it asked for the body."""

    status: int
    headers: dict[str, str]
    body: bytes
    num_body_reads: int
    scope: dict[str, Any] = field(repr=False)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Tokens:
    """Gives tokens by scope and jobs."""

    def __init__(self, store: AccessStore) -> None:
        self._register = TokenRegister(store)
        self._num_given = 0

    def give(self, scope: str, *jobs: str) -> str:
        self._num_given += 1
        wanted = {"name": f"{scope}-{self._num_given}", "scope": scope, "jobs": list(jobs) or None}
        return self._register.give(TokenRequest.model_validate(wanted)).token


class AskedApp:
    """Puts requests to an app."""

    def __init__(self, app: FastAPI, tokens: Tokens) -> None:
        self.app = app
        self.tokens = tokens

    def ask(
        self,
        method: str,
        path: str,
        token: str | None = None,
        *,
        body: bytes = b"",
        headers: list[tuple[str, str]] | None = None,
    ) -> Answer:
        sent = list(headers or [])
        if token is not None:
            sent.append(("authorization", f"Bearer {token}"))
        return asyncio.run(self._ask(method, path, sent, body))

    async def _ask(self, method: str, path: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
        path, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode("utf-8", "surrogateescape"),
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
            "server": ("127.0.0.1", 8000),
            "client": ("127.0.0.1", 50_000),
        }
        num_reads = 0
        started: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> dict[str, Any]:
            nonlocal num_reads
            num_reads += 1
            if num_reads == 1:
                return {"type": "http.request", "body": body, "more_body": False}
            # A caller that stays: whoever watches for its leaving waits.
            await asyncio.Event().wait()
            raise AssertionError("nothing sets this event")

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        async with asyncio.timeout(20):
            await self.app(scope, receive, send)  # type: ignore[arg-type]  # plain dictionaries are ASGI messages
        sent = {name.decode().lower(): value.decode() for name, value in started["headers"]}
        return Answer(started["status"], sent, b"".join(parts), num_reads, scope)


def app_on(store: SqlStore, **changes: object) -> FastAPI:
    settings = Settings.model_validate({"database": "sqlite://", "workers": 1, "auth": "tokens", **changes})
    return create_app(settings, store=store)
