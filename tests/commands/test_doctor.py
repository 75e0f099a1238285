"""`hydraulis doctor` and `hydraulis version`: what is looked at, what is said of it, and how they end."""

import json
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint, EntryPoints, version
from pathlib import Path
from typing import Any

import pytest
from command_line import Done, hydraulis

from planner_client.doctor import environment
from planner_client.doctor.finding import Finding, is_fit
from planner_client.doctor.service import access, clock, reached, readiness

NOW = 1_780_000_000.0
"""Thu, 28 May 2026 20:26:40 GMT."""


def findings(done: Done) -> dict[str, dict[str, Any]]:
    return {finding["subject"]: finding for finding in json.loads(done.out)}


def test_a_machine_and_a_service_that_are_fit_are_found_so(planner: str) -> None:
    told = findings(hydraulis("doctor", "--json"))
    for subject in ("python", "client", "service", "agent", "solver", "clock", "version", "solvers", "access"):
        assert told[subject]["verdict"] == "ok", told[subject]
    assert told["access"]["observation"] == "open without a token"
    shown = hydraulis("doctor", "--url", planner)
    assert shown.code == 0, shown.err
    assert "subject" in shown.out
    assert "1 ready" in shown.out


def test_without_a_service_this_machine_alone_is_looked_at() -> None:
    assert set(findings(hydraulis("doctor", "--offline", "--json"))) >= {"python", "solver", "database", "devices"}


def test_a_service_that_is_not_there_fails_with_what_to_do() -> None:
    done = hydraulis("doctor", "--url", "http://127.0.0.1:9", "--json")
    assert done.code == 1
    assert findings(done)["service"]["verdict"] == "failed"
    assert "hydraulis serve" in findings(done)["service"]["remedy"]
    assert "things looked at failed" in done.err


def test_a_token_that_is_missing_or_wrong_is_told_with_what_to_do(guarded: tuple[str, Callable[..., str]]) -> None:
    url, give = guarded
    assert findings(hydraulis("doctor", "--url", url, "--json"))["access"]["verdict"] == "failed"
    wrong = hydraulis("doctor", "--url", url, "--token", "hydraulis_wrong", "--json")
    assert findings(wrong)["access"]["verdict"] == "failed"
    assert "hydraulis_wrong" not in wrong.out
    right = hydraulis("doctor", "--url", url, "--token", give("read"), "--json")
    assert (right.code, findings(right)["access"]["observation"]) == (0, "open with the token given")


@pytest.mark.parametrize("options", [("--url", "no address"), ("--token", "two words"), ("--ca-file", "/none")])
def test_options_that_cannot_be_used_end_in_one_sentence(options: tuple[str, str]) -> None:
    done = hydraulis("doctor", *options)
    assert done.code == 2
    assert done.err.count("\n") == 1


def test_a_service_that_says_nothing_is_given_up_in_time() -> None:
    from misbehaving_server import hang, misbehaving  # noqa: PLC0415 - found by conftest's path

    with misbehaving(hang) as server:
        began_at = time.monotonic()
        done = hydraulis("doctor", "--url", server.url, "--timeout", "0.3", "--json")
        assert time.monotonic() - began_at < 15
    assert findings(done)["service"]["verdict"] == "failed"


def test_a_database_is_named_and_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "planner.sqlite3"
    monkeypatch.setenv("HYDRAULIS_DATABASE", str(file))
    assert "makes it" in findings(hydraulis("doctor", "--offline", "--json"))["database"]["observation"]
    assert not file.exists()
    assert hydraulis("tokens", "create", "one", "--scope", "read", "--database", str(file)).code == 0
    before = file.read_bytes()
    told = findings(hydraulis("doctor", "--offline", "--json"))["database"]
    assert (told["verdict"], file.read_bytes()) == ("ok", before)
    file.write_bytes(b"no database" * 1000)
    assert findings(hydraulis("doctor", "--offline", "--json"))["database"]["verdict"] == "failed"


def test_a_setting_that_cannot_be_used_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRAULIS_WORKERS", "none")
    done = hydraulis("doctor", "--offline", "--json")
    assert done.code == 1
    assert "HYDRAULIS_WORKERS" in findings(done)["settings"]["observation"]


def test_a_part_that_lacks_a_package_is_told_from_one_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environment.PARTS, "service", ("httpx", "no-such-package"))
    monkeypatch.setitem(environment.PARTS, "agent", ("no-such-package",))
    lacking, absent = environment.look_at_packages("service"), environment.look_at_packages("agent")
    assert (lacking.verdict, lacking.remedy) == ("failed", "pip install 'hydraulis-planner[service]'")
    assert "missing: no-such-package" in lacking.observation
    assert absent.verdict == "note"


@pytest.mark.parametrize(
    ("date", "verdict"),
    [
        ("Thu, 28 May 2026 20:26:40 GMT", "ok"),
        ("Thu, 28 May 2026 20:26:37 GMT", "ok"),
        ("Thu, 28 May 2026 20:25:40 GMT", "warning"),
        ("Thu, 28 May 2026 20:28:40 GMT", "warning"),
        ("soon", "note"),
        (None, "note"),
    ],
)
def test_clocks_are_compared_to_the_second(date: str | None, verdict: str) -> None:
    told = clock({} if date is None else {"date": date}, NOW)
    assert told.verdict == verdict
    assert ("ahead of" in told.observation) == (date == "Thu, 28 May 2026 20:25:40 GMT")


def test_what_answers_is_judged_by_status_time_and_version() -> None:
    ours = version("hydraulis-planner")

    def verdicts(status: int, document: dict[str, Any], took_ms: float = 1.0) -> list[str]:
        return [finding.verdict for finding in reached("http://x", status, document, took_ms)]

    assert verdicts(200, {"status": "ok", "version": ours}) == ["ok", "ok"]
    assert verdicts(200, {"status": "ok", "version": ours}, 900.0) == ["warning", "ok"]
    assert verdicts(200, {"status": "ok", "version": "99.0.0"}) == ["ok", "warning"]
    assert verdicts(200, {"status": "ok", "version": None}) == ["ok", "warning"]
    assert verdicts(200, {}) == ["failed"]
    assert verdicts(404, {"status": "ok"}) == ["failed"]
    assert readiness(503, {"detail": "no solver", "remedy": "wait"}) == Finding(
        "solvers", "failed", "no solver", "wait"
    )
    assert access(500, {}, has_token=True).remedy == "look into the service's log"


def test_a_check_that_breaks_is_a_finding_and_one_of_a_part_that_is_not_installed_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = [
        EntryPoint("broken", "worker_agent.commands.checks:there_is_none", environment.CHECKS_GROUP),
        EntryPoint("absent", "planner_service.commands.checks:there_is_none", environment.CHECKS_GROUP),
    ]
    monkeypatch.setattr(environment, "entry_points", lambda *, group: EntryPoints(entries).select(group=group))
    monkeypatch.setitem(environment.PARTS, "service", ("no-such-package",))
    (told,) = environment.look_with_other_parts()
    assert (told.subject, told.verdict) == ("broken", "failed")
    assert "AttributeError" in told.observation


def test_a_finding_that_is_wrong_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="give a remedy"):
        Finding("clock", "warning", "late")
    with pytest.raises(ValueError, match="verdict of clock is 'fine'"):
        Finding.of(("clock", "fine", "", ""))
    assert is_fit([Finding("a", "warning", "b", "c")])
    assert not is_fit([Finding("a", "failed", "b", "c")])


def test_versions_are_shown_to_people_and_to_machines() -> None:
    told = hydraulis("version", "--json").json()
    assert told["hydraulis-planner"] == version("hydraulis-planner")
    assert told["torch"].startswith("2.13.0")
    assert f"hydraulis-planner  {version('hydraulis-planner')}" in hydraulis("version").out
