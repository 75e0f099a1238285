"""Callers who hang up, over real HTTP, with a planner that uses its whole deadline."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson
import uvicorn
from served_planner import wait_until

from planner_service.api import create_app
from planner_service.settings import Settings

REQUEST: dict[str, Any] = {"profile": "llama-7b-a800-80g", "num_gpus": 8, "lengths": [100, 200]}


@contextmanager
def served(tmp_path: Path, planner: str) -> Iterator[str]:
    """Serve the app from a thread of the test's process."""
    app = create_app(
        Settings(database=str(tmp_path / "p.sqlite3"), workers=1, body_timeout_s=0.5),
        solve_name=f"misbehaving_planner:{planner}",
    )
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert wait_until(lambda: server.started and httpx.get(f"{url}/readyz").status_code == 200, 30)
        yield url
    finally:
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def hang_up_after(url: str, body: bytes, seconds: float) -> None:
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as caller:
        caller.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(seconds)


def test_a_caller_who_hangs_up_frees_the_only_solver(tmp_path: Path) -> None:
    with served(tmp_path, "slow") as url:
        hang_up_after(url, orjson.dumps({**REQUEST, "options": {"deadline_ms": 60_000}}), 0.3)
        began = time.monotonic()
        answer = httpx.post(f"{url}/v1/plans", json={**REQUEST, "options": {"deadline_ms": 100}}, timeout=20)
        assert answer.status_code == 200
        assert time.monotonic() - began < 5
        assert 'status="499"' in httpx.get(f"{url}/metrics").text


def test_of_two_callers_with_one_request_one_may_leave(tmp_path: Path) -> None:
    with served(tmp_path, "slow") as url:
        body = {**REQUEST, "options": {"deadline_ms": 1500}}
        leaving = threading.Thread(target=hang_up_after, args=(url, orjson.dumps(body), 0.5))
        leaving.start()
        answer = httpx.post(f"{url}/v1/plans", json=body, timeout=20)
        leaving.join()
        assert answer.status_code == 200
        assert "hydraulis_solve_seconds_count 1.0" in httpx.get(f"{url}/metrics").text


def test_a_body_that_never_ends_is_refused_in_time(tmp_path: Path) -> None:
    with served(tmp_path, "obliging") as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as caller:
            caller.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
            answer = b""
            # Head and body of an answer may come as two segments.
            while b"bytes did" not in answer and (received := caller.recv(65536)):
                answer += received
        assert answer.startswith(b"HTTP/1.1 422")
        assert b"did not arrive within 0.5 s (1 bytes did)" in answer
