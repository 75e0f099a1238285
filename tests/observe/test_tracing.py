"""Traces of a server in a process of its own, sent to a real receiver by OTLP over HTTP."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from otlp_receiver import OtlpReceiver

from planner_service.access import new_secret
from planner_service.tracing import TracingUnusable, begin, note, span, trace_ids, tracing_from

if TYPE_CHECKING:
    from served_planner import ServedPlanner

Serve = Callable[..., "ServedPlanner"]

PROFILE = "llama-7b-a100-40g"
REQUEST: dict[str, Any] = {"profile": PROFILE, "num_gpus": 8, "lengths": [100, 200], "options": {"deadline_ms": 200}}
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
CALLERS_SPAN = "b7ad6b7169203331"


def asked_to(receiver: OtlpReceiver, **variables: str) -> dict[str, str]:
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "200", **variables}


def log_lines(server: "ServedPlanner") -> list[dict[str, Any]]:
    return [json.loads(line) for line in server.log.splitlines()]


def test_a_callers_trace_goes_on_through_plan_solver_and_store(serve: Serve, receiver: OtlpReceiver) -> None:
    server = serve("--workers", "1", env=asked_to(receiver))
    with httpx.Client(base_url=server.url, timeout=30) as http:
        headers = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-01", "x-request-id": "mine-1"}
        plan = http.post("/v1/plans", json=REQUEST, headers=headers).json()
        assert http.post("/v1/plans", json=REQUEST, headers=headers).status_code == 200
        http.get("/healthz")
        http.get("/readyz")
        http.get("/metrics")
    assert server.stop() == 0

    assert {one.trace_id for one in receiver.spans} == {TRACE_ID}, "nothing else is traced, health checks least of all"
    first, again = sorted(receiver.named("POST /v1/plans"), key=lambda one: one.start_ns)
    assert first.parent_id == again.parent_id == CALLERS_SPAN
    assert first.facts["http.response.status_code"] == 200
    assert first.facts["hydraulis.request_id"] == "mine-1"
    planned, kept = receiver.below(first)
    assert (planned.name, kept.name) == ("plan", "store write")
    assert (planned.facts["hydraulis.digest"], planned.facts["hydraulis.was_known"]) == (plan["digest"], False)
    assert [one.name for one in receiver.below(planned)] == ["store read", "wait for a solver", "solve"]
    (solve,) = receiver.named("solve")
    assert solve.facts["hydraulis.digest"] == plan["digest"]
    assert (solve.end_ns - solve.start_ns) / 1e6 >= plan["planning_ms"]
    (known,) = receiver.below(again)
    assert known.facts["hydraulis.was_known"] is True
    assert [one.name for one in receiver.below(known)] == ["store read"]

    told = receiver.resources[0]
    assert told["service.name"] == "hydraulis-planner"
    assert {"service.version", "service.instance.id"} <= told.keys()
    about = [line for line in log_lines(server) if line.get("request_id") == "mine-1"]
    assert {line["event"] for line in about} == {"planned", "request"}
    assert {line["trace_id"] for line in about} == {TRACE_ID}
    assert {line["span_id"] for line in about if line["event"] == "request"} == {first.span_id, again.span_id}


def test_an_iteration_is_a_trace_of_its_own_that_says_which_job(serve: Serve, receiver: OtlpReceiver) -> None:
    server = serve("--workers", "1", env=asked_to(receiver, OTEL_SERVICE_NAME="ours"))
    with httpx.Client(base_url=server.url, timeout=30) as http:
        spec = {"name": "run-7", "profile": PROFILE, "num_gpus": 8, "sources": ["a"], "options": {"deadline_ms": 200}}
        assert http.post("/v1/jobs", json=spec).status_code == 201
        http.put("/v1/jobs/run-7/iterations/3/histograms", json={"sources": {"a": {"lengths": [100, 300]}}})
        assert http.get("/v1/jobs/run-7/iterations/3/plan?wait_ms=20000").status_code == 200
    assert server.stop() == 0

    (iteration,) = receiver.named("iteration")
    assert iteration.parent_id == ""
    assert (iteration.facts["hydraulis.job"], iteration.facts["hydraulis.iteration"]) == ("run-7", 3)
    below = [one.name for one in receiver.below(iteration)]
    assert below[0] == "plan"
    assert below[-1] == "store write"
    (report,) = receiver.named("PUT /v1/jobs/{job}/iterations/{iteration}/histograms")
    assert (report.facts["hydraulis.job"], report.facts["hydraulis.iteration"]) == ("run-7", "3")
    assert report.trace_id != iteration.trace_id
    assert "store write" in [one.name for one in receiver.below(report)]
    assert receiver.resources[0]["service.name"] == "ours"
    lines = [line for line in log_lines(server) if line["event"] in ("planned", "iteration_planned")]
    assert [(line["job"], line["iteration"], line["trace_id"]) for line in lines] == [
        ("run-7", 3, iteration.trace_id)
    ] * 2
    assert "iteration" not in {one.name for one in receiver.spans if one.trace_id != iteration.trace_id}
    assert {one.name for one in receiver.spans if not one.parent_id} <= {
        "iteration",
        "POST /v1/jobs",
        "PUT /v1/jobs/{job}/iterations/{iteration}/histograms",
        "GET /v1/jobs/{job}/iterations/{iteration}/plan",
    }, "looking for work is not traced"


def test_a_caller_whose_trace_is_not_sampled_leaves_none(serve: Serve, receiver: OtlpReceiver) -> None:
    server = serve("--workers", "1", env=asked_to(receiver))
    with httpx.Client(base_url=server.url, timeout=30) as http:
        headers = {"traceparent": f"00-{TRACE_ID}-{CALLERS_SPAN}-00"}
        assert http.post("/v1/plans", json=REQUEST, headers=headers).status_code == 200
    assert server.stop() == 0
    assert receiver.spans == []
    assert {line["trace_id"] for line in log_lines(server) if line["event"] == "request"} == {TRACE_ID}


def test_what_fails_says_which_kind_of_error_and_nothing_a_caller_wrote(serve: Serve, receiver: OtlpReceiver) -> None:
    secret = new_secret()
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=for%20the%20receiver"}
    server = serve("--workers", "1", env=asked_to(receiver, **headers), solve_name="misbehaving_planner:broken")
    with httpx.Client(base_url=server.url, timeout=30) as http:
        http.get(
            f"/v1/jobs/{secret}?token={secret}", headers={"authorization": f"Bearer {secret}", "x-request-id": secret}
        )
        assert http.post("/v1/plans", json=REQUEST).status_code == 500
    assert server.stop() == 0

    (asked,) = receiver.named("GET /v1/jobs/{job}")
    assert (asked.facts["hydraulis.job"], asked.facts["hydraulis.code"]) == ("hyd_***", "unknown-job")
    assert not asked.is_error, "a caller's mistake is none of the service's"
    (failed,) = receiver.named("POST /v1/plans")
    assert (failed.facts["http.response.status_code"], failed.is_error) == (500, True)
    (solve,) = receiver.named("solve")
    assert (solve.facts["error.type"], solve.is_error) == ("PlannerBroken", True)
    assert sum(one.num_events for one in receiver.spans) == 0
    assert b"Traceback" not in b"".join(receiver.bodies)
    assert secret.encode() not in b"".join(receiver.bodies)
    assert {sent["x-key"] for sent in receiver.headers} == {"for the receiver"}
    assert "for the receiver" not in server.log
    assert "for%20the%20receiver" not in server.log
    assert secret not in server.log


def test_a_receiver_that_is_away_costs_no_answer_and_no_long_stop(serve: Serve, receiver: OtlpReceiver) -> None:
    env = asked_to(receiver, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9")
    server = serve("--workers", "1", env=env)
    with httpx.Client(base_url=server.url, timeout=30) as http:
        for number in range(20):
            answer = http.post("/v1/plans", json={**REQUEST, "iteration": number % 2})
            assert answer.status_code == 200
        began_at = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began_at < 15
    assert receiver.bodies == []


@pytest.mark.parametrize("off", [{}, {"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}], ids=str)
def test_nothing_is_traced_or_loaded_unless_asked_for(off: dict[str, str]) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"} if off else {}
    code = (
        "import os, sys; import planner_service.api; from planner_service.tracing import tracing_from;"
        "assert tracing_from(os.environ, version='1') is None;"
        "assert 'opentelemetry.sdk' not in sys.modules; assert 'requests' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**{name: it for name, it in os.environ.items() if not name.startswith("OTEL_")}, **asked, **off},
    )
    assert done.returncode == 0, done.stderr
    assert isinstance(span("plan"), nullcontext)
    assert isinstance(begin("iteration"), nullcontext)
    note(job="any")
    assert trace_ids() == {}


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER is 'zipkin'"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is no http"),
        ({"OTEL_EXPORTER_OTLP_HEADERS": "a=b,sesame"}, "OTEL_EXPORTER_OTLP_HEADERS cannot be read: entry 2"),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "0"}, "traces cannot be sent: max_queue_size"),
    ],
    ids=lambda it: next(iter(it)) if isinstance(it, dict) else "",
)
def test_what_cannot_be_used_is_refused_by_name_and_shows_no_secret(
    variables: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", **variables}
    for name, value in asked.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TracingUnusable) as refused:
        tracing_from(asked, version="1")
    assert said in str(refused.value)
    assert "sesame" not in str(refused.value)


def test_a_server_that_cannot_trace_does_not_start(tmp_path: Path) -> None:
    from served_planner import serve_command  # noqa: PLC0415 - found by conftest's path

    done = subprocess.run(
        serve_command("--port", "0", "--database", str(tmp_path / "p.sqlite3")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:1", "OTEL_EXPORTER_OTLP_HEADERS": "open sesame"},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("hydraulis serve: OTEL_EXPORTER_OTLP_HEADERS cannot be read")
    assert "sesame" not in done.stderr
