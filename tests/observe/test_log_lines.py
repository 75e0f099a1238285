"""Lines of the log say what they are about, and hold no secrets."""

import json
import subprocess
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from planner_client.contract import TokenRequest
from planner_service.access import TokenRegister, new_secret
from planner_service.store import SqlStore

if TYPE_CHECKING:
    from served_planner import ServedPlanner

Serve = Callable[..., "ServedPlanner"]

SPEC: dict[str, Any] = {
    "name": "run-7",
    "profile": "llama-7b-a100-40g",
    "num_gpus": 8,
    "sources": ["a"],
    "options": {"deadline_ms": 200},
}


def lines_of(server: "ServedPlanner") -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = [json.loads(line) for line in server.log.splitlines()]
    assert all({"event", "level", "logger", "timestamp"} <= line.keys() for line in lines)
    return lines


def test_lines_about_an_iteration_name_it_and_those_about_a_request_carry_its_id(serve: Serve) -> None:
    server = serve("--workers", "1")
    of_iteration = "/v1/jobs/run-7/iterations/3"
    with httpx.Client(base_url=server.url, timeout=30) as http:
        http.post("/v1/jobs", json=SPEC, headers={"x-request-id": "registers"})
        sent = {"sources": {"a": {"lengths": [100, 300]}}}
        http.put(f"{of_iteration}/histograms", json=sent, headers={"x-request-id": "reports"})
        assert http.get(f"{of_iteration}/plan?wait_ms=20000", headers={"x-request-id": "waits"}).status_code == 200
        assert http.get("/v1/jobs/none", headers={"x-request-id": "errs"}).status_code == 404
        assert http.get("/healthz", headers={"x-request-id": "looks"}).status_code == 200
    assert server.stop() == 0
    lines = lines_of(server)
    about = {line["request_id"]: line for line in lines if line["event"] == "request"}
    assert {name: (about[name].get("job"), about[name].get("iteration")) for name in about} == {
        "registers": (None, None),
        "reports": ("run-7", "3"),
        "waits": ("run-7", "3"),
        "errs": ("none", None),
        "looks": (None, None),
    }
    assert (about["errs"]["status"], about["errs"]["code"]) == (404, "unknown-job")
    assert not any("code" in about[name] for name in about if name != "errs")
    solved = [line for line in lines if line["event"] in ("planned", "iteration_planned")]
    assert [(line["job"], line["iteration"]) for line in solved] == [("run-7", 3)] * 2
    assert not any("trace_id" in line for line in lines), "nobody asked for traces"


def test_a_solver_that_breaks_over_an_iteration_is_logged_with_the_iterations_name(serve: Serve) -> None:
    server = serve("--workers", "1", solve_name="misbehaving_planner:dying")
    with httpx.Client(base_url=server.url, timeout=90) as http:
        http.post("/v1/jobs", json=SPEC)
        http.put("/v1/jobs/run-7/iterations/3/histograms", json={"sources": {"a": {"lengths": [100, 300]}}})
        assert http.get("/v1/jobs/run-7/iterations/3/plan?wait_ms=60000").status_code == 500
        metrics = http.get("/metrics").text
    assert server.stop() == 0
    lines = lines_of(server)
    about = [line for line in lines if line["event"] in ("solver_died", "given_back", "iteration_failed")]
    assert {(line["job"], line["iteration"]) for line in about} == {("run-7", 3)}
    assert {line["event"] for line in about} == {"solver_died", "given_back", "iteration_failed"}
    assert 'hydraulis_iteration_failures_total{code="internal"} 1.0' in metrics
    assert "hydraulis_iterations_given_back_total 4.0" in metrics


def test_no_secret_is_in_a_log_however_it_comes_in(serve: Serve, postgres_url: str) -> None:
    store = SqlStore(postgres_url)
    admin = TokenRegister(store.access).give(TokenRequest.model_validate({"name": "ops", "scope": "admin"})).token
    store.close()
    wrong, password = new_secret(), "correct-horse-battery"
    assert "://planner@" in postgres_url
    with_password = postgres_url.replace("://planner@", f"://planner:{password}@")
    server = serve("--workers", "1", "--auth", "tokens", database_url=with_password)
    with httpx.Client(base_url=server.url, timeout=30) as http:
        allowed = {"authorization": f"Bearer {admin}"}
        assert http.get("/v1/jobs", headers=allowed).status_code == 200
        assert http.get("/v1/jobs", headers={"authorization": f"Bearer {wrong}"}).status_code == 401
        assert http.get("/v1/jobs", headers={"authorization": f"Basic {password}"}).status_code == 401
        http.get(f"/v1/jobs/{wrong}/iterations/1?token={wrong}", headers={**allowed, "x-request-id": wrong})
        http.put(
            f"/v1/jobs/{wrong}/iterations/1/histograms", headers=allowed, json={"sources": {"a": {"lengths": [1]}}}
        )
        http.post("/v1/plans", headers=allowed, json={"profile": wrong, "num_gpus": 8, "lengths": [1]})
        metrics = http.get("/metrics", headers=allowed).text
    assert server.stop() == 0
    assert [line for line in lines_of(server) if line.get("job") == "hyd_***"], "the job is named, and blotted out"
    for text in (server.log, metrics):
        for secret in (admin, wrong, password, "Bearer", "authorization", "Authorization"):
            assert secret not in text


def test_a_database_that_cannot_be_reached_is_named_without_its_password() -> None:
    from served_planner import serve_command  # noqa: PLC0415 - found by conftest's path

    url = "postgresql://planner:correct-horse-battery@127.0.0.1:9/kept"
    done = subprocess.run(
        serve_command("--port", "0", "--database", url), capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 2
    assert "planner:***@127.0.0.1:9/kept" in done.stderr
    assert "correct-horse-battery" not in done.stderr + done.stdout
