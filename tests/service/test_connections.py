"""Connections that hold on to a service: whoever says nothing, half a request, or takes no answer is let go."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from served_planner import ServedPlanner, serve_command, servers, wait_until

PATIENCE_S = 1.0
NUM_SOURCES = 60_000
"""An answer of 1.5 MB: more than the buffers of a connection take."""


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlanner]:
    with servers(tmp_path_factory.mktemp("impatient")) as start:
        yield start("--workers", "1", env={"HYDRAULIS_BODY_TIMEOUT_S": str(PATIENCE_S)})


@pytest.fixture
def connect(impatient: ServedPlanner) -> Iterator[Callable[[], socket.socket]]:
    url = httpx.URL(impatient.url)
    opened: list[socket.socket] = []

    def one() -> socket.socket:
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20.0)
        connection.connect((url.host, url.port))
        opened.append(connection)
        return connection

    yield one
    for connection in opened:
        connection.close()


def num_open(planner: ServedPlanner) -> int:
    num = 0
    for link in Path(f"/proc/{planner.process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed since the folder was listed
            num += "socket:" in str(link.readlink())
    return num


def answer(connection: socket.socket) -> bytes:
    """Read until the service closes the connection."""
    received = b""
    while data := connection.recv(65536):
        received += data
    return received


@pytest.mark.parametrize("sent", [b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Sl"])
def test_who_sends_no_whole_head_is_let_go_and_others_are_answered_meanwhile(
    sent: bytes, impatient: ServedPlanner, connect: Callable[[], socket.socket]
) -> None:
    before = num_open(impatient)
    began_at = time.monotonic()
    holding = [connect() for _ in range(50)]
    for connection in holding:
        connection.sendall(sent)
    assert httpx.get(f"{impatient.url}/healthz", timeout=20.0).status_code == 200
    assert [answer(connection) for connection in holding] == [b""] * 50
    assert time.monotonic() - began_at > 0.9 * PATIENCE_S
    assert wait_until(lambda: num_open(impatient) <= before + 1)


def test_a_head_that_comes_byte_by_byte_is_given_up_in_time(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    began_at = time.monotonic()

    def trickle() -> None:
        for _ in range(1000):
            connection.sendall(b"G")
            time.sleep(0.05)

    with pytest.raises((BrokenPipeError, ConnectionResetError)):
        trickle()
    assert time.monotonic() - began_at < 20.0


def test_the_head_of_a_second_request_has_a_bound_too(connect: Callable[[], socket.socket]) -> None:
    connection = connect()
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert connection.recv(65536).startswith(b"HTTP/1.1 200")
    connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
    connection.settimeout(20.0)
    while connection.recv(65536):
        continue


def test_who_waits_for_a_plan_is_not_let_go(impatient: ServedPlanner, connect: Callable[[], socket.socket]) -> None:
    spec = {"name": "patient", "profile": "llama-7b-a100-40g", "num_gpus": 8, "sources": ["s"]}
    assert httpx.post(f"{impatient.url}/v1/jobs", json=spec, timeout=20.0).status_code == 201
    waiting = connect()
    wait_ms = int(2.5 * PATIENCE_S * 1000)
    waiting.sendall(f"GET /v1/jobs/patient/iterations/0/plan?wait_ms={wait_ms} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert waiting.recv(65536).startswith(b"HTTP/1.1 202")


def test_who_takes_no_answer_is_let_go(impatient: ServedPlanner, connect: Callable[[], socket.socket]) -> None:
    sources = [f"a-source-with-a-long-name-{number}" for number in range(NUM_SOURCES)]
    spec = {"name": "wide", "profile": "llama-7b-a100-40g", "num_gpus": 8, "sources": sources}
    assert httpx.post(f"{impatient.url}/v1/jobs", json=spec, timeout=20.0).status_code == 201
    before = num_open(impatient)
    holding = [connect() for _ in range(5)]
    for connection in holding:
        connection.sendall(b"GET /v1/jobs/wide HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)
    assert wait_until(lambda: num_open(impatient) > before)
    assert wait_until(lambda: num_open(impatient) <= before, timeout_s=20.0)
    assert httpx.get(f"{impatient.url}/healthz", timeout=20.0).status_code == 200


def test_of_two_services_that_are_started_at_once_one_has_the_port_and_the_other_says_so(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started = [
        subprocess.Popen(
            serve_command("--port", str(port), "--workers", "1", "--database", str(tmp_path / f"{number}.sqlite3")),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(2)
    ]
    try:
        assert wait_until(lambda: any(process.poll() is not None for process in started), timeout_s=60.0)
        (loser,) = (process for process in started if process.poll() is not None)
        said = loser.communicate(timeout=20.0)[1]
        assert loser.returncode == 2
        assert "Traceback" not in said
        assert said.endswith(
            f"hydraulis serve: cannot listen on 127.0.0.1:{port}: Address already in use; "
            "choose another with --host and --port\n"
        )
    finally:
        for process in started:
            process.kill()
            process.communicate(timeout=20.0)


def test_a_name_that_no_machine_can_have_is_refused_in_one_sentence(tmp_path: Path) -> None:
    host = "a" * 64 + ".example"
    done = subprocess.run(
        serve_command("--host", host, "--database", str(tmp_path / "planner.sqlite3")),
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"hydraulis serve: cannot listen on {host}:8000: ")
    assert len(done.stderr.splitlines()) == 1
