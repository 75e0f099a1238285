"""Connections that nobody can hold for nothing: those that say nothing, half a request, or take no answer."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class BoundedConnection(H11Protocol):
    """HTTP/1.1 with bounds on how long the head of a request may take to arrive, and an answer to be taken.

    A web server by itself waits for both as long as the other side likes, and a thousand such connections may be all
    the files that a process can have. Bodies have a bound of their own (`planner_service.api.body`), and so have
    connections between two requests.

    Attributes
    ----------
    patience_s
        Longest time for either.
    """

    patience_s: float = 60.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take what came; from the first byte of a head on, the rest of it has so long."""
        super().data_received(data)
        if self._is_answering():
            self._await_no_head()
        elif self._head_timer is None:
            self._await_head()

    def pause_writing(self) -> None:
        """Give the other side so long to take what was written."""
        super().pause_writing()
        if self._answer_timer is None:
            self._answer_timer = self.loop.call_later(self.patience_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Note that most of it was taken."""
        super().resume_writing()
        self._await_no_taker()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._await_no_head()
        self._await_no_taker()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self.patience_s, self._head_is_late)

    def _await_no_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _await_no_taker(self) -> None:
        if self._answer_timer is not None:
            self._answer_timer.cancel()
            self._answer_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if not self._is_answering():
            self.transport.close()

    def _is_answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete


def bounded_connections(patience_s: float) -> type[BoundedConnection]:
    """Return the protocol of a server whose connections have so long (s)."""
    return type("BoundedConnections", (BoundedConnection,), {"patience_s": patience_s})
