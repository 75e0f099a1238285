import os
import re
import sys
import time
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from typer.testing import CliRunner

from worker_agent.commands.demo import demo
from worker_agent.demo import service_process
from worker_agent.demo.service_process import ServiceUnavailable, missing_service_packages, running_service


def test_the_service_answers_inside_the_block_and_is_gone_after_it(tmp_path: Path) -> None:
    with running_service(tmp_path / "store.sqlite3") as url:
        assert httpx.get(f"{url}/readyz", timeout=10).status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{url}/healthz", timeout=5)


def test_a_service_that_cannot_start_says_why(tmp_path: Path) -> None:
    with (
        pytest.raises(ServiceUnavailable, match=r"ended with exit code [1-9]\d*: [\s\S]*no-such-directory"),
        running_service(tmp_path / "no-such-directory" / "store.sqlite3"),
    ):
        pytest.fail("a service without a store was said to listen")


def test_a_silent_service_is_given_up_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / "pid"
    program = f"import os, pathlib, time; pathlib.Path({str(left)!r}).write_text(str(os.getpid())); time.sleep(60)"
    monkeypatch.setattr(service_process, "_HYDRAULIS", [sys.executable, "-c", program])
    started = time.monotonic()
    with (
        pytest.raises(ServiceUnavailable, match=re.escape("was not ready within 3 s")),
        running_service(tmp_path / "store.sqlite3", timeout_s=3),
    ):
        pytest.fail("a silent service was said to listen")
    assert time.monotonic() - started < 15
    with pytest.raises(ProcessLookupError):
        os.kill(int(left.read_text()), 0)


def without(missing: str) -> Any:
    def find(name: str) -> Any:
        if name == missing:
            raise PackageNotFoundError(name)
        return distribution(name)

    return find


def test_packages_of_the_service_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_service_packages() == []
    monkeypatch.setattr(service_process, "distribution", without("ortools"))
    assert missing_service_packages() == ["ortools"]


def test_the_demo_without_the_service_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_process, "distribution", without("fastapi"))
    app = typer.Typer()
    app.command()(demo)
    finished = CliRunner().invoke(app, ["--report", str(tmp_path / "report.html")])
    assert finished.exit_code == 2
    assert "(fastapi missing): pip install 'hydraulis-planner[service,agent]'" in finished.stderr
    assert list(tmp_path.iterdir()) == []
