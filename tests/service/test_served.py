"""The whole service in a second process, with the real planner."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_planner import ServedPlanner, is_running, serve_command, wait_until

from planner_client import PlannerClient, RequestRefused
from planner_client.contract import Plan, PlanRequest, ProfileMeasurement

Serve = Callable[..., ServedPlanner]

LONG_TAIL = [128 * (1 + (7919 * index) % 97) for index in range(300)] + [30_000, 41_000]
HARD_REQUEST: dict[str, Any] = {
    "profile": "llama-32b-a800-80g",
    "num_gpus": 64,
    "optimizer_layout": {"dp": 4, "tp": 16, "pp": 1},
    "strategies": [[{"tp": 16, "pp": 1, "num_replicas": 1}, {"tp": 8, "pp": 1, "num_replicas": 6}]],
    "lengths": LONG_TAIL,
    "options": {"target_gap": 0.0, "deadline_ms": 2000},
}
EASY_REQUEST: dict[str, Any] = {
    "profile": "llama-7b-a800-80g",
    "num_gpus": 8,
    "strategies": [[{"tp": 8, "pp": 1, "num_replicas": 1}]],
    "lengths": [100, 200, 300],
    "options": {"target_gap": 1.0},
}


def children_of(pid: int) -> list[int]:
    """Processes that any thread of a process has started."""
    return [
        int(child)
        for children in Path(f"/proc/{pid}/task").glob("*/children")
        for child in children.read_text().split()
    ]


def test_a_real_plan_places_every_sequence_under_its_cap(planner: ServedPlanner) -> None:
    request = PlanRequest.model_validate({**HARD_REQUEST, "iteration": 3})
    with PlannerClient(planner.url) as client:
        plan = client.plan(request)
    assert plan.iteration == 3
    assert plan.strategy == "(16,1)x1,(8,1)x6"
    assert (plan.num_sequences, plan.num_tokens, plan.dropped) == (302, sum(LONG_TAIL), [])
    for replica in plan.replicas:
        for micro_batch in replica.micro_batches:
            assert micro_batch.num_tokens + micro_batch.num_padding_tokens <= replica.max_tokens
    assert plan.lower_bound_ms is not None
    assert plan.lower_bound_ms <= plan.makespan_ms


def test_a_length_over_every_limit_is_refused_with_its_numbers(planner: ServedPlanner) -> None:
    with PlannerClient(planner.url) as client, pytest.raises(RequestRefused) as refused:
        client.plan(PlanRequest.model_validate({**HARD_REQUEST, "lengths": [10, 50_000]}))
    problem = refused.value.problem
    assert (problem.status, problem.code) == (422, "sequence-too-long")
    assert 50_000 in problem.numbers.values()
    assert 43_520 in problem.numbers.values()


def test_the_same_request_gets_the_same_bytes_after_a_restart(serve: Serve, tmp_path: Path) -> None:
    first_server = serve("--workers", "1", database=tmp_path / "shared.sqlite3")
    with httpx.Client(timeout=30) as http:
        first = http.post(f"{first_server.url}/v1/plans", json=HARD_REQUEST)
        assert first.status_code == 200, first.text
        assert first_server.stop() == 0
        second_server = serve("--workers", "1", database=tmp_path / "shared.sqlite3")
        again = http.post(f"{second_server.url}/v1/plans", json=HARD_REQUEST)
        assert again.content == first.content
        assert again.headers["x-plan-cache"] == "hit"
        assert http.get(f"{second_server.url}/v1/plans/{first.json()['digest']}").content == first.content


def test_sigterm_lets_a_request_finish_and_leaves_nothing_running(serve: Serve) -> None:
    server = serve("--workers", "1", within=())
    solvers = children_of(server.process.pid)
    assert solvers

    batch = [200 + index for index in range(2000)]
    request = {**HARD_REQUEST, "lengths": batch, "options": {"target_gap": 0.0, "deadline_ms": 2000}}
    with ThreadPoolExecutor(1) as threads, httpx.Client(timeout=30) as http:
        answering = threads.submit(http.post, f"{server.url}/v1/plans", json=request)
        time.sleep(0.25)
        assert not answering.done()
        assert server.stop() == 0
        answer = answering.result()
    assert answer.status_code == 200
    assert Plan.model_validate_json(answer.content).num_sequences == len(batch)
    assert wait_until(lambda: not any(is_running(pid) for pid in solvers))


def test_ctrl_c_stops_the_server_and_its_solvers(serve: Serve) -> None:
    server = serve("--workers", "1", within=())
    solvers = children_of(server.process.pid)
    assert server.stop(signal.SIGINT) == 130
    assert wait_until(lambda: not any(is_running(pid) for pid in solvers))


def test_a_killed_server_leaves_no_solver_behind_not_even_a_stuck_one(serve: Serve) -> None:
    server = serve("--workers", "1", solve_name="misbehaving_planner:stuck", within=())
    solvers = children_of(server.process.pid)
    assert solvers
    body = json.dumps({**EASY_REQUEST, "options": {"deadline_ms": 60_000}}).encode()
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as caller:
        caller.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        time.sleep(0.5)
        server.process.kill()
        assert wait_until(lambda: not any(is_running(pid) for pid in solvers))


def test_sigterm_while_the_planner_is_still_warming_up_ends_it_too(tmp_path: Path) -> None:
    process = subprocess.Popen(
        serve_command("--port", "0", "--database", str(tmp_path / "p.sqlite3")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert wait_until(lambda: bool(children_of(process.pid)), 30)
        children = children_of(process.pid)
        process.terminate()
        assert process.wait(30) == 0
        assert wait_until(lambda: not any(is_running(pid) for pid in children))
    finally:
        process.kill()
        process.wait(10)


def test_planning_does_not_block_liveness(planner: ServedPlanner) -> None:
    slowest_s = 0.0
    requests = [{**HARD_REQUEST, "iteration": 1000 + number} for number in range(2)]
    large = {**HARD_REQUEST, "iteration": 1002, "lengths": [128 + index % 1000 for index in range(400_000)]}
    large["options"] = {"target_gap": 0.5, "deadline_ms": 20_000}
    with ThreadPoolExecutor(3) as threads, httpx.Client(timeout=60) as http:
        answering = [threads.submit(http.post, f"{planner.url}/v1/plans", json=body) for body in (*requests, large)]
        with httpx.Client(timeout=30) as other:
            while not all(answer.done() for answer in answering):
                began = time.monotonic()
                assert other.get(f"{planner.url}/healthz").status_code == 200
                slowest_s = max(slowest_s, time.monotonic() - began)
                time.sleep(0.02)
        statuses = [answer.result().status_code for answer in answering]
    assert statuses == [200, 200, 200]
    assert slowest_s < 1.0


def test_the_log_is_json_with_id_status_and_time(planner: ServedPlanner, http: httpx.Client) -> None:
    http.get("/v1/profiles", headers={"x-request-id": "look-for-me"})

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in planner.log.splitlines()]

    assert wait_until(lambda: any(line.get("request_id") == "look-for-me" for line in lines()))
    line = next(line for line in lines() if line.get("request_id") == "look-for-me")
    assert (line["status"], line["path"], line["event"]) == (200, "/v1/profiles", "request")
    assert line["ms"] > 0


def test_a_measured_profile_is_fitted_and_planned_with(planner: ServedPlanner) -> None:
    samples = [
        {"lengths": lengths, "time_ms": 3 + sum(2e-6 * s * s + 0.004 * s for s in lengths)}
        for lengths in ([64], [512], [1024, 1024], [4096], [2048, 17, 900], [300] * 10)
    ]
    measurement = ProfileMeasurement.model_validate(
        {
            "name": "this-machine",
            "source": "made up",
            "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "cpu", "memory_bytes": 10**9, "gpus_per_node": 2},
            "layouts": [{"tp": 1, "pp": 1, "max_tokens": 4096, "samples": samples}],
        }
    )
    with PlannerClient(planner.url) as client:
        profile = client.register_profile(measurement)
        assert client.register_profile(measurement) == profile
        assert client.profile("this-machine") == profile
        assert "this-machine" in [entry.name for entry in client.profiles()]
        assert profile.layouts[0].c_ms == pytest.approx(3, rel=1e-3)
        plan = client.plan(
            PlanRequest.model_validate(
                {
                    "profile": "this-machine",
                    "num_gpus": 2,
                    "strategies": [[{"tp": 1, "pp": 1, "num_replicas": 2}]],
                    "lengths": {"rank-0": [4000, 100, 90], "rank-1": [700, 2500]},
                }
            )
        )
        assert client.plan_with_digest(plan.digest) == plan
    assert sorted(rank for replica in plan.replicas for rank in replica.ranks) == [0, 1]


def refused_start(*options: str, env: dict[str, str] | None = None) -> tuple[int, str]:
    done = subprocess.run(
        serve_command(*options),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_taken_port_is_refused_at_once(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, said = refused_start("--port", str(port), "--database", str(tmp_path / "p.sqlite3"))
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose another" in said
    assert "Traceback" not in said


def test_an_address_that_is_none_is_refused(tmp_path: Path) -> None:
    code, said = refused_start("--host", "no.such.host.invalid", "--database", str(tmp_path / "p.sqlite3"))
    assert code == 2
    assert "cannot listen on no.such.host.invalid:8000" in said


def test_a_corrupt_database_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "corrupt.sqlite3"
    path.write_bytes(b"\x01\x02 no database " * 500)
    code, said = refused_start("--port", "0", "--database", str(path))
    assert code == 2
    assert "corrupt.sqlite3 cannot be used: file is not a database" in said
    assert "Traceback" not in said


def test_a_planner_that_cannot_start_ends_the_server_with_the_reason(tmp_path: Path) -> None:
    command = serve_command("--port", "0", "--database", str(tmp_path / "p.sqlite3"), solve_name="no_such_module:plan")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "hydraulis serve: the planner cannot start: solver process" in done.stderr
    assert "No module named 'no_such_module'" in done.stderr


@pytest.mark.parametrize(
    ("name", "value"), [("HYDRAULIS_WORKERS", "many"), ("HYDRAULIS_GRACE_MS", "-1"), ("HYDRAULIS_MAX_BODY_BYTES", "1")]
)
def test_a_setting_out_of_range_is_refused_by_name(tmp_path: Path, name: str, value: str) -> None:
    code, said = refused_start("--port", "0", "--database", str(tmp_path / "p.sqlite3"), env={name: value})
    assert code == 2
    assert name.removeprefix("HYDRAULIS_").lower() in said
    assert value in said
    assert "Traceback" not in said


def test_settings_come_from_the_environment(serve: Serve) -> None:
    server = serve(env={"HYDRAULIS_WORKERS": "1", "HYDRAULIS_MAX_BODY_BYTES": "2000"})
    with httpx.Client(base_url=server.url) as http:
        assert http.get("/readyz").json()["num_solvers"] == 1
        answer = http.post("/v1/plans", content=b" " * 2001)
        assert answer.json()["limit_bytes"] == 2000


def test_a_half_sent_request_does_not_hold_the_server(planner: ServedPlanner, http: httpx.Client) -> None:
    host, port = planner.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as half:
        half.sendall(b"POST /v1/plans HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert http.post("/v1/plans", json=EASY_REQUEST).status_code == 200
    assert http.get("/healthz").status_code == 200
