"""A server that answers as a test tells it to, byte for byte."""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Reaction = Callable[[socket.socket], None]


def reply(status: int, body: bytes, *, media_type: str = "application/json", headers: str = "") -> Reaction:
    """Answer properly."""
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {media_type}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return lambda connection: connection.sendall(head.encode() + body)


def raw(data: bytes) -> Reaction:
    """Send these bytes and close."""
    return lambda connection: connection.sendall(data)


def hang(_connection: socket.socket) -> None:
    """Say nothing for longer than any test waits."""
    time.sleep(20)


def close(_connection: socket.socket) -> None:
    """Close without a word."""


def reset(connection: socket.socket) -> None:
    """Break the connection."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def trickle(data: bytes) -> Reaction:
    """Send one byte every twentieth of a second."""

    def react(connection: socket.socket) -> None:
        for at in range(len(data)):
            connection.sendall(data[at : at + 1])
            time.sleep(0.05)

    return react


@dataclass
class MisbehavingServer:
    """Reacts to the first request with the first reaction, and so on; the last one repeats."""

    url: str
    reactions: list[Reaction]
    bodies: list[bytes] = field(default_factory=list)

    @property
    def num_requests(self) -> int:
        return len(self.bodies)


@contextmanager
def misbehaving(*reactions: Reaction) -> Iterator[MisbehavingServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = MisbehavingServer(f"http://127.0.0.1:{listener.getsockname()[1]}", list(reactions))

    def serve_one(connection: socket.socket) -> None:
        with connection:
            try:
                server.bodies.append(_read_request(connection))
                server.reactions[min(server.num_requests, len(server.reactions)) - 1](connection)
            except OSError:
                return  # the client has left, as the tests of its deadlines want it to

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return  # the test is over and has closed the listener
            threading.Thread(target=serve_one, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(5)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += _received(connection)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while lengths and len(body) < int(lengths[0]):
        body += _received(connection)
    return body


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionAbortedError("the client closed in the middle of a request")
    return data
