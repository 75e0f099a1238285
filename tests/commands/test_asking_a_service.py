"""Where the service is, who asks, and what a command says when it gets no answer to use."""

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import apart, hydraulis
from contents import PROFILE, RUN, spec

from planner_client import PlannerClient
from planner_client.commands.service import MAX_TIMEOUT_S

Guarded = tuple[str, Callable[..., str]]

DIGEST = f"sha256:{'0' * 64}"
COMMANDS = {
    "jobs list": (),
    "jobs show": ("a",),
    "jobs export": (),
    "jobs delete": ("a", "--yes"),
    "iterations list": ("a",),
    "iterations show": ("a", "0"),
    "iterations export": ("a",),
    "plans list": (),
    "plans show": (DIGEST,),
    "plans export": (),
    "plans delete": (DIGEST, "--yes"),
    "profiles list": (),
    "profiles show": ("a",),
    "profiles export": (),
    "profiles delete": ("a", "--yes"),
}
NOWHERE = "http://127.0.0.1:9"


def refused(*arguments: str, code: int = 2) -> str:
    done = hydraulis(*arguments)
    assert (done.code, done.out) == (code, ""), done
    assert done.err.count("\n") == 1, done.err
    assert done.err.startswith("hydraulis ")
    assert "Traceback" not in done.err
    return done.said


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_that_nobody_answers_and_where_it_asked(command: str) -> None:
    began = time.monotonic()
    said = refused(*command.split(), *COMMANDS[command], "--url", NOWHERE, "--timeout", "0.3", code=1)
    assert time.monotonic() - began < 5
    assert said.startswith(f"hydraulis {command}: the planner at {NOWHERE} did not answer in time: ")
    assert "Connection refused" in said
    assert said.endswith("raise --timeout, or look there")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_that_what_answers_is_no_planner(command: str) -> None:
    from misbehaving_server import misbehaving, reply  # noqa: PLC0415 - found by conftest's path

    for reaction in (
        reply(200, b"rubbish"),
        reply(200, b"{}"),
        reply(200, b"<html>", media_type="text/html"),
        reply(404, b"<html>\x1b[31m", media_type="text/html"),
        reply(302, b"", headers="Location: http://127.0.0.1:9/\r\n"),
        reply(200, json.dumps({"jobs": [{}], "plans": [{}], "profiles": [{}], "iterations": 7}).encode()),
    ):
        with misbehaving(reaction) as server:
            said = refused(*command.split(), *COMMANDS[command], "--url", server.url, code=1)
            assert f"the planner at {server.url} gave no answer to use: " in said
            assert said.endswith("give another --url, or look there")


def test_a_server_that_says_nothing_or_breaks_off_is_not_waited_for_longer_than_the_timeout() -> None:
    from misbehaving_server import close, hang, misbehaving, raw, trickle  # noqa: PLC0415 - found by conftest's path

    for reaction in (hang, close, raw(b"\0\xff" * 50), trickle(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n")):
        with misbehaving(reaction) as server:
            began = time.monotonic()
            said = refused("jobs", "list", "--url", server.url, "--timeout", "0.5", code=1)
            assert time.monotonic() - began < 3
            assert "raise --timeout" in said


@pytest.mark.parametrize("status", [500, 503])
def test_a_planner_in_trouble_is_asked_again_and_then_said_to_be_in_trouble(status: int) -> None:
    from misbehaving_server import misbehaving, reply  # noqa: PLC0415 - found by conftest's path

    problem = {"type": "urn:x", "title": "x", "status": status, "code": "x", "detail": "the disk \x1b[31mis full"}
    with misbehaving(reply(status, json.dumps(problem).encode())) as server:
        said = refused("jobs", "list", "--url", server.url, "--timeout", "1", code=1)
        assert r"the disk \x1b[31mis full" in said
        assert (server.num_requests > 1) == (status == 503)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--url", "ftp://host"), "'ftp://host' is not an http URL; give one like http://host:8000"),
        (("--url", ""), "planner address '' is not an http URL"),
        (("--url", "host:8000"), "is not an http URL"),
        (("--url", "http://[bad"), "cannot be read"),
        (("--url", "http://me:hidden@host"), "holds a user name or password; give --token instead"),
        (("--token", "a b"), "the token is empty or holds spaces"),
        (("--token", "ä"), "the token is empty or holds spaces, line ends or characters that no header can carry"),
        (("--ca-file", "ca.pem"), "--ca-file is given but 'http://127.0.0.1:8000' is not an https address"),
        (("--url", "https://host", "--ca-file", "none.pem"), "--ca-file 'none.pem' cannot be read as PEM certificates"),
    ],
)
def test_what_is_wrong_with_the_services_options_is_said_in_their_words(options: tuple[str, ...], said: str) -> None:
    answered = refused("jobs", "list", *options)
    assert said in answered
    assert "hidden" not in answered


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "1e300", "soon", str(MAX_TIMEOUT_S + 1)])
def test_a_time_that_no_one_can_wait_is_refused(timeout: str) -> None:
    done = hydraulis("jobs", "list", f"--timeout={timeout}")
    assert (done.code, done.out) == (2, "")
    assert "Invalid value for '--timeout'" in done.said
    assert "Traceback" not in done.err


def test_the_longest_time_can_be_waited(filled: str) -> None:
    assert hydraulis("jobs", "list", "--url", filled, "--timeout", str(MAX_TIMEOUT_S)).code == 0


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("jobs show", "../x"),
        ("jobs show", ""),
        ("jobs export", "a b"),
        ("jobs delete", "x" * 129),
        ("iterations list", ".x"),
        ("iterations export", "x\x1b[31m"),
        ("profiles show", "a/b"),
        ("profiles export", "ä"),
        ("profiles delete", "a?b=c#d"),
    ],
)
def test_a_name_that_nothing_can_have_is_refused_before_anything_is_asked(command: str, name: str) -> None:
    kind = "profile" if command.startswith("profiles") else "job"
    said = refused(*command.split(), "--url", NOWHERE, "--", name)
    assert f"no {kind} can be called " in said
    assert "names begin with a letter or digit and have at most 128 of A-Z a-z 0-9 . _ -" in said
    assert len(said) < 250


@pytest.mark.parametrize("command", ["plans show", "plans export", "plans delete"])
@pytest.mark.parametrize("text", ["abc", "sha256:" + "g" * 64, "md5:" + "0" * 64, "0" * 65, ""])
def test_what_is_no_digest_is_refused_before_anything_is_asked(command: str, text: str) -> None:
    said = refused(*command.split(), text, "--url", NOWHERE)
    assert "is no plan's digest; give all its 64 digits, as `hydraulis plans list` prints them" in said


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("jobs", "show", "nobody"), "there is no job 'nobody' [unknown-job]"),
        (("iterations", "list", "nobody"), "there is no job 'nobody' [unknown-job]"),
        (("iterations", "show", "nobody", "0"), "there is no job 'nobody' [unknown-job]"),
        (("iterations", "export", "nobody"), "there is no job 'nobody' [unknown-job]"),
        (("profiles", "show", "nobody"), "there is no profile 'nobody' [unknown-profile]"),
        (("plans", "show", DIGEST), f"there is no plan with digest '{DIGEST}' [not-found]"),
    ],
)
@pytest.mark.usefixtures("planner")
def test_what_is_not_there_is_said_with_what_lists_those_that_are(arguments: tuple[str, ...], said: str) -> None:
    answered = refused(*arguments)
    assert said in answered
    if "plans" not in arguments:
        assert re.search(r"name one that `hydraulis (jobs|profiles) list` lists", answered)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("jobs", "list", "--limit", "0"), "Invalid value for '--limit'"),
        (("plans", "list", "--after=-1"), "Invalid value for '--after'"),
        (("iterations", "show", "a", "one"), "Invalid value for 'iteration'"),
        (("iterations", "show", "a", str(2**53 + 1)), "Invalid value for 'iteration'"),
        (("iterations", "show", "a"), "Missing argument"),
        (("jobs", "delete"), "Missing argument"),
        (("jobs", "list", "--nonsense"), "No such option"),
    ],
)
def test_wrong_options_and_arguments_are_named(arguments: tuple[str, ...], said: str) -> None:
    done = hydraulis(*arguments)
    assert (done.code, done.out) == (2, "")
    assert said in done.said


def test_the_service_is_named_by_option_then_by_environment_then_it_is_this_machines(
    filled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "http://127.0.0.1:8000" in hydraulis("jobs", "list", "--help").out
    monkeypatch.setenv("HYDRAULIS_URL", filled)
    assert hydraulis("jobs", "show", RUN).code == 0
    assert hydraulis("jobs", "show", RUN, "--url", NOWHERE, "--timeout", "0.2").code == 1
    monkeypatch.setenv("HYDRAULIS_URL", NOWHERE)
    assert hydraulis("jobs", "show", RUN, "--url", f"{filled}/").code == 0


def test_a_token_is_asked_for_with_the_scope_it_needs(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    url, give = guarded
    monkeypatch.setenv("HYDRAULIS_URL", url)
    for command, arguments in COMMANDS.items():
        scope = "admin" if command.endswith("delete") else "read"
        assert f"a token with scope {scope}; " in refused(*command.split(), *arguments)
    assert "give one with HYDRAULIS_TOKEN or --token [" in refused("jobs", "list")
    wrong = give("read")[:-1] + "!"
    said = refused("jobs", "list", "--token", wrong)
    assert wrong not in said
    assert "give one with HYDRAULIS_TOKEN or --token [" in said
    assert hydraulis("jobs", "list", "--token", "").code == 2


def test_a_token_comes_from_the_environment_or_an_option_and_is_shown_nowhere(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, give = guarded
    secret, other = give("read"), give("read", "nothing-*")
    monkeypatch.setenv("HYDRAULIS_URL", url)
    monkeypatch.setenv("HYDRAULIS_TOKEN", secret)
    shown = [
        hydraulis("profiles", "list"),
        hydraulis("profiles", "show", PROFILE),
        hydraulis("plans", "list"),
        apart("jobs", "list"),
    ]
    assert [done.code for done in shown] == [0] * len(shown)
    shown += [
        hydraulis("jobs", "list", "--help"),
        hydraulis("jobs", "show", "nobody"),
        hydraulis("jobs", "list", "--nonsense"),
        hydraulis("jobs", "list", "--url", NOWHERE, "--timeout", "0.2"),
        hydraulis("plans", "list", "--token", other),
    ]
    assert [done.code for done in shown[4:]] == [0, 2, 2, 1, 2]
    for done in shown:
        assert secret not in done.out + done.err
        assert other not in done.out + done.err


def test_a_token_sees_its_own_jobs_and_may_do_what_its_scope_allows(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, give = guarded
    admin, reader = give("admin"), give("read", "mine-*")
    with PlannerClient(url, token=admin) as client:
        for name in ("mine-1", "theirs"):
            client.register_job(spec(name))
    monkeypatch.setenv("HYDRAULIS_URL", url)
    monkeypatch.setenv("HYDRAULIS_TOKEN", reader)
    assert [job["name"] for job in hydraulis("jobs", "list", "--json").json()] == ["mine-1"]
    assert [job["name"] for job in hydraulis("jobs", "export").json()] == ["mine-1"]
    for arguments in (("jobs", "show", "theirs"), ("plans", "list"), ("jobs", "delete", "mine-1", "--yes")):
        assert "[forbidden]" in refused(*arguments)
    monkeypatch.setenv("HYDRAULIS_TOKEN", admin)
    assert hydraulis("jobs", "delete", "mine-1", "theirs", "--yes").code == 0
    assert hydraulis("jobs", "list", "--json").json() == []


def test_a_refusal_is_the_same_in_a_process_of_its_own() -> None:
    arguments = ("jobs", "show", "../x")
    assert apart(*arguments) == hydraulis(*arguments)
    done = apart("jobs", "list", "--timeout", "0.2", env={"HYDRAULIS_URL": NOWHERE})
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize("group", ["jobs", "iterations", "plans", "profiles"])
def test_help_describes_every_command_and_option(group: str) -> None:
    listed = hydraulis(group, "--help")
    assert listed.code == 0
    for command, arguments in COMMANDS.items():
        if command.split()[0] != group:
            continue
        assert f" {command.split()[1]} " in listed.out
        shown = hydraulis(*command.split(), "--help")
        assert shown.code == 0
        for option in (
            "--url",
            "--token",
            "--ca-file",
            "--timeout",
            *(one for one in arguments if one.startswith("--")),
        ):
            assert f" {option} " in shown.out
        for variable in ("HYDRAULIS_URL", "HYDRAULIS_TOKEN", "HYDRAULIS_CA_FILE"):
            assert variable in shown.out
    nothing = hydraulis(group)
    assert (nothing.code, "Usage" in nothing.out + nothing.err) == (2, True)


def test_a_certificate_is_checked_against_the_file_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from served_planner import servers  # noqa: PLC0415 - found by conftest's path

    mine, other, key = tmp_path / "mine.pem", tmp_path / "other.pem", tmp_path / "planner.key"
    for certificate in (other, mine):  # the key of the last one is kept
        made = ("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
        named = ("-subj", "/CN=planner", "-addext", "subjectAltName=IP:127.0.0.1")
        command = ["openssl", *made, *named, "-keyout", str(key), "-out", str(certificate)]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    with servers(tmp_path) as start:
        url = start("--workers", "1", "--tls-cert", str(mine), "--tls-key", str(key)).url
        monkeypatch.setenv("HYDRAULIS_URL", url)
        assert hydraulis("profiles", "list", "--ca-file", str(mine)).code == 0
        for trusted in ((), ("--ca-file", str(other))):
            said = refused("profiles", "list", "--timeout", "1", *trusted, code=1)
            assert "CERTIFICATE_VERIFY_FAILED" in said
            assert "give the certificates to trust with --ca-file or HYDRAULIS_CA_FILE" in said
        monkeypatch.setenv("HYDRAULIS_CA_FILE", str(mine))
        assert hydraulis("profiles", "list").code == 0
    mine.write_text("no certificate")
    assert "cannot be read as PEM certificates" in refused("profiles", "list")
