"""Ten thousand hostile bodies over every route that takes one, against the whole service in a process of its own."""

import http.client
import json
import os
import random
import re
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from hostile_bodies import MARK, BodyRoute, HostileBody, giant_bodies, mutated, routes_with_bodies, valid_bodies
from served_planner import ServedPlanner, servers, wait_until

from planner_client.contract import PROBLEM_MEDIA_TYPE, FaultCode, Problem

GOLDEN = Path(__file__).parent.parent / "contract" / "golden"
NUM_MUTATED = 10_000
SEED = 20_240_601
ANSWER_S = 1.0
PLANNING_S = 1.0
"""What a body gets for planning that turns out to be valid; more than any deadline that these ask for."""

TOO_LONG = "took too long"
STARVED_S = 5.0
"""What an answer may take on a machine that other work holds, if the server itself was not at it for too long."""

MAX_PROBLEM_BYTES = 16 * 1024
MAX_LOG_LINE_BYTES = 4096
MAX_GROWTH_BYTES = 400 * 1024**2
MAX_PEAK_BYTES = 1024 * 1024**2
BODY_LIMIT_BYTES = 64 * 1024**2
JOB = "steady"
SOURCES = ["node-0", "node-1"]
QUICK = {"deadline_ms": 50, "target_gap": 10}
CLUSTER: dict[str, Any] = {"profile": "llama-7b-a800-80g", "num_gpus": 8, "options": QUICK}


@dataclass
class Verdict:
    """What was wrong with answers."""

    num_asked: int = 0
    statuses: dict[int, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlanner]:
    """A service with a job that has a plan; it has all the limits that it comes with."""
    with servers(tmp_path_factory.mktemp("attacked")) as start:
        served = start("--workers", "1")
        with httpx.Client(base_url=served.url, timeout=30) as http:
            spec = {"name": JOB, "sources": SOURCES, **CLUSTER}
            assert http.post("/v1/jobs", json=spec).status_code == 201
            batches = {"sources": {source: {"lengths": [100, 200, 4000]} for source in SOURCES}}
            assert http.put(f"/v1/jobs/{JOB}/iterations/0/histograms", json=batches).status_code == 200
            assert http.get(f"/v1/jobs/{JOB}/iterations/0/plan?wait_ms=20000").status_code == 200
        yield served


@pytest.fixture(scope="module")
def routes(attacked: ServedPlanner) -> list[BodyRoute]:
    return routes_with_bodies(httpx.get(f"{attacked.url}/openapi.json", timeout=30).json())


@pytest.fixture(scope="module")
def candidates(attacked: ServedPlanner) -> list[Any]:
    """Valid bodies, of whatever kind: the golden payloads, and those that get far into the service."""
    digest = httpx.get(f"{attacked.url}/v1/jobs/{JOB}/iterations/0", timeout=30).json()["digest"]
    golden = [json.loads(path.read_text()) for path in sorted(GOLDEN.glob("*.json"))]
    for payload in golden:
        if "options" in payload:
            payload["options"].update(QUICK)
    batch = {"lengths": [5, 500, 5], "atomic_groups": [{"lengths": [5, 5], "count": 1}]}
    histogram = {"histogram": {"lengths": [5, 500], "counts": [3, 1]}}
    return [
        *golden,
        {"name": JOB, "sources": SOURCES, **CLUSTER},
        {
            **CLUSTER,
            "iteration": 3,
            "lengths": [100, 200, 4000],
            "strategies": [[{"tp": 8, "pp": 1, "num_replicas": 1}]],
        },
        {**CLUSTER, "histograms": {"a:0": histogram["histogram"]}, "atomic_groups": {"a:0": [{"lengths": [5, 5]}]}},
        batch,
        histogram,
        {"sources": {"node-0": batch, "node-1": histogram}},
        {"digest": digest, "iteration": 0, "replicas": [{"replica": 0, "wall_ms": 1.5, "micro_batch_ms": [1.5]}]},
        {"name": "somebody", "scope": "read", "jobs": ["a*"]},
        {"agent_version": "0.1.0", "devices": [{"name": "a GPU", "count": 8, "memory_bytes": 2**30}], "job": JOB},
    ]


@pytest.mark.timeout(400)
def test_mutated_bodies_are_answered_within_a_second_with_a_documented_answer(
    attacked: ServedPlanner, routes: list[BodyRoute], candidates: list[Any]
) -> None:
    draw = random.Random(SEED)  # noqa: S311 - the same bodies every time
    verdict, caller = Verdict(), Caller(attacked)
    valid = [valid_bodies(route, candidates) for route in routes]
    assert all(len(bodies) > 3 for bodies in valid), "a route without a valid body among the candidates: add one"
    for number in range(NUM_MUTATED):
        route, bodies = routes[number % len(routes)], valid[number % len(routes)]
        parameters = {"job": JOB, "iteration": str(draw.randrange(200)), "source": draw.choice(SOURCES)}
        caller.ask(route, parameters, mutated(draw.choice(bodies), draw), verdict)
    assert not verdict.faults, "\n".join(verdict.faults[:20])
    assert verdict.num_asked == NUM_MUTATED
    # Most are refused, by far, and yet some get all the way.
    assert verdict.statuses[422] > NUM_MUTATED // 2
    assert sum(number for status, number in verdict.statuses.items() if status < 300) > NUM_MUTATED // 100
    assert_unharmed(attacked)


@pytest.mark.timeout(400)
def test_giant_bodies_are_answered_within_a_second_and_in_bounded_memory(
    attacked: ServedPlanner, routes: list[BodyRoute]
) -> None:
    verdict, caller = Verdict(), Caller(attacked)
    resident_bytes = memory_bytes(attacked.process.pid, "VmRSS")
    parameters = {"job": JOB, "iteration": "0", "source": SOURCES[0]}
    for number, body in enumerate(giant_bodies(BODY_LIMIT_BYTES)):
        caller.ask(routes[number % len(routes)], parameters, body, verdict)
    assert not verdict.faults, "\n".join(verdict.faults[:20])
    assert verdict.statuses[413] > 10
    assert_unharmed(attacked)
    assert memory_bytes(attacked.process.pid, "VmRSS") < resident_bytes + MAX_GROWTH_BYTES
    assert memory_bytes(attacked.process.pid, "VmHWM") < MAX_PEAK_BYTES


def test_a_body_announced_over_the_limit_is_refused_before_it_is_sent(
    attacked: ServedPlanner, routes: list[BodyRoute]
) -> None:
    for route in routes:
        for announced in (BODY_LIMIT_BYTES + 1, 10**18):
            with exchange(attacked, route, f"Content-Length: {announced}\r\n") as connection:
                assert_problem(connection, 413)


def test_a_body_in_chunks_over_the_limit_is_refused_as_soon_as_it_is(attacked: ServedPlanner) -> None:
    route = BodyRoute("POST", "/v1/plans", {}, frozenset({413}))
    chunk = b"%x\r\n%s\r\n" % (2**20, b" " * 2**20)
    with exchange(attacked, route, "Transfer-Encoding: chunked\r\n") as connection:
        num_sent = 0
        while not select.select([connection], [], [], 0)[0]:
            assert num_sent <= 2 * BODY_LIMIT_BYTES // 2**20
            connection.sendall(chunk)
            num_sent += 1
        assert_problem(connection, 413)


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: -1\r\n\r\n{}",
        "Content-Length: x\r\n\r\n{}",
        "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        "Content-Length: " + "9" * 5000 + "\r\n\r\n{}",
        "Transfer-Encoding: gzip\r\n\r\n{}",
        "Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n" + "f" * 30 + "\r\n{}\r\n0\r\n\r\n",
    ],
    ids=range(8),
)
def test_a_body_whose_end_cannot_be_told_ends_the_connection(attacked: ServedPlanner, framing: str) -> None:
    with socket.create_connection(address_of(attacked), timeout=5) as connection:
        began = time.perf_counter()
        connection.sendall(f"POST /v1/plans HTTP/1.1\r\nHost: localhost\r\n{framing}".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert time.perf_counter() - began < 5
    assert answer.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 413 ")), answer[:200]
    assert len(answer) < MAX_PROBLEM_BYTES
    assert_unharmed(attacked)


def test_bodies_that_trickle_in_are_given_up_in_time_and_hold_up_nobody(
    serve: Callable[..., ServedPlanner],
) -> None:
    server = serve("--workers", "1", env={"HYDRAULIS_BODY_TIMEOUT_S": "1"})
    with ExitStack() as stack, httpx.Client(base_url=server.url, timeout=30) as http:
        document = http.get("/openapi.json").json()
        route = next(route for route in routes_with_bodies(document) if route.path == "/v1/plans")
        connections = [
            stack.enter_context(exchange(server, route, framing))
            for framing in ["Content-Length: 1000\r\n", "Transfer-Encoding: chunked\r\n"] * 50
        ]
        began = time.perf_counter()
        for _ in range(5):
            for connection in connections:
                connection.sendall(b"1\r\n \r\n")
            assert http.post("/v1/plans", json={**CLUSTER, "lengths": [7, 8, 9]}).status_code == 200
        for connection in connections:
            assert "did not arrive" in assert_problem(connection, 422).detail
        assert time.perf_counter() - began < 5
    assert_unharmed(server)


def test_callers_who_leave_in_the_middle_of_a_body_leave_nothing_behind(
    attacked: ServedPlanner, routes: list[BodyRoute]
) -> None:
    num_open = len(list(Path(f"/proc/{attacked.process.pid}/fd").iterdir()))
    for number in range(200):
        with exchange(attacked, routes[number % len(routes)], "Content-Length: 1000000\r\n") as connection:
            connection.sendall(b'{"lengths": [1,' * (number % 7))
    assert_unharmed(attacked)
    assert wait_until(lambda: len(list(Path(f"/proc/{attacked.process.pid}/fd").iterdir())) <= num_open + 2)


def test_samples_that_no_profile_can_hold_are_refused_and_say_which_cost_is_why(attacked: ServedPlanner) -> None:
    measured = json.loads((GOLDEN / "measurement.json").read_text())
    for sample in measured["layouts"][0]["samples"]:
        sample.update(lengths=[1], time_ms=1e12)
    answer = httpx.post(f"{attacked.url}/v1/profiles", json={**measured, "name": "endless"}, timeout=30)
    problem = Problem.model_validate_json(answer.content)
    assert (problem.status, problem.code) == (422, "profile-unusable")
    assert "c_ms" in problem.detail or "a_ms_per_token2" in problem.detail or "b_ms_per_token" in problem.detail


def test_an_infinite_figure_of_a_fit_is_refused_and_profiles_stay_readable(attacked: ServedPlanner) -> None:
    profile = json.loads((GOLDEN / "profile.json").read_text())
    profile["layouts"][0]["fit"]["r2"] = 0.125
    content = json.dumps({**profile, "name": "infinite"}).replace("0.125", "-1e400")
    answer = httpx.post(f"{attacked.url}/v1/profiles", content=content, timeout=30)
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "layouts.0.fit.r2")
    assert httpx.get(f"{attacked.url}/v1/profiles", timeout=30).status_code == 200


def address_of(served: ServedPlanner) -> tuple[str, int]:
    host, port = served.url.removeprefix("http://").split(":")
    return host, int(port)


@contextmanager
def exchange(served: ServedPlanner, route: BodyRoute, framing: str) -> Iterator[socket.socket]:
    """Send the head of a request; what comes next is the caller's."""
    target = route.address({"job": JOB, "iteration": "0", "source": SOURCES[0]})
    with socket.create_connection(address_of(served), timeout=10) as connection:
        connection.sendall(f"{route.method} {target} HTTP/1.1\r\nHost: localhost\r\n{framing}\r\n".encode())
        yield connection


def assert_problem(connection: socket.socket, status: int) -> Problem:
    answer = http.client.HTTPResponse(connection)
    answer.begin()
    content = answer.read()
    assert answer.status == status, content[:500]
    assert answer.headers.get_content_type() == PROBLEM_MEDIA_TYPE
    return Problem.model_validate_json(content)


class Caller:
    """Sends one body after another over a connection that is kept."""

    def __init__(self, served: ServedPlanner) -> None:
        self._pid = served.process.pid
        self._host = served.url.removeprefix("http://")
        self._connection = http.client.HTTPConnection(self._host, timeout=60)

    def ask(self, route: BodyRoute, parameters: dict[str, str], body: HostileBody, verdict: Verdict) -> None:
        """Send a body; if its answer took too long once more, judged by the server's own processor time."""
        verdict.num_asked += 1
        faults = self._faults_of(route, parameters, body, verdict, is_starved=False)
        if any(TOO_LONG in said for said in faults):
            faults = self._faults_of(route, parameters, body, verdict, is_starved=True)
        verdict.faults.extend(faults)

    def _faults_of(
        self, route: BodyRoute, parameters: dict[str, str], body: HostileBody, verdict: Verdict, *, is_starved: bool
    ) -> list[str]:
        began, busy_before_s = time.perf_counter(), cpu_s(self._pid)
        # One that is refused by its size is answered before all of it was sent.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._connection.request(route.method, route.address(parameters), body.content, body.headers)
        answer = self._connection.getresponse()
        content = answer.read()
        seconds = time.perf_counter() - began
        if is_starved and seconds < STARVED_S:
            seconds = min(seconds, cpu_s(self._pid) - busy_before_s)
        if answer.will_close:
            self._connection.close()
        verdict.statuses[answer.status] = verdict.statuses.get(answer.status, 0) + 1
        media_type = answer.headers.get_content_type()
        return [
            f"{route.method} {route.path}, {body.what}: {said}; {content[:300]!r}"
            for said in _wrong_with(route, answer.status, media_type, content, seconds)
        ]


def _wrong_with(route: BodyRoute, status: int, media_type: str, content: bytes, seconds: float) -> Iterator[str]:
    if seconds > ANSWER_S + (PLANNING_S if status < 300 else 0.0):
        yield f"{status} {TOO_LONG}: {seconds:.2f} s"
    if status not in route.statuses:
        yield f"{status} is not documented"
    if status < 400:
        return
    if media_type != PROBLEM_MEDIA_TYPE:
        yield f"{status} came as {media_type}"
        return
    if len(content) > MAX_PROBLEM_BYTES:
        yield f"{status} has {len(content)} bytes"
    problem = Problem.model_validate_json(content)
    if problem.status != status or not problem.detail or problem.code not in {*FaultCode} - {FaultCode.INTERNAL}:
        yield f"{status} says {problem!r:.300}"


def assert_unharmed(served: ServedPlanner) -> None:
    """Check that the server answers, and wrote down little of what it was sent."""
    assert served.process.poll() is None
    with httpx.Client(base_url=served.url, timeout=30) as http:
        assert wait_until(lambda: http.get("/readyz").status_code == 200)
        plan = http.post("/v1/plans", json={**CLUSTER, "lengths": [7, 8, 9]})
        assert plan.status_code == 200, plan.text
        assert http.get("/v1/profiles").status_code == 200
        assert http.get("/v1/jobs").status_code == 200
        assert http.get("/v1/tokens").status_code == 200
    longest = max(served.log_path.read_bytes().splitlines(), key=len)
    assert len(longest) <= MAX_LOG_LINE_BYTES, longest[:500]
    assert "unexpected_error" not in served.log
    assert MARK * 20 not in served.log


def cpu_s(pid: int) -> float:
    """Return the processor time that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int, what: str) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(rf"^{what}:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
