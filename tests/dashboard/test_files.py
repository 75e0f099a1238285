"""The page and its files: from this service alone, all of them there, nothing written into the page."""

import re
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import planner_service.dashboard
from planner_service.api import create_app
from planner_service.settings import Settings

ASSETS = Path(planner_service.dashboard.__file__).parent / "assets"
SCRIPTS = sorted(path.name for path in ASSETS.glob("*.js"))


@pytest.fixture(scope="module")
def client() -> TestClient:
    return TestClient(create_app(Settings(database="sqlite://", workers=1)), base_url="http://127.0.0.1")


def test_the_page_may_load_from_this_service_alone(client: TestClient) -> None:
    page = client.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    policy = dict(part.split(maxsplit=1) for part in page.headers["content-security-policy"].split("; "))
    assert policy.pop("default-src") == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "'none'"
    assert policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"


def test_the_page_holds_no_script_or_style_of_its_own_and_names_no_other_place() -> None:
    page = (ASSETS / "index.html").read_text()
    assert re.findall(r"<script(?![^>]* src=)", page) == re.findall(r"<style|style=| on[a-z]+=", page) == []
    for path in ASSETS.iterdir():
        addresses = re.findall(r"https?://[^\"'\s]+", path.read_text())
        assert set(addresses) <= {"http://www.w3.org/2000/svg"}, path.name


def test_every_file_that_is_named_can_be_had_and_no_other(client: TestClient) -> None:
    named = set(re.findall(r'(?:href|src)="dashboard/([^"]+)"', (ASSETS / "index.html").read_text()))
    for script in SCRIPTS:
        named |= set(re.findall(r'from "\./([^"]+)"', (ASSETS / script).read_text()))
    assert named == {path.name for path in ASSETS.iterdir()} - {"index.html"}
    for name in named:
        answer = client.get(f"/dashboard/{name}")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith(("text/javascript", "text/css", "image/svg+xml"))
        assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("index.html", "%5c..", "..%2findex.html", "x.js", "__init__.py"):
        assert client.get(f"/dashboard/{name}").status_code == 404


def test_all_modules_are_fetched_at_once() -> None:
    preloaded = re.findall(r'rel="modulepreload" href="dashboard/([^"]+)"', (ASSETS / "index.html").read_text())
    assert sorted([*preloaded, "app.js"]) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_make_no_markup_from_text(script: str) -> None:
    text = (ASSETS / script).read_text()
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|DOMParser"
    assert re.findall(forbidden, text) == []


def test_the_token_is_kept_for_the_tab_alone() -> None:
    kept = {script for script in SCRIPTS if "localStorage" in (ASSETS / script).read_text()}
    assert kept == {"theme.js"}
    assert "document.cookie" not in "".join((ASSETS / script).read_text() for script in SCRIPTS)
