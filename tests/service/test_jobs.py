"""Jobs over HTTP: reports from many sources, waiting for plans, what is late, what is refused, restarts."""

import json
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_planner import ServedPlanner, servers, wait_until

from planner_client.contract import Plan

Serve = Callable[..., ServedPlanner]
SOURCES = ["node-0", "node-1"]
ONE_STRATEGY = [[{"tp": 8, "pp": 1, "num_replicas": 1}]]
PROMPT_S = 0.7
"""Well under the second after which callers and services look for themselves: whoever is this quick was told."""


def spec(name: str, **changes: object) -> dict[str, Any]:
    fields = {"profile": "llama-7b-a100-40g", "num_gpus": 8, "sources": SOURCES, "options": {"deadline_ms": 200}}
    return {"name": name, **fields, **changes}


def batch(iteration: int, source: str) -> dict[str, Any]:
    first = 100 + 17 * (iteration % 50) + 3 * len(source)
    return {"lengths": [first + 131 * number for number in range(20)]}


class Caller:
    """Raw HTTP to one service, as a trainer of one job would use it."""

    def __init__(self, url: str, job: str) -> None:
        self.http = httpx.Client(base_url=url, timeout=30.0)
        self.job = job

    def register(self, **changes: object) -> httpx.Response:
        return self.http.post("/v1/jobs", json=spec(self.job, **changes))

    def report(self, iteration: int, *sources: str, **changed: object) -> httpx.Response:
        sent = {source: {**batch(iteration, source), **changed} for source in sources}
        return self.http.put(f"/v1/jobs/{self.job}/iterations/{iteration}/histograms", json={"sources": sent})

    def plan(self, iteration: int, wait_ms: int = 20_000) -> httpx.Response:
        return self.http.get(f"/v1/jobs/{self.job}/iterations/{iteration}/plan", params={"wait_ms": wait_ms})

    def status(self, iteration: int) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{self.job}/iterations/{iteration}")
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def metric(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlanner]:
    with servers(tmp_path_factory.mktemp("jobs")) as start:
        yield start("--workers", "1")


@pytest.fixture
def caller(shared: ServedPlanner, request: pytest.FixtureRequest) -> Iterator[Caller]:
    """A job of the test's own on a service that tests share."""
    made = Caller(shared.url, request.node.name.replace("[", "-").replace("]", "")[-100:].strip("_-"))
    with made.http:
        assert made.register().status_code == 201
        yield made


def test_the_last_report_makes_the_plan_and_everybody_gets_the_same_bytes(caller: Caller) -> None:
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(caller.plan, 0) for _ in range(4)]
        assert caller.report(0, "node-0").json()["missing"] == ["node-1"]
        assert not any(future.done() for future in waiting)
        assert caller.report(0, "node-1").json()["num_missing"] == 0
        answers = [future.result(30.0) for future in waiting]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    plan = Plan.model_validate_json(answers[0].content)
    assert plan.iteration == 0
    assert plan.num_sequences == 40
    assert caller.status(0)["digest"] == plan.digest


def test_who_waits_is_told_at_once(caller: Caller) -> None:
    caller.report(0, *SOURCES)
    assert caller.plan(0).status_code == 200
    with ThreadPoolExecutor(1) as pool:
        late: list[float] = []
        for iteration in range(1, 8):
            waiting = pool.submit(caller.plan, iteration)
            time.sleep(0.15 * iteration)  # not in step with any second
            reported_at = time.monotonic()
            caller.report(iteration, *SOURCES)
            assert waiting.result(30.0).status_code == 200
            late.append(time.monotonic() - reported_at)
    assert sorted(late)[len(late) // 2] < PROMPT_S


def test_reports_come_ahead_of_time_and_out_of_order(caller: Caller) -> None:
    for iteration in (7, 3, 10**9, 5):
        assert caller.report(iteration, "node-1").status_code == 200
    for iteration in (10**9, 5, 7, 3):
        assert caller.report(iteration, "node-0").status_code == 200
    digests = set()
    for iteration in (3, 5, 7, 10**9):
        plan = Plan.model_validate_json(caller.plan(iteration).content)
        assert plan.iteration == iteration
        digests.add(plan.digest)
    assert len(digests) == 4
    assert [row["iteration"] for row in caller.http.get(f"/v1/jobs/{caller.job}/iterations").json()["iterations"]] == [
        3,
        5,
        7,
        10**9,
    ]


def test_a_report_is_taken_twice_and_another_one_refused(caller: Caller) -> None:
    assert caller.report(0, "node-0").status_code == 200
    assert caller.report(0, "node-0").status_code == 200
    other = caller.report(0, "node-0", lengths=[1, 2, 3])
    assert other.status_code == 409
    assert other.json()["code"] == "batch-conflict"
    assert other.json()["source"] == "node-0"
    caller.report(0, "node-1")
    assert caller.plan(0).status_code == 200
    assert caller.report(0, *SOURCES).status_code == 200


def test_a_report_nobody_could_plan_is_refused_while_its_sender_still_listens(caller: Caller) -> None:
    answer = caller.report(0, "node-7")
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown-source")
    assert "node-0" in answer.json()["detail"]
    assert caller.status(0)["num_missing"] == 2
    assert Caller(str(caller.http.base_url), "nobody").report(0, "node-0").json()["code"] == "unknown-job"


def test_an_iteration_without_a_single_sequence_has_a_plan(caller: Caller) -> None:
    empty = {"sources": {source: {"lengths": []} for source in SOURCES}}
    caller.http.put(f"/v1/jobs/{caller.job}/iterations/0/histograms", json=empty)
    assert caller.plan(0).json()["num_sequences"] == 0


def test_who_is_missing_at_the_deadline_is_left_out_by_name(caller: Caller) -> None:
    other = Caller(str(caller.http.base_url), caller.job + "-hurried")
    other.register(source_wait_ms=300)
    other.report(0, "node-1")
    plan = other.plan(0).json()
    assert plan["num_sequences"] == 20
    status = other.status(0)
    assert (status["state"], status["missing"]) == ("planned", ["node-0"])
    late = other.report(0, "node-0")
    assert (late.status_code, late.json()["code"]) == (409, "iteration-closed")


def test_a_job_that_leaves_nobody_out_is_told_who_is_missing(caller: Caller) -> None:
    other = Caller(str(caller.http.base_url), caller.job + "-strict")
    other.register(source_wait_ms=300, missing_sources="refuse")
    other.report(0, "node-1")
    answer = other.plan(0)
    assert answer.status_code == 422
    assert answer.json()["code"] == "sources-missing"
    assert answer.json()["missing"] == ["node-0"]
    assert "node-0" in answer.json()["detail"]
    assert other.status(0)["state"] == "failed"


def test_a_wait_that_ends_says_how_far_the_iteration_is(caller: Caller) -> None:
    caller.report(0, "node-0")
    began = time.monotonic()
    answer = caller.plan(0, wait_ms=200)
    assert answer.status_code == 202
    assert answer.json()["missing"] == ["node-1"]
    assert 0.2 <= time.monotonic() - began < 2.0
    assert caller.plan(123, wait_ms=0).json()["num_missing"] == 2


def test_a_job_deleted_while_somebody_waits_ends_the_wait(caller: Caller) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(caller.plan, 0)
        time.sleep(0.3)
        assert caller.http.delete(f"/v1/jobs/{caller.job}").status_code == 204
        answer = waiting.result(10.0)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown-job")


def test_measured_times_are_those_of_the_plan_that_ran(caller: Caller) -> None:
    caller.report(0, *SOURCES)
    plan = caller.plan(0).json()
    ran = [replica for replica in enumerate(plan["replicas"]) if replica[1]["micro_batches"]]
    sent = {
        "digest": plan["digest"],
        "iteration": 0,
        "replicas": [{"replica": number, "wall_ms": 100.0 + number, "micro_batch_ms": []} for number, _ in ran],
    }
    where = f"/v1/jobs/{caller.job}/iterations/0/timings"
    assert [caller.http.post(where, json=sent).status_code for _ in range(2)] == [204, 204]
    assert caller.status(0)["measured_ms"] == 100.0 + ran[-1][0]
    assert len(caller.http.get(where).json()) == 1
    for wrong in (
        {"digest": "0" * 64},
        {"iteration": 1},
        {"replicas": [{"replica": 99, "wall_ms": 1.0, "micro_batch_ms": []}]},
        {"replicas": [{"replica": ran[0][0], "wall_ms": 1.0, "micro_batch_ms": [1.0] * 99}]},
        {"replicas": [{"replica": ran[0][0], "wall_ms": wall_ms, "micro_batch_ms": []} for wall_ms in (1.0, 9.0)]},
    ):
        answer = caller.http.post(where, json={**sent, **wrong})
        assert (answer.status_code, answer.json()["code"]) == (409, "plan-mismatch"), wrong
    before = caller.metric("hydraulis_fallback_iterations_total")
    assert caller.http.post(where, json={**sent, "digest": "1" * 64, "solved_by": "fallback"}).status_code == 204
    assert caller.metric("hydraulis_fallback_iterations_total") == before + 1
    assert len(caller.http.get(where).json()) == 1


def test_too_many_unfinished_iterations_and_too_many_who_wait_are_429(serve: Serve) -> None:
    few = {"HYDRAULIS_MAX_OPEN_ITERATIONS": "3", "HYDRAULIS_MAX_LONG_POLLS": "2"}
    caller = Caller(serve("--workers", "1", env=few).url, "crowded")
    caller.register()
    assert [caller.report(iteration, "node-0").status_code for iteration in range(4)] == [200, 200, 200, 429]
    refused = caller.report(3, "node-0")
    assert refused.headers["Retry-After"] == "1"
    assert refused.json()["limit"] == 3
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(caller.plan, iteration, 2000) for iteration in range(2)]
        assert wait_until(lambda: caller.metric("hydraulis_long_polls ") == 2)
        refused = caller.plan(2)
        assert (refused.status_code, refused.headers["Retry-After"]) == (429, "1")
        assert [future.result(10.0).status_code for future in waiting] == [202, 202]
    caller.report(0, "node-1")
    assert caller.plan(0).status_code == 200
    assert caller.report(3, "node-0").status_code == 200


def test_who_begins_more_than_is_planned_in_time_is_told_so_and_a_job_without_any_may_begin(serve: Serve) -> None:
    url = serve("--workers", "1", solve_name="misbehaving_planner:slow").url
    greedy, modest = Caller(url, "greedy"), Caller(url, "modest")
    for each in (greedy, modest):
        each.register(options={"deadline_ms": 400}, plan_wait_ms=1000)  # 150 ms each
    refused = None
    for iteration in range(200):
        answer = greedy.report(iteration, *SOURCES)
        if answer.status_code == 429:
            refused = answer
            break
        time.sleep(0.05)
    assert refused is not None
    assert refused.headers["Retry-After"] == "1"
    assert (refused.json()["code"], refused.json()["limit"]) == ("overloaded", 1000)
    assert modest.report(0, *SOURCES).status_code == 200
    assert modest.plan(0).status_code == 200
    assert wait_until(lambda: greedy.report(201, *SOURCES).status_code == 200)


def test_a_flood_of_reports_is_taken_in_a_few_at_a_time_and_the_rest_told_when_to_come_back(serve: Serve) -> None:
    url = serve("--workers", "1", env={"HYDRAULIS_MAX_REPORTS_WAITING": "2"}).url
    caller = Caller(url, "flood")
    caller.register(source_wait_ms=60_000)

    def report(iteration: int) -> httpx.Response:
        return caller.report(iteration, "node-0")

    with ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(report, range(200)))
    refused = [number for number, answer in enumerate(answers) if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert {answers[number].headers["Retry-After"] for number in refused} == {"1"}
    assert {answers[number].json()["limit"] for number in refused} == {2}
    states = caller.http.get("/v1/jobs/flood/iterations", params={"limit": 1000}).json()["iterations"]
    assert {row["iteration"] for row in states} == set(range(200)) - set(refused)
    assert {report(number).status_code for number in refused} == {200}


def test_a_job_with_much_to_do_does_not_keep_others_waiting(serve: Serve) -> None:
    url = serve("--workers", "1", solve_name="misbehaving_planner:slow").url
    greedy, modest = Caller(url, "greedy"), Caller(url, "modest")
    for each in (greedy, modest):
        each.register(options={"deadline_ms": 400})  # 150 ms each
    for iteration in range(40):
        greedy.report(iteration, *SOURCES)
    modest.report(0, *SOURCES)
    assert modest.plan(0).status_code == 200
    states = [row["state"] for row in greedy.http.get("/v1/jobs/greedy/iterations").json()["iterations"]]
    assert states.count("planned") < 35


def test_a_service_with_too_much_to_do_plans_what_can_still_be_helped(serve: Serve) -> None:
    few = {"HYDRAULIS_MAX_OPEN_ITERATIONS": "30"}
    caller = Caller(serve("--workers", "1", env=few, solve_name="misbehaving_planner:slow").url, "overrun")
    caller.register(options={"deadline_ms": 400}, plan_wait_ms=1000)  # 150 ms each
    for iteration in range(30):
        assert caller.report(iteration, *SOURCES).status_code == 200
    answers = [caller.plan(iteration) for iteration in range(30)]
    assert {answer.status_code for answer in answers} == {200, 410}
    late = [answer for answer in answers if answer.status_code == 410]
    assert len(late) > 10
    assert {answer.json()["code"] for answer in late} == {"plan-too-late"}
    assert "plan_wait_ms" in late[0].json()["remedy"]
    assert caller.status(answers.index(late[0]))["code"] == "plan-too-late"
    assert caller.metric("hydraulis_iterations_total{") >= 30
    # None of them takes room any more, and whoever comes now is not behind them.
    assert wait_until(lambda: caller.report(30, *SOURCES).status_code == 200)
    newest = Caller(str(caller.http.base_url), "newest")
    newest.register(options={"deadline_ms": 400}, plan_wait_ms=5000)
    newest.report(0, *SOURCES)
    began_at = time.monotonic()
    assert newest.plan(0).status_code == 200
    assert time.monotonic() - began_at < 2.0


def test_a_job_registered_by_an_earlier_version_is_the_same_job(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "old.sqlite3"
    served = serve("--workers", "1", database=database)
    caller = Caller(served.url, "old")
    caller.register()
    served.stop()
    with closing(sqlite3.connect(database)) as connection, connection:
        ((content,),) = connection.execute("SELECT spec FROM jobs").fetchall()
        older = json.loads(content)
        del older["plan_wait_ms"]
        connection.execute("UPDATE jobs SET spec = ?", (json.dumps(older, sort_keys=True).encode(),))
    caller = Caller(serve("--workers", "1", database=database).url, "old")
    assert caller.register().status_code == 200
    assert caller.register(plan_wait_ms=7).status_code == 409


def test_a_restart_and_a_kill_lose_nothing_that_was_acknowledged(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "kept.sqlite3"
    first = serve("--workers", "1", database=database)
    caller = Caller(first.url, "run")
    caller.register()
    caller.report(0, *SOURCES)
    known = caller.plan(0).content
    caller.report(1, "node-0")
    caller.report(2, *SOURCES)
    first.stop(signal.SIGKILL)
    caller = Caller(serve("--workers", "1", database=database).url, "run")
    assert caller.register().status_code == 200
    assert caller.plan(0).content == known
    assert caller.plan(2).json()["iteration"] == 2
    assert caller.status(1)["missing"] == ["node-1"]
    caller.report(1, "node-1")
    assert caller.plan(1).status_code == 200


def test_an_iteration_in_work_survives_a_kill_of_the_service(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "kept.sqlite3"
    first = serve("--workers", "1", database=database, solve_name="misbehaving_planner:slow")
    caller = Caller(first.url, "run")
    caller.register(options={"deadline_ms": 20_000})
    caller.report(0, *SOURCES)
    assert wait_until(lambda: caller.status(0)["state"] == "solving")
    first.stop(signal.SIGKILL)
    second = serve("--workers", "1", database=database, env={"HYDRAULIS_LEASE_S": "1"})
    caller = Caller(second.url, "run")
    assert caller.plan(0).status_code == 200
    assert caller.status(0)["num_tries"] == 2


def test_sigterm_answers_who_waits_and_gives_back_what_is_in_work(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "kept.sqlite3"
    service = serve(
        "--workers",
        "1",
        database=database,
        env={"HYDRAULIS_DRAIN_TIMEOUT_S": "1", "HYDRAULIS_LEASE_S": "600"},
        solve_name="misbehaving_planner:slow",
    )
    caller = Caller(service.url, "run")
    # One strategy, so that the real planner, which comes next, is quick whatever the deadline.
    caller.register(options={"deadline_ms": 30_000}, strategies=ONE_STRATEGY)
    caller.report(0, *SOURCES)
    assert wait_until(lambda: caller.status(0)["state"] == "solving")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(caller.plan, 0)
        assert wait_until(lambda: caller.metric("hydraulis_long_polls ") == 1)
        began = time.monotonic()
        assert service.stop() == 0
        assert time.monotonic() - began < 10.0
        answer = waiting.result(5.0)
    assert (answer.status_code, answer.json()["code"]) == (503, "shutting-down")
    assert "Retry-After" in answer.headers
    caller = Caller(serve("--workers", "1", database=database).url, "run")
    answer = caller.plan(0)
    assert answer.status_code == 200, f"it was given back, so no lease had to end: {answer.text}"


def test_a_solver_that_dies_over_one_iteration_fails_it_alone(serve: Serve) -> None:
    service = serve("--workers", "1", solve_name="misbehaving_planner:dying")
    caller = Caller(service.url, "doomed")
    caller.register(options={"deadline_ms": 200})
    caller.report(0, *SOURCES)
    answer = caller.plan(0, wait_ms=60_000)
    assert answer.status_code == 500
    assert "logged under request id doomed/0" in answer.json()["detail"]
    assert "iteration_failed_unexpectedly" in service.log
    assert caller.status(0)["num_tries"] == 5
    assert caller.http.get("/healthz").status_code == 200


def test_a_plan_is_found_for_as_many_as_wait_without_a_thread_each(serve: Serve) -> None:
    service = serve("--workers", "1")
    caller = Caller(service.url, "many")
    caller.register()
    caller.report(0, "node-0")
    num_waiting = 300
    with httpx.Client(base_url=service.url, timeout=30.0, limits=httpx.Limits(max_connections=num_waiting)) as http:
        answers: list[bytes] = []

        def wait() -> None:
            answers.append(http.get("/v1/jobs/many/iterations/0/plan", params={"wait_ms": 20_000}).content)

        threads = [threading.Thread(target=wait) for _ in range(num_waiting)]
        for thread in threads:
            thread.start()
        assert wait_until(lambda: caller.metric("hydraulis_long_polls ") == num_waiting)
        caller.report(0, "node-1")
        for thread in threads:
            thread.join(30.0)
    assert len(answers) == num_waiting
    assert len(set(answers)) == 1
