"""What is counted, what it is called, and that page and dashboard speak of the same."""

import ast
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from fastapi.testclient import TestClient

from planner_client.contract import FaultCode, IterationTimings, Plan
from planner_service.api import create_app
from planner_service.desk.metrics import Metrics
from planner_service.desk.store_watch import StoreWatch
from planner_service.pool import PoolLimits, SolverPool
from planner_service.settings import Settings
from planner_service.store import JobRow, ReportTerms, SqlStore, StoreUnavailable, StoreUse

if TYPE_CHECKING:
    from served_planner import ServedPlanner

Serve = Callable[..., "ServedPlanner"]

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operations.md").read_text()
DASHBOARD = json.loads((ROOT / "deploy" / "grafana" / "hydraulis.json").read_text())
NAME = re.compile(r"\b(?:hydraulis|process)_[a-z_]+\b")
UNITS = ("seconds", "bytes", "ratio")
PROFILE = "llama-7b-a100-40g"
REQUEST: dict[str, Any] = {"profile": PROFILE, "num_gpus": 8, "lengths": [100, 200], "options": {"deadline_ms": 200}}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All metrics of an app that serves, by name."""
    database = tmp_path_factory.mktemp("metrics") / "p.sqlite3"
    with TestClient(create_app(Settings(database=str(database), workers=1))) as client:
        text = client.get("/metrics").text
    found = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, re.MULTILINE))
    return {name: kind for name, kind in found.items() if not name.endswith("_created")}


def metrics_named(text: str, kinds: dict[str, str]) -> set[str]:
    """Return the metrics that a text names; of a histogram's series, the histogram."""
    named = set()
    for name in NAME.findall(text):
        histogram = re.sub(r"_(bucket|sum|count)$", "", name)
        named.add(histogram if kinds.get(histogram) == "histogram" else name)
    return named


def expressions() -> list[str]:
    return [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]


def value_of(text: str, series: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(series + " ")]
    return float(line.split()[-1])


def test_names_are_those_that_prometheus_asks_for(kinds: dict[str, str]) -> None:
    assert len(kinds) > 30
    for name, kind in kinds.items():
        assert name.endswith("_total") == (kind == "counter"), name
        if kind == "histogram":
            assert name.endswith(UNITS), name
        assert not re.search(r"_(ms|milliseconds|kb|percent|minutes)(_|$)", name), name


def test_the_page_and_the_service_name_the_same_metrics(kinds: dict[str, str]) -> None:
    rows = re.findall(r"^\| `((?:hydraulis|process)_[a-z_]+)` \| (\w+)", PAGE, re.MULTILINE)
    assert len(rows) == len(dict(rows)), "a metric has two rows"
    assert dict(rows) == kinds
    assert metrics_named(PAGE, kinds) == kinds.keys()


def test_the_dashboard_asks_for_metrics_that_there_are_and_shows_every_one(kinds: dict[str, str]) -> None:
    variables = json.dumps(DASHBOARD["templating"])
    assert metrics_named(" ".join([*expressions(), variables]), kinds) == kinds.keys()


def test_the_dashboard_asks_of_each_metric_what_its_kind_can_answer(kinds: dict[str, str]) -> None:
    for expression in expressions():
        for name in NAME.findall(expression):
            histogram = re.sub(r"_(bucket|sum|count)$", "", name)
            is_counted = kinds.get(name) == "counter" or kinds.get(histogram) == "histogram"
            is_rate = re.search(rf"(rate|increase)\({name}\{{[^}}]*\}}\[\$__rate_interval\]\)", expression) is not None
            assert is_counted == is_rate, expression
        assert expression.count("(") == expression.count(")")
    panels = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    assert all(panel["title"] and panel["description"] and panel["targets"] for panel in panels)
    for first in panels:
        for second in panels:
            assert first is second or not _overlap(first["gridPos"], second["gridPos"]), first["title"]


def _overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return (
        one["x"] < other["x"] + other["w"]
        and other["x"] < one["x"] + one["w"]
        and one["y"] < other["y"] + other["h"]
        and other["y"] < one["y"] + one["h"]
    )


def test_the_page_has_every_setting_with_its_default() -> None:
    section = PAGE.partition("## Limits, timeouts, retention")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (`HYDRAULIS_[^|]+) \| ([^|]+) \|", section, re.MULTILINE))
    documented = {name: default for names, default in rows.items() for name in re.findall(r"`HYDRAULIS_(\w+)`", names)}
    assert documented.keys() == {name.upper() for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        shown = documented[name.upper()]
        if field.default_factory is None:
            assert shown == ("none" if field.default is None else f"`{field.default}`"), name


def test_the_page_has_every_event_of_the_log_and_no_other() -> None:
    section = PAGE.partition("## Log")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \| (?:info|warning|error) \|", section, re.MULTILINE))
    assert documented == set(_events_logged())


def _events_logged() -> Iterator[str]:
    for path in (ROOT / "planner_service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("info", "warning", "error", "exception")
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                yield node.args[0].value


def test_names_of_jobs_are_on_no_metric_and_what_happens_to_jobs_is(serve: Serve) -> None:
    server = serve("--workers", "1")
    with httpx.Client(base_url=server.url, timeout=30) as http:
        spec = {"name": "a-job-of-mine", "profile": PROFILE, "num_gpus": 8, "sources": ["a-source", "late"]}
        http.post("/v1/jobs", json={**spec, "source_wait_ms": 200, "options": {"deadline_ms": 200}})
        of_job = "/v1/jobs/a-job-of-mine/iterations"
        http.put(f"{of_job}/0/histograms", json={"sources": {"a-source": {"lengths": [100, 300]}}})
        plan = Plan.model_validate_json(http.get(f"{of_job}/0/plan?wait_ms=20000").content)
        wall_ms = 2.0 * plan.makespan_ms
        replicas = [{"replica": n, "wall_ms": wall_ms, "micro_batch_ms": []} for n in range(len(plan.replicas))]
        timings = {"digest": plan.digest, "iteration": 0, "replicas": replicas}
        for _ in range(2):
            assert http.post(f"{of_job}/0/timings", json=timings).status_code == 204
        assert http.post(f"{of_job}/1/timings", json={**timings, "solved_by": "fallback"}).status_code == 204
        assert http.get("/v1/jobs/nobodys").status_code == 404
        text = http.get("/metrics").text
    for series, expected in {
        'hydraulis_iterations_total{outcome="planned",sources="sources missing"}': 1,
        'hydraulis_iterations_total{outcome="planned",sources="complete"}': 0,
        "hydraulis_iteration_wait_seconds_count": 1,
        "hydraulis_solve_seconds_count": 1,
        "hydraulis_plan_gap_ratio_count": 1,
        "hydraulis_plan_makespan_seconds_sum": plan.makespan_ms / 1000,
        "hydraulis_measured_iterations_total": 1,
        "hydraulis_fallback_iterations_total": 1,
        "hydraulis_measured_makespan_seconds_sum": wall_ms / 1000,
        "hydraulis_measured_over_predicted_ratio_count": sum(1 for it in plan.replicas if it.makespan_ms > 0),
        'hydraulis_http_refusals_total{code="unknown-job"}': 1,
        "hydraulis_http_requests_in_progress": 1,
        "hydraulis_solvers": 1,
        "hydraulis_solvers_busy": 0,
        "hydraulis_store_up": 1,
        'hydraulis_store_errors_total{operation="write"}': 0,
    }.items():
        assert value_of(text, series) == pytest.approx(expected), series
    assert value_of(text, "hydraulis_solvers_resident_memory_bytes") > 10e6
    assert value_of(text, 'hydraulis_store_seconds_count{operation="write"}') >= 3
    assert 0 < value_of(text, 'hydraulis_store_seconds_sum{operation="write"}') < 30
    assert "a-job-of-mine" not in text
    assert "a-source" not in text


def test_a_report_of_some_replicas_tells_no_makespan_and_an_unknown_code_adds_no_series(tmp_path: Path) -> None:
    metrics = Metrics(SolverPool(PoolLimits(1, 1, 1, 1, 1, 2**30)))
    replica = {"replica": 1, "wall_ms": 5.0, "micro_batch_ms": []}
    part = IterationTimings.model_validate({"digest": "d", "iteration": 0, "replicas": [replica]})
    with TestClient(create_app(Settings(database=str(tmp_path / "p.sqlite3"), workers=1))) as client:
        _wait_until_ready(client)
        strategy = [[{"tp": 4, "pp": 1, "num_replicas": 2}]]
        body = {**REQUEST, "lengths": [500] * 64, "strategies": strategy, "profile": "llama-7b-a800-80g"}
        plan = Plan.model_validate_json(client.post("/v1/plans", json=body).content)
    assert len([replica for replica in plan.replicas if replica.micro_batches]) == 2
    metrics.observe_measured(plan, part)
    for code in ("some-day", "some-other-day", FaultCode.OVERLOADED):
        metrics.observe_refusal(code)
        metrics.observe_no_plan(code)
    read = metrics.registry.get_sample_value
    assert read("hydraulis_measured_replica_seconds_count") == 1
    assert read("hydraulis_measured_makespan_seconds_count") == 0
    assert read("hydraulis_http_refusals_total", {"code": "other"}) == 2
    assert read("hydraulis_http_refusals_total", {"code": "some-day"}) is None
    assert read("hydraulis_solve_failures_total", {"code": "overloaded"}) == 1


def _wait_until_ready(client: TestClient) -> None:
    ends_at = time.monotonic() + 60
    while client.get("/readyz").status_code != 200:
        assert time.monotonic() < ends_at
        time.sleep(0.05)


def test_a_request_that_no_solver_can_do_counts_as_failed_by_its_code(tmp_path: Path) -> None:
    app = create_app(Settings(database=str(tmp_path / "p.sqlite3"), workers=1), solve_name="misbehaving_planner:broken")
    with TestClient(app, raise_server_exceptions=False) as client:
        _wait_until_ready(client)
        assert client.post("/v1/plans", json=REQUEST).status_code == 500
        text = client.get("/metrics").text
    assert value_of(text, 'hydraulis_solve_failures_total{code="internal"}') == 1
    assert value_of(text, 'hydraulis_http_refusals_total{code="internal"}') == 1
    assert value_of(text, "hydraulis_solve_seconds_count") == 0


def test_every_use_of_the_database_is_told_with_its_time_and_its_failure(tmp_path: Path) -> None:
    store = SqlStore(str(tmp_path / "p.sqlite3"))
    uses: list[StoreUse] = []
    store.watch(uses.append)
    store.jobs.put(JobRow("j", b"{}"))
    assert store.jobs.get("j") is not None
    assert [(use.operation, use.has_failed, use.num_attempts) for use in uses] == [
        ("write", False, 1),
        ("read", False, 1),
    ]
    assert all(0 < use.seconds < 5 for use in uses)
    store.close()
    (tmp_path / "p.sqlite3").write_bytes(b"no database at all" * 1000)
    with pytest.raises(StoreUnavailable):
        store.jobs.get("j")
    assert (uses[-1].operation, uses[-1].has_failed) == ("read", True)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_open_iterations_are_counted_until_they_are_finished_or_their_job_goes(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database = str(tmp_path / "p.sqlite3") if kind == "sqlite" else request.getfixturevalue("postgres_url")
    store = SqlStore(database)
    try:
        assert store.jobs.num_open() == 0
        terms = ReportTerms(num_expected=1, wait_s=60.0, max_open=10)
        for name in ("one", "two"):
            store.jobs.put(JobRow(name, b"{}"))
            for iteration in range(3):
                store.jobs.report(name, iteration, {"a": b"{}"}, terms)
        assert store.jobs.num_open() == 6
        time.sleep(0.05)
        claim = store.jobs.claim("me", 60.0)
        assert claim is not None
        assert 0.05 <= claim.waited_s < 30
        store.jobs.fail(claim, b"{}")
        assert store.jobs.num_open() == 5
        store.jobs.delete("two" if claim.job == "one" else "one")
        assert store.jobs.num_open() == 2
    finally:
        store.close()


def test_the_watch_tells_of_what_waits_and_of_a_database_that_is_lost_and_found(tmp_path: Path) -> None:
    server_side = SqlStore(str(tmp_path / "p.sqlite3"))
    metrics = Metrics(SolverPool(PoolLimits(1, 1, 1, 1, 1, 2**30)))
    read = metrics.registry.get_sample_value
    server_side.jobs.put(JobRow("j", b"{}"))
    server_side.jobs.report("j", 0, {"a": b"{}"}, ReportTerms(num_expected=1, wait_s=60.0, max_open=10))
    running = threading.Event()
    thread = threading.Thread(target=_watch, args=(server_side, metrics, running))
    thread.start()
    try:
        _until(lambda: read("hydraulis_store_up") == 1)
        assert read("hydraulis_iterations_open") == 1
        _until(lambda: (read("hydraulis_iterations_oldest_due_seconds") or 0) > 0.2)
        moved = tmp_path / "away"
        server_side.close()
        (tmp_path / "p.sqlite3").rename(moved)
        (tmp_path / "p.sqlite3").mkdir()
        _until(lambda: read("hydraulis_store_up") == 0)
        assert str(read("hydraulis_iterations_open")) == "nan"
        (tmp_path / "p.sqlite3").rmdir()
        moved.rename(tmp_path / "p.sqlite3")
        _until(lambda: read("hydraulis_store_up") == 1)
        assert read("hydraulis_iterations_open") == 1
    finally:
        running.set()
        thread.join(20)
    assert not thread.is_alive()
    server_side.close()


def _until(condition: Callable[[], bool]) -> None:
    ends_at = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.02)


def _watch(store: SqlStore, metrics: Metrics, ended: threading.Event) -> None:
    import asyncio  # noqa: PLC0415 - in its thread alone

    async def watching() -> None:
        watch = StoreWatch(store, metrics, every_s=0.05)
        watch.start()
        await asyncio.to_thread(ended.wait, 60)
        await watch.close()

    asyncio.run(watching())
