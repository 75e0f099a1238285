"""Tokens and TLS on the client's side: what is sent, what is trusted, and that no secret shows."""

import asyncio
import logging
import pickle
import ssl
import subprocess
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from moody_planner import MoodyPlanner, moody, refusing, send
from test_client import ask_async, ask_sync

from planner_client import AsyncPlannerClient, HydraulisError, PlannerClient, PlannerUnavailable, RequestRefused
from planner_client.flow import RetryPolicy

SECRET = "hyd_" + "s3cr3t" * 7  # the tests look for it where it must not be
ONE_TRY = RetryPolicy(max_attempts=1)

ask_functions = pytest.mark.parametrize("client", [PlannerClient, AsyncPlannerClient])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for 127.0.0.1 with its key, in one PEM file."""
    directory = tmp_path_factory.mktemp("tls")
    key, cert = directory / "key.pem", directory / "cert.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(cert), "-days", "2", "-subj", "/CN=planner"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    both = directory / "both.pem"
    both.write_text(key.read_text() + cert.read_text())
    return both


def serving(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def profiles(connection: Any, _request: bytes) -> None:
    send(connection, 200, b'{"profiles": []}')


def ask(client: Callable[..., Any], url: str, **options: Any) -> Any:
    made = client(url, timeout_s=2.0, policy=ONE_TRY, **options)
    if isinstance(made, PlannerClient):
        with made:
            return made.profiles()

    async def run() -> Any:
        async with made:
            return await made.profiles()

    return asyncio.run(run())


@ask_functions
def test_a_token_is_sent_as_a_bearer(client: Callable[..., Any]) -> None:
    with moody(profiles) as server:
        assert ask(client, server.url, token=SECRET) == []
        assert f"Authorization: Bearer {SECRET}".lower() in server.heads[0].decode().lower()
        assert ask(client, server.url) == []
        assert b"authorization" not in server.heads[1].lower()


@ask_functions
def test_a_planner_with_a_certificate_of_an_own_authority_is_trusted_where_told(
    client: Callable[..., Any], certificate: Path
) -> None:
    with moody(profiles, serving(certificate)) as server:
        assert ask(client, server.url, ca_file=certificate, token=SECRET) == []
        with pytest.raises(PlannerUnavailable, match=r"(?i)certificate"):
            ask(client, server.url)
        assert len(server.heads) == 1
        with pytest.raises(PlannerUnavailable, match=r"(?i)certificate|hostname|mismatch"):
            ask(client, server.url.replace("127.0.0.1", "localhost"), ca_file=certificate)


@ask_functions
def test_no_secret_shows_in_errors_logs_or_reprs(client: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    shown = [repr(client("http://planner", token=SECRET))]
    with caplog.at_level(logging.DEBUG), moody(refusing) as server:
        with pytest.raises(RequestRefused) as refused:
            ask(client, server.url, token=SECRET)
        server.go()
        with pytest.raises(HydraulisError) as away:
            ask(client, server.url, token=SECRET)
    for error in (refused.value, away.value):
        shown += [str(error), repr(error), *traceback.format_exception(error), repr(pickle.dumps(error))]
    for token in (SECRET + "\n", SECRET + " x", SECRET + "é", ""):
        with pytest.raises(ValueError, match="the token is empty or holds") as bad:
            client("http://planner", token=token)
        shown.append(str(bad.value))
    with pytest.raises(ValueError, match="give token= instead") as bad:
        client(f"http://me:{SECRET}@planner")
    shown += [str(bad.value), caplog.text]
    assert not [text for text in shown if SECRET in text]


@ask_functions
def test_certificates_that_cannot_be_used_are_refused_at_once(client: Callable[..., Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot be read as PEM certificates"):
        client("https://planner", ca_file=tmp_path / "missing.pem")
    (tmp_path / "empty.pem").write_text("nothing")
    with pytest.raises(ValueError, match="cannot be read as PEM certificates"):
        client("https://planner", ca_file=tmp_path / "empty.pem")
    with pytest.raises(ValueError, match="is not an https address"):
        client("http://planner", ca_file=tmp_path / "empty.pem")


@pytest.mark.parametrize("call", [ask_sync, ask_async])
def test_a_token_does_not_follow_a_redirect(call: Callable[..., Any]) -> None:
    with moody(profiles) as elsewhere:

        def redirect(connection: Any, _request: bytes) -> None:
            send(connection, 302, b"", f"Location: {elsewhere.url}/v1/profiles\r\n")

        with moody(redirect) as server, pytest.raises(HydraulisError):
            call(server.url, "profiles")
        assert isinstance(elsewhere, MoodyPlanner)
        assert elsewhere.num_requests == 0
