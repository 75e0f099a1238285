"""Both clients against servers that misbehave, over real sockets."""

import asyncio
import json
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from misbehaving_server import Reaction, close, hang, misbehaving, raw, reply, reset, trickle

from planner_client import (
    AsyncPlannerClient,
    BadAnswer,
    DeadlineExceeded,
    HydraulisError,
    PlannerClient,
    PlannerUnavailable,
    RequestRefused,
)
from planner_client.contract import Plan, PlanRequest, Problem
from planner_client.flow import RetryPolicy

REQUEST = PlanRequest.model_validate({"profile": "p", "num_gpus": 1, "lengths": [5], "options": {"deadline_ms": 100}})
QUICK = RetryPolicy(max_attempts=3, first_pause_s=0.01, max_pause_s=0.02)

REPLICA: dict[str, Any] = {
    "tp": 1,
    "cp": 1,
    "pp": 1,
    "device": "d",
    "ranks": [0],
    "max_tokens": 10,
    "makespan_ms": 1.0,
    "simulated_ms": 1.0,
    "micro_batches": [
        {
            "sequences": [{"source": "local", "length": 5, "count": 1}],
            "num_tokens": 5,
            "num_padding_tokens": 0,
            "time_ms": 1.0,
        }
    ],
}


def plan_bytes() -> bytes:
    content = {
        "profile": "p",
        "iteration": None,
        "seed": 0,
        "num_sequences": 1,
        "num_tokens": 5,
        "dropped": [],
        "makespan_ms": 1.0,
        "simulated_ms": 1.0,
        "sync_ms": 0.0,
        "lower_bound_ms": None,
        "gap": None,
        "bound_scope": None,
        "solved_by": "heuristic",
        "status": "feasible",
        "planning_ms": 0.0,
        "num_gpus": 1,
        "alignment": 1,
        "strategy": "(1,1)x1",
    }
    from planner_client.contract import Replica  # noqa: PLC0415 - seal needs the model, the rest of the file JSON

    return Plan.seal(**content, replicas=[Replica.model_validate(REPLICA)]).model_dump_json().encode()


PLAN = plan_bytes()
PROBLEM = json.dumps(
    {"type": "urn:x", "title": "x", "status": 422, "detail": "too long", "code": "sequence-too-long", "length": 9}
).encode()
PROBLEM_TYPE = "application/problem+json"
REFUSAL = reply(422, PROBLEM, media_type=PROBLEM_TYPE)
BUSY = reply(503, PROBLEM, media_type=PROBLEM_TYPE)

Call = Callable[..., Any]


def ask_sync(url: str, method: str, *args: Any, policy: RetryPolicy = QUICK, **options: Any) -> Any:
    with PlannerClient(url, policy=policy, timeout_s=1.0) as client:
        return getattr(client, method)(*args, **options)


def ask_async(url: str, method: str, *args: Any, policy: RetryPolicy = QUICK, **options: Any) -> Any:
    async def run() -> Any:
        async with AsyncPlannerClient(url, policy=policy, timeout_s=1.0) as client:
            call: Callable[..., Awaitable[Any]] = getattr(client, method)
            return await call(*args, **options)

    return asyncio.run(run())


@pytest.fixture(params=[ask_sync, ask_async], ids=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Call:
    call: Call = request.param
    return call


def test_a_plan_comes_back(ask: Call) -> None:
    with misbehaving(reply(200, PLAN)) as server:
        assert ask(server.url, "plan", REQUEST).num_tokens == 5
        assert PlanRequest.model_validate_json(server.bodies[0]) == REQUEST


@pytest.mark.parametrize(
    "first", [close, reset, raw(b"nonsense\r\n\r\n"), BUSY, reply(502, b"<html>"), reply(429, PROBLEM), reply(504, b"")]
)
def test_a_planner_that_recovers_is_asked_again(ask: Call, first: Reaction) -> None:
    with misbehaving(first, first, reply(200, PLAN)) as server:
        assert ask(server.url, "plan", REQUEST).num_tokens == 5
        assert server.num_requests == 3
        assert len(set(server.bodies)) == 1


@pytest.mark.parametrize("always", [close, reset, BUSY, raw(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")])
def test_a_planner_that_does_not_recover_is_unavailable(ask: Call, always: Reaction) -> None:
    with misbehaving(always) as server:
        with pytest.raises(PlannerUnavailable, match="failed 3 times, last:"):
            ask(server.url, "plan", REQUEST)
        assert server.num_requests == 3


def test_a_planner_that_is_not_there_is_unavailable(ask: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(PlannerUnavailable, match="Connect"):
        ask(f"http://127.0.0.1:{port}", "plan", REQUEST)


ENDLESS_HEAD = b"HTTP/1.1 200 OK\r\n" + b"X-Filler: slow\r\n" * 100
ENDLESS_BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n" + b" " * 1000


@pytest.mark.parametrize(
    "reaction",
    [
        pytest.param(hang, id="silence"),
        pytest.param(trickle(ENDLESS_HEAD), id="a head byte by byte"),
        pytest.param(
            lambda connection: (connection.sendall(ENDLESS_BODY[:50]), trickle(ENDLESS_BODY[50:])(connection)),
            id="a body byte by byte",
        ),
    ],
)
def test_a_planner_that_dawdles_does_not_hold_its_caller(ask: Call, reaction: Reaction) -> None:
    with misbehaving(reaction) as server:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.6 s"):
            ask(server.url, "plan", REQUEST, timeout_s=0.6)
        assert 0.5 < time.monotonic() - began < 1.5


def test_a_planner_that_takes_nothing_does_not_hold_its_caller(ask: Call) -> None:
    large = PlanRequest.model_validate({"profile": "p", "num_gpus": 1, "lengths": [2**31 - 1] * 900_000})
    with socket.create_server(("127.0.0.1", 0), backlog=8) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded):
            ask(f"http://127.0.0.1:{listener.getsockname()[1]}", "plan", large, timeout_s=0.6)
        assert time.monotonic() - began < 3.0


def test_all_tries_together_keep_the_time_given(ask: Call) -> None:
    patient = RetryPolicy(max_attempts=None, first_pause_s=0.05, max_pause_s=0.1)
    with misbehaving(BUSY) as server:
        began = time.monotonic()
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0\.7 s \(\d+ tries, last: "):
            ask(server.url, "plan", REQUEST, timeout_s=0.7, policy=patient)
        assert time.monotonic() - began < 2.0
        assert server.num_requests > 3


def test_retry_after_is_waited_for(ask: Call) -> None:
    with misbehaving(reply(429, PROBLEM, headers="Retry-After: 1\r\n"), reply(200, PLAN)) as server:
        began = time.monotonic()
        ask(server.url, "plan", REQUEST)
        assert time.monotonic() - began >= 1.0


def test_a_refusal_carries_its_problem_and_is_not_repeated(ask: Call) -> None:
    with misbehaving(REFUSAL) as server:
        with pytest.raises(RequestRefused, match="too long") as refused:
            ask(server.url, "plan", REQUEST)
        assert refused.value.problem.numbers == {"length": 9}
        assert server.num_requests == 1


def with_changed_byte(old: bytes, new: bytes) -> bytes:
    assert PLAN.count(old) == 1
    return PLAN.replace(old, new)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "JSON"),
        (b"<html>hello</html>", "JSON"),
        (b"null", "not a Plan"),
        (b"{}", "Field required"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "recursion"),
        (with_changed_byte(b'"ranks":[0]', b'"ranks":[1]'), "digest"),
        (with_changed_byte(b'"sequences":[{"source":"local","length":5,"count":1}]', b'"sequences":[]'), "digest"),
        (PLAN[:-1], "JSON"),
    ],
)
def test_nonsense_is_a_bad_answer(ask: Call, body: bytes, said: str) -> None:
    with misbehaving(reply(200, body)) as server:
        with pytest.raises(BadAnswer, match=said):
            ask(server.url, "plan", REQUEST)
        assert server.num_requests == 1


def test_the_plan_of_another_request_is_a_bad_answer(ask: Call) -> None:
    with misbehaving(reply(200, PLAN)) as server, pytest.raises(BadAnswer, match="gave 0 sequences of 5 tokens"):
        ask(server.url, "plan", REQUEST.model_copy(update={"lengths": [6]}))


def test_a_plan_with_fields_of_a_newer_planner_is_read(ask: Call) -> None:
    with misbehaving(reply(200, with_changed_byte(b'"seed":0', b'"seed":0,"of_tomorrow":[1]'))) as server:
        assert ask(server.url, "plan", REQUEST).seed == 0


@pytest.mark.parametrize(
    "answer", [reply(404, b"<html>", media_type="text/html"), reply(302, b"", headers="Location: /elsewhere\r\n")]
)
def test_a_server_that_is_no_planner_is_a_bad_answer(ask: Call, answer: Reaction) -> None:
    with misbehaving(answer) as server, pytest.raises(BadAnswer, match="is a planner at this address"):
        ask(server.url, "profiles")


@pytest.mark.parametrize("bomb_bytes", [2_000_000])
def test_an_answer_without_end_is_cut(ask: Call, bomb_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner_client.client.MAX_ANSWER_BYTES", 1_000_000)
    with misbehaving(reply(200, b" " * bomb_bytes)) as server, pytest.raises(BadAnswer, match="over the limit"):
        ask(server.url, "plan", REQUEST)


def test_waiting_for_readiness_ends_when_the_planner_is_ready(ask: Call) -> None:
    with misbehaving(close, BUSY, BUSY, reply(200, b"{}")) as server:
        ask(server.url, "wait_ready", 10.0)
        assert server.num_requests == 4


def test_waiting_for_readiness_ends_in_time(ask: Call) -> None:
    with misbehaving(BUSY) as server:
        began = time.monotonic()
        with pytest.raises(PlannerUnavailable):
            ask(server.url, "wait_ready", 0.5)
        assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("url", ["", "planner:8000", "ftp://planner", "http://", "http://[bad", "http://planner:65536"])
@pytest.mark.parametrize("client", [PlannerClient, AsyncPlannerClient])
def test_an_address_that_is_none_is_refused_at_once(client: Callable[[str], object], url: str) -> None:
    with pytest.raises(ValueError, match="planner address"):
        client(url)


def test_names_are_quoted_in_paths() -> None:
    seen: list[bytes] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path)
        return httpx.Response(404, content=PROBLEM)

    with PlannerClient("http://planner", transport=httpx.MockTransport(handle)) as client:
        with pytest.raises(RequestRefused):
            client.profile("../a b?c#d")
        with pytest.raises(RequestRefused):
            client.plan_with_digest("sha256:00ff")
        for dots in (".", "..", "..."):
            with pytest.raises(RequestRefused):
                client.job(dots)
    assert seen[:2] == [b"/v1/profiles/..%2Fa%20b%3Fc%23d", b"/v1/plans/sha256:00ff"]
    assert seen[2:] == [b"/v1/jobs/%2E", b"/v1/jobs/%2E%2E", b"/v1/jobs/..."]


def test_threads_share_a_client_and_each_keeps_its_own_deadline() -> None:
    def react(connection: socket.socket) -> None:
        time.sleep(0.5)
        reply(200, PLAN)(connection)

    with misbehaving(react) as server, PlannerClient(server.url) as client:
        outcomes: dict[float, str] = {}

        def ask_with(timeout_s: float) -> None:
            try:
                client.plan(REQUEST, timeout_s=timeout_s)
                outcomes[timeout_s] = "plan"
            except DeadlineExceeded:
                outcomes[timeout_s] = "late"

        threads = [threading.Thread(target=ask_with, args=(timeout_s,)) for timeout_s in (0.2, 0.25, 5.0, 6.0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
    assert outcomes == {0.2: "late", 0.25: "late", 5.0: "plan", 6.0: "plan"}


@pytest.mark.parametrize(
    "error",
    [
        RequestRefused(Problem.model_validate_json(PROBLEM)),
        PlannerUnavailable("down", Problem.model_validate_json(PROBLEM), 3.0),
        DeadlineExceeded("late"),
        BadAnswer("nonsense"),
    ],
)
def test_errors_travel_between_processes(error: HydraulisError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - what this process has just written
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_importing_the_client_loads_nothing_heavy() -> None:
    code = (
        "import sys, planner_client, planner_client.client, planner_client.steady; "
        "heavy = {'torch', 'ortools', 'fastapi', 'sqlalchemy', 'uvicorn', 'typer', 'planner_service', 'worker_agent'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_importing_the_contract_loads_no_http() -> None:
    code = "import sys, planner_client.contract; print('httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "False"


def test_a_name_that_the_package_lacks_is_an_attribute_error() -> None:
    import planner_client  # noqa: PLC0415 - the package itself is what is asked

    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        planner_client.nothing_of_the_kind  # noqa: B018 - asking is the test
