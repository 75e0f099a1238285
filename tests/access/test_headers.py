"""Headers of every answer, and the viewer of the interface's description."""

import re

import pytest
from asked_app import Answer, AskedApp

ALWAYS = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


def policy_of(answer: Answer) -> dict[str, list[str]]:
    parts = (part.split() for part in answer.headers["content-security-policy"].split(";"))
    return {name: sources for name, *sources in parts}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/healthz", 200),
        ("GET", "/v1/jobs", 200),
        ("GET", "/docs", 200),
        ("GET", "/docs/start.js", 200),
        ("GET", "/openapi.json", 200),
        ("GET", "/nothing/here", 404),
        ("PATCH", "/v1/jobs", 405),
        ("POST", "/v1/plans", 422),
        ("GET", "/readyz", 503),
    ],
)
def test_every_answer_has_the_headers(method: str, path: str, status: int, open_app: AskedApp) -> None:
    answer = open_app.ask(method, path)
    assert answer.status == status
    assert {name: answer.headers.get(name) for name in ALWAYS} == ALWAYS
    policy = policy_of(answer)
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == ["'none'"]
    assert "unsafe-eval" not in str(policy)
    assert "strict-transport-security" not in answer.headers


def test_refusals_and_unforeseen_errors_have_the_headers_too(asked: AskedApp, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = asked.ask("GET", "/v1/jobs")
    assert refused.status == 401
    assert {name: refused.headers.get(name) for name in ALWAYS} == ALWAYS
    token = asked.tokens.give("read")

    def fail(*_: object) -> None:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr("planner_service.jobs.job_desk.visible_jobs", fail)
    failed = asked.ask("GET", "/v1/jobs", token)
    assert failed.status == 500
    assert {name: failed.headers.get(name) for name in ALWAYS} == ALWAYS


def test_answers_of_the_interface_may_load_nothing(open_app: AskedApp) -> None:
    policy = policy_of(open_app.ask("GET", "/v1/jobs"))
    assert set(policy) == {"default-src", "frame-ancestors", "base-uri", "form-action"}


def test_the_viewer_loads_from_this_service_alone(open_app: AskedApp) -> None:
    page = open_app.ask("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    policy = policy_of(page)
    assert policy["script-src"] == policy["connect-src"] == ["'self'"]
    assert not re.search(rb"https?:|//[a-z]", page.body)
    assets = re.findall(r'(?:src|href)="([^"]+)"', page.body.decode())
    files = [asset for asset in assets if not asset.startswith("data:")]
    assert len(files) == 3
    for asset in files:
        answer = open_app.ask("GET", f"/{asset}")
        assert answer.status == 200
        assert answer.headers["content-type"].startswith(("text/javascript", "text/css"))
    assert b"https://" not in open_app.ask("GET", "/docs/start.js").body


@pytest.mark.parametrize("asset", ["..", "redoc.standalone.js", "favicon.png", "x", "%2e%2e"])
def test_no_other_file_can_be_had(asset: str, open_app: AskedApp) -> None:
    assert open_app.ask("GET", f"/docs/{asset}").status == 404
