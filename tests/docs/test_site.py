"""The documentation as a site: every link leads somewhere, nothing comes from elsewhere, everything is in it."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--config-file", ROOT / "docs/site/mkdocs.yml", "--site-dir", out],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stderr  # strict: a link or an anchor that leads nowhere is an error
    return out


def test_every_page_is_in_the_site(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    expected = {Path("index.html") if page.name == "README.html" and page.parent == Path() else page for page in pages}
    built = {path.relative_to(site) for path in site.rglob("*.html")}
    missing = {page for page in expected if page not in built and page.with_name("index.html") not in built}
    assert not missing
    assert {Path("readme.html"), Path("changelog.html"), Path("reference/rest.html")} <= built


def test_a_page_fetches_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        html = page.read_text("utf-8")
        fetched = re.findall(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?(https?://[^\s\">]+)", html)
        assert not fetched, page


def test_the_rest_reference_describes_every_operation_and_type(site: Path) -> None:
    text = (site / "reference/rest.html").read_text("utf-8")
    document = json.loads((ROOT / "tests/contract/openapi.json").read_text("utf-8"))
    for path, operations in document["paths"].items():
        for method in operations:
            assert f"<code>{method.upper()} {path}</code>" in text
    for name in document["components"]["schemas"]:
        assert f'id="{name.lower()}"' in text


def test_the_python_reference_describes_what_a_trainer_imports(site: Path) -> None:
    text = (site / "reference/python.html").read_text("utf-8")
    for name in (
        "planner_client.client.PlannerClient",
        "planner_client.calls.PlannerCalls.plan",
        "planner_client.steady.SteadyPlanner",
        "planner_client.errors.HydraulisError",
        "worker_agent.trainer.trainer.Trainer.train",
        "worker_agent.trainer.settings.CheckpointSettings",
    ):
        assert f'id="{name}"' in text, name
