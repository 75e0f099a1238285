"""Every route, asked by every kind of caller: one table, written without looking at the one the guard works from."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest
from asked_app import Answer, AskedApp, Tokens, app_on
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from planner_client.contract import Problem
from planner_service.access import new_secret
from planner_service.api.needs import RULES, UnlistedRoute, refuse_unlisted
from planner_service.store import SqlStore

MINE, FOREIGN = "mine-1", "theirs"


class Row(NamedTuple):
    """What is expected of a route.

    ``scope`` is the least that will do. ``restricted`` tells what a token for the jobs ``mine-*`` may do: ``own`` jobs
    alone, all of the route (``yes``), or nothing (``no``).
    """

    method: str
    path: str
    scope: str
    restricted: str


EXPECTED = [
    Row("GET", "/healthz", "open", "yes"),
    Row("GET", "/readyz", "open", "yes"),
    Row("GET", "/openapi.json", "open", "yes"),
    Row("GET", "/docs", "open", "yes"),
    Row("GET", "/docs/{asset}", "open", "yes"),
    Row("GET", "/", "open", "yes"),
    Row("GET", "/dashboard/{asset}", "open", "yes"),
    Row("GET", "/metrics", "read", "no"),
    Row("GET", "/v1/jobs", "read", "yes"),
    Row("POST", "/v1/jobs", "plan", "yes"),
    Row("GET", "/v1/jobs/{job}", "read", "own"),
    Row("DELETE", "/v1/jobs/{job}", "admin", "own"),
    Row("GET", "/v1/jobs/{job}/series", "read", "own"),
    Row("GET", "/v1/jobs/{job}/iterations", "read", "own"),
    Row("GET", "/v1/jobs/{job}/iterations/{iteration}", "read", "own"),
    Row("GET", "/v1/jobs/{job}/iterations/{iteration}/plan", "read", "own"),
    Row("GET", "/v1/jobs/{job}/iterations/{iteration}/overview", "read", "own"),
    Row("GET", "/v1/jobs/{job}/iterations/{iteration}/replicas", "read", "own"),
    Row("GET", "/v1/jobs/{job}/iterations/{iteration}/candidates", "read", "own"),
    Row("PUT", "/v1/jobs/{job}/iterations/{iteration}/histograms", "plan", "own"),
    Row("PUT", "/v1/jobs/{job}/iterations/{iteration}/histograms/{source:path}", "plan", "own"),
    Row("GET", "/v1/jobs/{job}/iterations/{iteration}/timings", "read", "own"),
    Row("POST", "/v1/jobs/{job}/iterations/{iteration}/timings", "plan", "own"),
    Row("GET", "/v1/jobs/{job}/learning", "read", "own"),
    Row("GET", "/v1/jobs/{job}/learning/versions", "read", "own"),
    Row("GET", "/v1/jobs/{job}/learning/versions/{version}", "read", "own"),
    Row("POST", "/v1/jobs/{job}/learning/reset", "plan", "own"),
    Row("GET", "/v1/nodes", "read", "yes"),
    Row("PUT", "/v1/nodes/{node}", "plan", "yes"),
    Row("POST", "/v1/plans", "plan", "yes"),
    Row("GET", "/v1/plans", "read", "no"),
    Row("GET", "/v1/plans/{digest}", "read", "no"),
    Row("DELETE", "/v1/plans/{digest}", "admin", "no"),
    Row("GET", "/v1/profiles", "read", "yes"),
    Row("POST", "/v1/profiles", "plan", "no"),
    Row("GET", "/v1/profiles/{name}", "read", "yes"),
    Row("DELETE", "/v1/profiles/{name}", "admin", "no"),
    Row("GET", "/v1/tokens", "admin", "no"),
    Row("POST", "/v1/tokens", "admin", "no"),
    Row("DELETE", "/v1/tokens/{name}", "admin", "no"),
    Row("GET", "/v1/audit", "admin", "no"),
]
SCOPES = ["read", "plan", "admin"]


@pytest.fixture(scope="module")
def apps(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AskedApp, AskedApp]]:
    """Two apps on one store, one that asks for tokens and one that does not; nothing is ever put into it but tokens."""
    store = SqlStore(str(tmp_path_factory.mktemp("routes") / "planner.sqlite3"))
    tokens = Tokens(store.access)
    yield AskedApp(app_on(store), tokens), AskedApp(app_on(store, auth="auto"), tokens)
    store.close()


@pytest.fixture
def asked(apps: tuple[AskedApp, AskedApp]) -> AskedApp:
    return apps[0]


@pytest.fixture
def open_app(apps: tuple[AskedApp, AskedApp]) -> AskedApp:
    return apps[1]


def address(row: Row, job: str = MINE) -> str:
    values = {
        "{job}": job,
        "{iteration}": "3",
        "{source:path}": "node/0",
        "{digest}": "sha256:0",
        "{name}": "nobody",
        "{node}": "n",
        "{version}": "1",
    }
    path = row.path.replace("{asset}", "start.js")
    for parameter, value in values.items():
        path = path.replace(parameter, value)
    return path


def assert_refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.num_body_reads) == (status, 0)
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(answer.body)
    assert (problem.status, problem.code) == (status, code)
    assert problem.detail
    assert problem.remedy
    assert answer.headers.get("www-authenticate", "").startswith("Bearer") == (status == 401)


def assert_let_in(answer: Answer) -> None:
    # The request may still be wrong in itself: there is no such job, the body is empty, no solver runs.
    assert answer.status in {200, 201, 204, 404, 422} or (answer.status, answer.json["code"]) == (503, "not-ready")


def test_the_table_has_every_route_of_the_app(asked: AskedApp) -> None:
    served = {
        (method, route.path)
        for route in iter_route_contexts(asked.app.routes)
        for method in (route.methods or ())
        if method != "HEAD"
    }
    assert served == {(row.method, row.path) for row in EXPECTED} == set(RULES)


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: f"{row.method} {row.path}")
def test_every_route_lets_in_who_may_come_in_and_nobody_else(row: Row, asked: AskedApp) -> None:
    path = address(row)
    is_open = row.scope == "open"
    strangers = {
        "none": [],
        "another scheme": [("authorization", "Basic aHlkcmF1bGlzOng=")],
        "no secret": [("authorization", "Bearer")],
        "malformed": [("authorization", "Bearer hyd_short")],
        "a longer one": [("authorization", f"Bearer {asked.tokens.give('admin')}x")],
        "two": [("authorization", f"Bearer {asked.tokens.give('admin')}") for _ in range(2)],
        "wrong": [("authorization", f"Bearer {new_secret()}")],
    }
    for headers in strangers.values():
        answer = asked.ask(row.method, path, headers=headers)
        if is_open:
            assert_let_in(answer)
        else:
            assert_refused(answer, 401, "unauthenticated")
    for scope in SCOPES:
        answer = asked.ask(row.method, path, asked.tokens.give(scope))
        if is_open or SCOPES.index(scope) >= SCOPES.index(row.scope):
            assert_let_in(answer)
        else:
            assert_refused(answer, 403, "forbidden")
    for job in (MINE, FOREIGN):
        restricted = asked.tokens.give("admin", "mine-*", "one-more")
        answer = asked.ask(row.method, address(row, job), restricted)
        if row.restricted == "yes" or (row.restricted == "own" and job == MINE):
            assert_let_in(answer)
        else:
            assert_refused(answer, 403, "forbidden")


def test_a_token_for_some_jobs_has_no_more_scope_than_it_was_given(asked: AskedApp) -> None:
    reader = asked.tokens.give("read", "mine-*")
    assert_let_in(asked.ask("GET", f"/v1/jobs/{MINE}", reader))
    assert_refused(asked.ask("DELETE", f"/v1/jobs/{MINE}", reader), 403, "forbidden")
    assert_refused(asked.ask("POST", "/v1/jobs", reader), 403, "forbidden")


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: f"{row.method} {row.path}")
def test_without_tokens_every_route_lets_everybody_in(row: Row, open_app: AskedApp) -> None:
    assert_let_in(open_app.ask(row.method, address(row)))


def test_the_description_names_the_scope_and_the_refusals_of_every_route(asked: AskedApp) -> None:
    paths = asked.app.openapi()["paths"]
    for row in EXPECTED:
        if row.path == "/" or row.path.startswith(("/docs", "/dashboard", "/openapi.json")):
            continue
        operation = paths[row.path.replace(":path}", "}")][row.method.lower()]
        assert ("security" in operation) == (row.scope != "open")
        if row.scope != "open":
            assert f"scope `{row.scope}`" in operation["description"]
            assert {"401", "403"} <= set(operation["responses"])


def test_an_app_with_a_route_that_nobody_decided_about_cannot_be_made() -> None:
    app = FastAPI(openapi_url=None)
    app.add_api_route("/v1/secrets", lambda: None, methods=["GET"])
    with pytest.raises(UnlistedRoute, match="RULES lacks GET /v1/secrets"):
        refuse_unlisted(app.routes)


def test_a_route_offered_by_another_method_is_another_route() -> None:
    app = FastAPI(openapi_url=None)
    app.add_api_route("/healthz", lambda: None, methods=["DELETE"])
    with pytest.raises(UnlistedRoute, match="RULES lacks DELETE /healthz"):
        refuse_unlisted(app.routes)


def test_an_app_mounted_below_a_path_cannot_slip_past_the_table() -> None:
    app = FastAPI(openapi_url=None)
    app.mount("/v1", FastAPI())
    with pytest.raises(UnlistedRoute, match="no plain route"):
        refuse_unlisted(app.routes)
