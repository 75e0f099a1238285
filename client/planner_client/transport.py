"""A synchronous transport that keeps one deadline over a whole exchange.

A timeout of a socket bounds each read, so that a server which sends one byte a second holds a caller as long as
it likes. Here each operation gets what is left of the deadline instead.
"""

import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import httpcore
import httpx

_MAPPED: dict[type[Exception], type[httpx.TransportError]] = {
    httpcore.ConnectTimeout: httpx.ConnectTimeout,
    httpcore.ReadTimeout: httpx.ReadTimeout,
    httpcore.WriteTimeout: httpx.WriteTimeout,
    httpcore.PoolTimeout: httpx.PoolTimeout,
    httpcore.ConnectError: httpx.ConnectError,
    httpcore.ReadError: httpx.ReadError,
    httpcore.WriteError: httpx.WriteError,
    httpcore.LocalProtocolError: httpx.LocalProtocolError,
    httpcore.RemoteProtocolError: httpx.RemoteProtocolError,
    httpcore.UnsupportedProtocol: httpx.UnsupportedProtocol,
}

_current = threading.local()


@contextmanager
def deadline(ends_at: float) -> Iterator[None]:
    """Bound all socket operations of this thread's `DeadlineTransport` requests (`time.monotonic` seconds)."""
    before: float | None = getattr(_current, "ends_at", None)
    _current.ends_at = ends_at
    try:
        yield
    finally:
        _current.ends_at = before


class DeadlineTransport(httpx.BaseTransport):
    """HTTP/1.1 over sockets whose every operation ends with the thread's `deadline`.

    Parameters
    ----------
    trusted
        What checks certificates; None for the public authorities.
    socket_path
        A Unix socket that all connections go to, whatever the address says.
    """

    def __init__(self, trusted: ssl.SSLContext | None = None, *, socket_path: str | None = None) -> None:
        self._pool = httpcore.ConnectionPool(
            ssl_context=trusted, max_connections=None, uds=socket_path, network_backend=_Backend()
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; the response's body is read by the caller."""
        url = request.url
        sent = httpcore.Request(
            method=request.method,
            url=httpcore.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path),
            headers=request.headers.raw,
            content=request.stream,
            extensions=request.extensions,
        )
        with _as_httpx_errors():
            response = self._pool.handle_request(sent)
        return httpx.Response(
            response.status, headers=response.headers, stream=_Body(response), extensions=response.extensions
        )

    def close(self) -> None:
        """Close all connections."""
        self._pool.close()


class _Body(httpx.SyncByteStream):
    def __init__(self, response: httpcore.Response) -> None:
        self._response = response

    def __iter__(self) -> Iterator[bytes]:
        with _as_httpx_errors():
            yield from self._response.iter_stream()

    def close(self) -> None:
        self._response.close()


class _Backend(httpcore.NetworkBackend):
    def __init__(self) -> None:
        self._sockets = httpcore.SyncBackend()
        self._names = _Names()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        limit_s = _left_s(timeout, httpcore.ConnectTimeout)
        ends_at = None if limit_s is None else time.monotonic() + limit_s
        for address in self._names.addresses(host, port, limit_s):
            left_s = None if ends_at is None else ends_at - time.monotonic()
            if left_s is not None and left_s <= 0:
                break
            try:
                return _Stream(self._sockets.connect_tcp(address, port, left_s, local_address, socket_options))
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = _left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(self._sockets.connect_unix_socket(path, left_s, socket_options))


class _Names:
    """Resolves host names on threads of their own, since a resolver cannot be told how long it may take.

    All who wait for one name share one thread, so that a resolver which does not answer holds one thread a name.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[tuple[str, int], Future[list[str]]] = {}

    def addresses(self, host: str, port: int, limit_s: float | None) -> list[str]:
        if _is_address(host):
            return [host]
        with self._lock:
            pending = self._pending.get((host, port))
            if pending is None:
                pending = self._pending[host, port] = Future()
                threading.Thread(
                    target=self._resolve, args=(host, port, pending), name="planner-names", daemon=True
                ).start()
        try:
            return pending.result(limit_s)
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"the name {host} was not resolved in time") from None
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name {host} cannot be resolved: {error}") from error

    def _resolve(self, host: str, port: int, pending: "Future[list[str]]") -> None:
        addresses: list[str] = []
        failure: Exception | None = None
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            failure = error
        with self._lock:
            del self._pending[host, port]
        if failure is None:
            pending.set_result(addresses)
        else:
            pending.set_exception(failure)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return False
    return True


class _Stream(httpcore.NetworkStream):
    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left_s(timeout, httpcore.ReadTimeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left_s(timeout, httpcore.WriteTimeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        left_s = _left_s(timeout, httpcore.ConnectTimeout)
        return _Stream(self._stream.start_tls(ssl_context, server_hostname, left_s))

    def get_extra_info(self, info: str) -> object:
        return self._stream.get_extra_info(info)


def _left_s(timeout: float | None, exceeded: type[Exception]) -> float | None:
    ends_at: float | None = getattr(_current, "ends_at", None)
    if ends_at is None:
        return timeout
    left_s = ends_at - time.monotonic()
    if left_s <= 0:
        raise exceeded("the deadline has passed")
    return left_s if timeout is None else min(timeout, left_s)


@contextmanager
def _as_httpx_errors() -> Iterator[None]:
    try:
        yield
    except tuple(_MAPPED) as error:
        raise _MAPPED[type(error)](str(error)) from error
