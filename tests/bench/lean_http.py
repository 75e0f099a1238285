"""HTTP/1.1 over kept connections at little cost, so that what is measured is the service and not whoever asks it."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

MAX_LINE_BYTES = 2**16


@dataclass(frozen=True)
class LeanAnswer:
    """One answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        """Read the body."""
        return json.loads(self.body)


class LeanHttp:
    """As many connections to one service as there are requests in progress, kept for the next ones."""

    def __init__(self, url: str, *, timeout_s: float) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._timeout_s = timeout_s
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, method: str, path: str, body: bytes = b"") -> LeanAnswer:
        """Send one request and read its answer."""
        async with asyncio.timeout(self._timeout_s):
            streams = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, self._port)
            try:
                answer = await _ask(*streams, f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n", body)
            except (ConnectionError, asyncio.IncompleteReadError):
                # A connection that the service closed while nobody used it; a new one shows whether it is there.
                streams[1].close()
                streams = await asyncio.open_connection(self._host, self._port)
                answer = await _ask(*streams, f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\n", body)
        if answer.headers.get("connection") == "close":
            streams[1].close()
        else:
            self._idle.append(streams)
        return answer

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: str, body: bytes) -> LeanAnswer:
    length = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
    writer.write(f"{head}{length}\r\n".encode() + body)
    await writer.drain()
    lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:] if line)}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    return LeanAnswer(int(lines[0].split()[1]), headers, content)
