"""Nodes report that they are there, and whoever may look sees them."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from planner_client.contract import NodeList, Scope, TokenRequest
from planner_service.access import TokenRegister
from planner_service.api import create_app
from planner_service.settings import Settings
from planner_service.store import SqlStore

REPORT = {"agent_version": "1.2", "devices": [{"name": "CPU", "count": 4, "memory_bytes": 2**30}], "every_s": 5}


@pytest.fixture
def app(tmp_path: Path) -> Iterator[tuple[FastAPI, SqlStore]]:
    """An app that asks for tokens and whose solvers never start, for no test asks them."""
    store = SqlStore(str(tmp_path / "p.sqlite3"))
    yield create_app(Settings(database="unused", auth="tokens", workers=1), store=store), store
    store.close()


def client(app: tuple[FastAPI, SqlStore], scope: Scope = "plan", jobs: list[str] | None = None) -> TestClient:
    token = TokenRegister(app[1].access).give(TokenRequest(name=f"t-{scope}-{len(jobs or ())}", scope=scope, jobs=jobs))
    return TestClient(app[0], headers={"Authorization": f"Bearer {token.token}"})


def listed(asking: TestClient, **query: str | int) -> NodeList:
    answer = asking.get("/v1/nodes", params=query)
    assert answer.status_code == 200, answer.text
    return NodeList.model_validate_json(answer.content)


def test_a_node_that_reports_is_listed_with_what_it_has_and_how_long_ago(app: tuple[FastAPI, SqlStore]) -> None:
    agent = client(app)
    for name in ("n-2", "n-1", "n-3"):
        answer = agent.put(f"/v1/nodes/{name}", json=REPORT)
        assert (answer.status_code, answer.json()["name"]) == (200, name)
    first = listed(agent, limit=2)
    rest = listed(agent, limit=2, after=first.next_after or "")
    assert [node.name for node in (*first.nodes, *rest.nodes)] == ["n-1", "n-2", "n-3"]
    assert rest.next_after is None
    [node] = rest.nodes
    assert node.devices[0].count == 4
    assert (node.agent_version, node.every_s, node.job) == ("1.2", 5, None)
    assert 0 <= node.last_seen_age_s < 60


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("-n", REPORT),
        ("a b", REPORT),
        ("n", {**REPORT, "devices": []}),
        ("n", {**REPORT, "gpus": 3}),
        ("n" * 129, REPORT),
    ],
)
def test_what_is_no_node_is_refused(app: tuple[FastAPI, SqlStore], name: str, report: dict[str, object]) -> None:
    answer = client(app).put(f"/v1/nodes/{name}", json=report)
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")


def test_a_token_for_some_jobs_reports_and_sees_nodes_of_these_alone(app: tuple[FastAPI, SqlStore]) -> None:
    everybody, mine = client(app), client(app, jobs=["mine-*"])
    for name, job in {"a": "mine-1", "b": "theirs", "c": None}.items():
        assert everybody.put(f"/v1/nodes/{name}", json={**REPORT, "job": job}).status_code == 200
    assert mine.put("/v1/nodes/d", json={**REPORT, "job": "mine-2"}).status_code == 200
    for job in ("theirs", None):
        refused = mine.put("/v1/nodes/d", json={**REPORT, "job": job})
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert [node.name for node in listed(mine).nodes] == ["a", "d"]
    assert [node.name for node in listed(everybody).nodes] == ["a", "b", "c", "d"]
    assert client(app, "read").put("/v1/nodes/e", json=REPORT).status_code == 403
