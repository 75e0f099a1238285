"""A planner over HTTP that plans at once, or misbehaves while a test tells it to."""

import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from planner_client.contract import Plan, PlanRequest
from planner_client.fallback import FallbackBasis, KnownReplica, fallback_plan
from planner_client.rates import Rates

Mood = Callable[[socket.socket, bytes], None]
"""What becomes of a request, given its connection and its bytes."""

BASIS = FallbackBasis(
    (
        KnownReplica(2, 1, 1, "d", (0, 1), 4000, Rates(1e-6, 0.05, 5.0)),
        KnownReplica(1, 1, 2, "d", (2, 3), 2000, Rates(2e-6, 0.06, 4.0)),
    ),
    "(2,1)x1,(1,2)x1",
)


def planned(request: PlanRequest) -> Plan:
    """A plan as a planner would give it: of what the greedy rules make, labelled as the planner's."""
    return fallback_plan(BASIS, request).model_copy(update={"solved_by": "heuristic", "planning_ms": 1.0})


def send(connection: socket.socket, status: int, body: bytes, headers: str = "") -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    connection.sendall(head.encode() + body)


def well(connection: socket.socket, request: bytes) -> None:
    send(connection, 200, planned(PlanRequest.model_validate_json(request)).model_dump_json().encode())


def silent(_connection: socket.socket, _request: bytes) -> None:
    time.sleep(20)


def closing(_connection: socket.socket, _request: bytes) -> None:
    """Close without a word."""


def half(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
    time.sleep(20)


def trickling(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(400):
        connection.sendall(b" ")
        time.sleep(0.05)


def nonsense(connection: socket.socket, _request: bytes) -> None:
    send(connection, 200, b"<html>hello</html>")


def another_plan(connection: socket.socket, request: bytes) -> None:
    """A good plan of another batch."""
    content = json.loads(request)
    content["lengths"] = {source: [*own, 77] for source, own in content["lengths"].items()}
    well(connection, json.dumps(content).encode())


def garbage(connection: socket.socket, _request: bytes) -> None:
    connection.sendall(bytes(range(256)) * 40)


def busy(status: int, retry_after: int) -> Mood:
    problem = {"type": "urn:x", "title": "x", "status": status, "detail": "too much to do", "code": "overloaded"}
    body = json.dumps(problem).encode()
    return lambda connection, _request: send(connection, status, body, f"Retry-After: {retry_after}\r\n")


def refusing(connection: socket.socket, _request: bytes) -> None:
    problem = {"type": "urn:x", "title": "x", "status": 403, "detail": "not for you", "code": "forbidden"}
    send(connection, 403, json.dumps(problem).encode())


def after(seconds: float, mood: Mood = well) -> Mood:
    def late(connection: socket.socket, request: bytes) -> None:
        time.sleep(seconds)
        mood(connection, request)

    return late


@dataclass
class MoodyPlanner:
    """A server on one port, which may go away and come back."""

    mood: Mood = well
    port: int = 0
    num_requests: int = 0
    heads: list[bytes] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    _listener: socket.socket | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    def come(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def go(self) -> None:
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # the listener is closed when the planner goes
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client may leave at any time, and does
            if self.tls is not None:
                connection = self.tls.wrap_socket(connection, server_side=True)
            data = b""
            while b"\r\n\r\n" not in data:
                data += _received(connection)
            head, _, body = data.partition(b"\r\n\r\n")
            lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            while len(body) < sum(lengths):
                body += _received(connection)
            with self._lock:
                self.num_requests += 1
                self.heads.append(head)
            self.mood(connection, body)


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionAbortedError("the client closed in the middle of a request")
    return data


@contextmanager
def moody(mood: Mood = well, tls: ssl.SSLContext | None = None) -> Iterator[MoodyPlanner]:
    planner = MoodyPlanner(mood, tls=tls)
    planner.come()
    try:
        yield planner
    finally:
        planner.go()
