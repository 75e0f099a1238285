"""Several services over one PostgreSQL database: shared work, one plan each, take-over, cut connections."""

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from postgres import PostgresServer, database_name
from served_planner import ServedPlanner, wait_until
from test_jobs import ONE_STRATEGY, PROMPT_S, SOURCES, Caller

Serve = Callable[..., ServedPlanner]


def test_two_services_share_the_work_and_answer_with_the_same_bytes(serve: Serve, postgres_url: str) -> None:
    """The planner names its own process in each plan, so that a second solve would show."""
    urls = [
        serve("--workers", "1", database_url=postgres_url, solve_name="misbehaving_planner:slow").url for _ in range(2)
    ]
    first, second = (Caller(url, "run") for url in urls)
    assert first.register(options={"deadline_ms": 400}).status_code == 201
    assert second.register(options={"deadline_ms": 400}).status_code == 200
    for iteration in range(12):
        first.report(iteration, "node-0")
        second.report(iteration, "node-1")
    solvers = set()
    for iteration in range(12):
        answers = [each.plan(iteration) for each in (first, second)]
        assert {answer.status_code for answer in answers} == {200}
        assert answers[0].content == answers[1].content
        solvers.add(answers[0].json()["planning_ms"])
    assert len(solvers) == 2, "both had a part of the work"
    planned = [caller.metric('hydraulis_iterations_total{outcome="planned"') for caller in (first, second)]
    assert sum(planned) == 12
    assert min(planned) >= 2


def test_who_waits_at_one_service_is_told_at_once_by_another(serve: Serve, postgres_url: str) -> None:
    idle = serve("--workers", "1", database_url=postgres_url)
    busy = serve("--workers", "1", database_url=postgres_url)
    here, there = Caller(idle.url, "run"), Caller(busy.url, "run")
    here.register()
    late: list[float] = []
    with ThreadPoolExecutor(1) as pool:
        for iteration in range(9):
            waiting = pool.submit(here.plan, iteration)
            time.sleep(0.1 + 0.13 * iteration)
            reported_at = time.monotonic()
            there.report(iteration, *SOURCES)
            assert waiting.result(30.0).status_code == 200
            late.append(time.monotonic() - reported_at)
    assert sorted(late)[len(late) // 2] < PROMPT_S


def test_a_service_killed_in_the_middle_of_a_solve_is_taken_over(serve: Serve, postgres_url: str) -> None:
    lease = {"HYDRAULIS_LEASE_S": "1"}
    doomed = serve("--workers", "1", database_url=postgres_url, env=lease, solve_name="misbehaving_planner:slow")
    # One strategy, so that the real planner, which comes next, is quick whatever the deadline.
    Caller(doomed.url, "run").register(options={"deadline_ms": 25_000}, strategies=ONE_STRATEGY)
    Caller(doomed.url, "run").report(0, *SOURCES)
    assert wait_until(lambda: Caller(doomed.url, "run").status(0)["state"] == "solving")
    other = Caller(serve("--workers", "1", database_url=postgres_url, env=lease).url, "run")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(other.plan, 0)
        time.sleep(1.5)
        assert other.status(0)["num_tries"] == 1, "a lease that is renewed is nobody else's"
        doomed.stop(signal.SIGKILL)
        assert waiting.result(20.0).status_code == 200
    assert other.status(0)["num_tries"] == 2


def test_cut_connections_are_made_again(serve: Serve, postgres_url: str, postgres_server: PostgresServer) -> None:
    service = serve("--workers", "1", database_url=postgres_url)
    caller = Caller(service.url, "run")
    caller.register()
    for iteration in range(5):
        assert postgres_server.cut_all_connections(database_name(postgres_url)) > 0
        answer = caller.report(iteration, *SOURCES)
        assert answer.status_code == 200 or (answer.status_code == 503 and answer.headers["Retry-After"])
        assert caller.report(iteration, *SOURCES).status_code == 200
        assert wait_until(lambda at=iteration: caller.plan(at, wait_ms=1000).status_code == 200)


def test_a_database_that_is_away_is_503_and_everything_is_there_when_it_is_back(
    serve: Serve, postgres_server: PostgresServer
) -> None:
    url = postgres_server.new_database()
    caller = Caller(serve("--workers", "1", database_url=url).url, "run")
    caller.register()
    caller.report(0, *SOURCES)
    known = caller.plan(0).content
    caller.report(1, "node-0")
    postgres_server.stop()
    try:
        for answer in (caller.report(1, "node-1"), caller.plan(0), caller.http.get("/readyz")):
            assert answer.status_code == 503
            assert "Retry-After" in answer.headers
        assert caller.http.get("/healthz").status_code == 200
    finally:
        postgres_server.start()
    assert wait_until(lambda: caller.report(1, "node-1").status_code == 200)
    assert caller.plan(1).status_code == 200
    assert caller.plan(0).content == known
