"""`hydraulis serve` and `hydraulis tokens` in processes of their own: safe defaults, TLS, no secrets in logs."""

import os
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from planner_client.contract import TokenList
from planner_service.access import new_secret
from planner_service.commands.certificate import CertificateUnusable, tls_context
from planner_service.store import SqlStore

if TYPE_CHECKING:
    from served_planner import ServedPlanner

EVERYWHERE = "0.0.0.0"  # noqa: S104 - what a server does about it is tested; callers stay on 127.0.0.1

Serve = Callable[..., "ServedPlanner"]


def tokens(*arguments: str, database: Path) -> "subprocess.CompletedProcess[str]":
    code = "from planner_service.commands.tokens import tokens; tokens(prog_name='hydraulis tokens')"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments, "--database", str(database)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def created(*arguments: str, database: Path) -> str:
    done = tokens("create", *arguments, database=database)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def refused_start(*options: str, env: dict[str, str] | None = None) -> str:
    from served_planner import serve_command  # noqa: PLC0415 - found by conftest's path

    done = subprocess.run(
        serve_command("--port", "0", *options),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **(env or {})},
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("hydraulis serve: ")
    return done.stderr


def openssl(*arguments: str) -> None:
    try:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)  # noqa: S607 - wherever it is
    except FileNotFoundError:
        pytest.fail("these tests need the openssl command: apt-get install openssl")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two certificates of 127.0.0.1 with their keys: a.pem, a.key, b.pem, b.key; and a.key locked: locked.key."""
    directory = tmp_path_factory.mktemp("certificates")
    for name in ("a", "b"):
        openssl(
            *("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"),
            *("-subj", "/CN=planner", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
            *("-keyout", str(directory / f"{name}.key"), "-out", str(directory / f"{name}.pem")),
        )
    locked = str(directory / "locked.key")
    openssl("pkey", "-in", str(directory / "a.key"), "-aes256", "-passout", "pass:secret", "-out", locked)
    return directory


def test_a_token_made_for_a_script_opens_the_service_and_stays_out_of_every_log(
    serve: Serve, tmp_path: Path, certificates: Path
) -> None:
    database = tmp_path / "kept.sqlite3"
    admin = created("ops", "--scope", "admin", database=database)
    assert len(admin.splitlines()) == 1
    options = ("--tls-cert", str(certificates / "a.pem"), "--tls-key", str(certificates / "a.key"))
    server = serve("--workers", "1", "--auth", "tokens", *options, database=database)
    assert server.url.startswith("https://127.0.0.1:")
    trust = ssl.create_default_context(cafile=str(certificates / "a.pem"))
    with httpx.Client(base_url=server.url, verify=trust, timeout=30) as http:
        assert http.get("/v1/jobs").status_code == 401
        answer = http.get("/v1/jobs", headers=bearer(admin))
        assert answer.status_code == 200
        assert answer.headers["strict-transport-security"] == "max-age=31536000"
        given = http.post("/v1/tokens", headers=bearer(admin), json={"name": "t", "scope": "plan"}).json()["token"]
        guessed = new_secret()
        assert http.get("/v1/jobs", headers=bearer(guessed)).status_code == 401
        # Secrets put where they do not belong: they come back to whoever sent them, and into no log.
        http.delete(f"/v1/tokens/{given}", headers=bearer(admin))
        http.get(f"/v1/jobs/{given}", headers={**bearer(admin), "x-request-id": given})
        http.post("/v1/tokens", headers=bearer(admin), content=given)
        metrics = http.get("/metrics", headers=bearer(admin)).text
        audit = http.get("/v1/audit", headers=bearer(admin)).text
    # An answer comes before its line in the log; after the server's end all lines are there.
    assert server.stop() == 0
    assert '"event": "audit"' in server.log
    for secret in (admin, given, guessed):
        assert secret not in server.log + metrics + audit
    assert admin.encode() not in b"".join(path.read_bytes() for path in tmp_path.glob("kept.sqlite3*"))


def test_a_token_revoked_on_the_database_stops_within_five_seconds(serve: Serve, tmp_path: Path) -> None:
    database = tmp_path / "kept.sqlite3"
    token = created("t", "--scope", "read", database=database)
    server = serve("--workers", "1", "--auth", "tokens", database=database)
    with httpx.Client(base_url=server.url, headers=bearer(token), timeout=30) as http:
        assert http.get("/v1/jobs").status_code == 200
        done = tokens("revoke", "t", database=database)
        assert done.returncode == 0
        revoked_at = time.monotonic()
        while http.get("/v1/jobs").status_code == 200:
            assert time.monotonic() - revoked_at < 5.5
            time.sleep(0.05)
        again = created("t", "--scope", "read", database=database)
        assert http.get("/v1/jobs").status_code == 401
        assert http.get("/v1/jobs", headers=bearer(again)).status_code == 200


def test_old_tls_is_refused_and_so_is_plain_http(serve: Serve, certificates: Path) -> None:
    options = ("--tls-cert", str(certificates / "a.pem"), "--tls-key", str(certificates / "a.key"))
    server = serve("--workers", "1", *options)
    port = int(server.url.rpartition(":")[2])

    def handshake(version: ssl.TLSVersion) -> str | None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(certificates / "a.pem")
        # Level 0 lets this side offer what is old, so that the refusal is the server's.
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        context.minimum_version = context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            return secure.version()

    assert handshake(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    assert handshake(ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
    closed_by_server = pytest.raises((ssl.SSLError, ConnectionResetError), match=r"EOF|PROTOCOL_VERSION|reset")
    with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"), closed_by_server:
        handshake(ssl.TLSVersion.TLSv1_1)
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=10)


def test_files_that_are_no_certificate_and_key_are_refused_by_name(certificates: Path, tmp_path: Path) -> None:
    a_pem, a_key = certificates / "a.pem", certificates / "a.key"
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    binary = tmp_path / "binary.pem"
    binary.write_bytes(bytes(range(256)))
    for certificate, key, said in (
        (a_pem, None, "--tls-cert is given without --tls-key; give both"),
        (None, a_key, "--tls-key is given without --tls-cert; give both"),
        (tmp_path / "no.pem", a_key, "no.pem cannot be read: No such file or directory"),
        (a_pem, tmp_path, "cannot be read: Is a directory"),
        (a_pem, certificates / "b.key", "b.key does not belong to the first certificate in"),
        (a_pem, certificates / "locked.key", "locked.key is locked with a passphrase"),
        (empty, a_key, "empty.pem holds no certificate in PEM"),
        (binary, a_key, "binary.pem holds no certificate in PEM"),
        (a_key, a_key, "a.key holds no certificate in PEM"),
        (a_pem, empty, "empty.pem cannot be used for TLS"),
        (a_pem, a_pem, "cannot be used for TLS"),
    ):
        with pytest.raises(CertificateUnusable) as refused:
            tls_context(certificate, key)
        assert said in str(refused.value)
    assert tls_context(None, None) is None


def test_a_server_with_a_wrong_key_does_not_start(certificates: Path, tmp_path: Path) -> None:
    options = ("--tls-cert", str(certificates / "a.pem"), "--tls-key", str(certificates / "locked.key"))
    said = refused_start("--database", str(tmp_path / "p.sqlite3"), *options)
    assert "locked with a passphrase" in said


@pytest.mark.parametrize("host", [EVERYWHERE, "::"])
def test_a_server_that_others_reach_does_not_start_without_auth(host: str, tmp_path: Path) -> None:
    said = refused_start("--database", str(tmp_path / "p.sqlite3"), "--host", host, "--auth", "off")
    assert f"{host} can be reached from other machines" in said
    assert "--allow-anonymous" in said
    assert not (tmp_path / "p.sqlite3").exists()


def test_a_server_that_others_reach_asks_for_tokens_and_says_what_is_missing(serve: Serve) -> None:
    server = serve("--workers", "1", "--host", EVERYWHERE)
    url = server.url.replace(EVERYWHERE, "127.0.0.1")
    assert httpx.get(f"{url}/v1/jobs", timeout=30).status_code == 401
    assert httpx.get(f"{url}/healthz", timeout=30).status_code == 200
    assert "hydraulis tokens create NAME --scope admin" in server.log
    assert '"event": "no_tls"' in server.log


def test_a_server_that_others_reach_can_be_left_open_on_purpose(serve: Serve) -> None:
    server = serve("--workers", "1", "--host", EVERYWHERE, "--allow-anonymous", env={"HYDRAULIS_AUTH": "off"})
    assert httpx.get(server.url.replace(EVERYWHERE, "127.0.0.1") + "/v1/jobs", timeout=30).status_code == 200
    assert '"event": "anonymous"' in server.log


def test_a_server_on_loopback_needs_no_token_and_warns_of_nothing(serve: Serve) -> None:
    server = serve("--workers", "1")
    assert httpx.get(f"{server.url}/v1/jobs", timeout=30).status_code == 200
    assert '"level": "warning"' not in server.log


def test_callers_who_wait_for_a_plan_do_not_hold_up_the_end(serve: Serve) -> None:
    server = serve("--workers", "1")
    spec = {"name": "run", "profile": "llama-7b-a800-80g", "num_gpus": 8, "sources": ["a", "b"]}
    batch = {"lengths": [100, 200]}
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor(1) as threads:
        assert http.post("/v1/jobs", json={**spec, "source_wait_ms": 120_000}).status_code == 201
        assert http.put("/v1/jobs/run/iterations/0/histograms/a", json=batch).status_code == 200
        waiting = threads.submit(http.get, "/v1/jobs/run/iterations/0/plan?wait_ms=50000")
        time.sleep(0.5)
        assert not waiting.done()
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 10.0
        assert waiting.result().status_code in {202, 503}


def test_tokens_are_listed_for_people_and_for_programs(tmp_path: Path) -> None:
    database = tmp_path / "p.sqlite3"
    secret = created("trainer", "--scope", "plan", "--job", "llama-*", "--job", "one", database=database)
    created("reader", "--scope", "read", database=database)
    shown = tokens("list", database=database)
    assert shown.returncode == 0
    assert [line.split()[:3] for line in shown.stdout.splitlines()] == [
        ["name", "scope", "jobs"],
        ["reader", "read", "all"],
        ["trainer", "plan", "llama-*,"],
    ]
    listing = TokenList.model_validate_json(tokens("list", "--json", database=database).stdout)
    assert [(token.name, token.jobs) for token in listing.tokens] == [("reader", None), ("trainer", ["llama-*", "one"])]
    assert secret not in shown.stdout + shown.stderr
    assert tokens("revoke", "reader", database=database).returncode == 0
    store = SqlStore(str(database))
    rows = store.access.audit(after=0, limit=10)
    store.close()
    assert [(row.token, row.action, row.subject) for row in rows] == [
        (None, "create-token", "trainer"),
        (None, "create-token", "reader"),
        (None, "revoke-token", "reader"),
    ]


def test_tokens_that_expire_are_listed_with_their_time_and_leave_a_server_that_nobody_can_call(
    serve: Serve, tmp_path: Path
) -> None:
    database = tmp_path / "planner.sqlite3"
    secret = created("guest", "--scope", "read", "--expires-in", "1s", database=database)
    time.sleep(1.1)
    [shown] = tokens("list", database=database).stdout.splitlines()[1:]
    assert shown.endswith("(expired)")
    server = serve("--workers", "1", "--auth", "tokens", database=database)
    assert "none is valid" in server.log
    answer = httpx.get(f"{server.url}/v1/jobs", headers={"Authorization": f"Bearer {secret}"}, timeout=30)
    assert (answer.status_code, answer.json()["code"]) == (401, "token-expired")
    assert answer.headers["www-authenticate"].startswith("Bearer")
    created("trainer", "--scope", "plan", "--expires-in", "30d", database=database)
    listing = TokenList.model_validate_json(tokens("list", "--json", database=database).stdout)
    [trainer] = [token for token in listing.tokens if token.name == "trainer"]
    assert trainer.expires_at == pytest.approx(trainer.created_at + 30 * 86_400)
    assert not trainer.is_expired


def test_tokens_that_cannot_be_given_or_found_are_refused_in_one_sentence(tmp_path: Path) -> None:
    database = tmp_path / "p.sqlite3"
    missing = tokens("list", database=database)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert f"there is no database {database}" in missing.stderr
    assert not database.exists()
    created("a", "--scope", "read", database=database)
    for arguments, said in (
        (("create", "a", "--scope", "read"), "there is a token named a already; give yours another name"),
        (("create", "a b", "--scope", "read"), "name: String should match pattern"),
        (("create", "b", "--scope", "read", "--job", "a*b"), "String should match pattern"),
        (("create", "b", "--scope", "read", "--expires-in", "soon"), "--expires-in 'soon' is no time; give a number"),
        (("create", "b", "--scope", "read", "--expires-in", "0d"), "expires_in_s: Input should be greater than"),
        (("revoke", "b"), "there is no token named 'b'"),
        (("create", "b", "--scope", "root"), "'root' is not one of"),
    ):
        done = tokens(*arguments, database=database)
        assert (done.returncode, done.stdout) == (2, "")
        assert said in " ".join(done.stderr.replace("│", " ").split())
        assert "Traceback" not in done.stderr
