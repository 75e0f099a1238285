"""Ways past the guard that somebody might try, and what it writes down."""

import json
import time
from dataclasses import replace

import pytest
from asked_app import AskedApp, Tokens, app_on
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from planner_client.contract import NewToken
from planner_service.access import hash_of, is_secret, new_secret
from planner_service.access.record import REFUSALS_AT_ONCE
from planner_service.store import JobRow, SqlStore, StoreUnavailable

WORDS = "v1 jobs mine-1 theirs tokens audit plans iterations 3 histograms plan timings docs healthz metrics profiles"
ODD_WORDS = ["", ".", "..", "%2e", "a/b", "mine-1\n", "\x00", "é", "V1", "*", ";x"]
PIECES = st.sampled_from([*WORDS.split(), *ODD_WORDS])
METHODS = st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "get", "TRACE"])
SPEC = {
    "name": "x",
    "profile": "llama-7b-a800-80g",
    "num_gpus": 8,
    "sources": ["node-0"],
    "strategies": [[{"tp": 8, "pp": 1, "num_replicas": 1}]],
}


@pytest.fixture
def reader(asked: AskedApp) -> str:
    return asked.tokens.give("read")


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(method=METHODS, pieces=st.lists(PIECES, max_size=8))
def test_the_guard_and_the_router_agree_about_every_address(
    method: str, pieces: list[str], asked: AskedApp, reader: str
) -> None:
    """Whatever address is asked for:

    1. without a token, only what is open is answered otherwise than with 401;
    2. with a token, the route that serves a request is the one that the guard decided about.
    """
    path = "/" + "/".join(pieces)
    stranger = asked.ask(method, path)
    assert stranger.status == 401 or path.split("/")[1] in {"", "healthz", "readyz", "docs", "openapi.json"}
    asked_again = asked.ask(method, path, reader)
    route = asked_again.scope.get("route")
    if route is not None and asked_again.status not in {404, 405}:
        assert route.path == asked_again.scope["hydraulis.template"]


@pytest.mark.parametrize("path", ["/v1/tokens/", "//v1/tokens", "/v1//tokens", "/V1/tokens", "/v1/./tokens"])
def test_spelling_an_address_otherwise_opens_nothing(path: str, asked: AskedApp) -> None:
    assert asked.ask("GET", path).status == 401
    assert asked.ask("GET", path, asked.tokens.give("read")).status == 404


def test_a_method_that_is_not_offered_is_said_to_holders_of_a_token(asked: AskedApp) -> None:
    assert asked.ask("PATCH", "/v1/tokens").status == 401
    answer = asked.ask("PATCH", "/v1/tokens", asked.tokens.give("read"))
    assert (answer.status, answer.json["code"]) == (405, "method-not-allowed")


def test_a_job_of_a_foreign_name_cannot_be_registered(asked: AskedApp, store: SqlStore) -> None:
    token = asked.tokens.give("plan", "mine-*")
    foreign = asked.ask("POST", "/v1/jobs", token, body=json.dumps({**SPEC, "name": "theirs"}).encode())
    assert (foreign.status, foreign.json["code"]) == (403, "forbidden")
    assert store.jobs.get("theirs") is None
    own = asked.ask("POST", "/v1/jobs", token, body=json.dumps({**SPEC, "name": "mine-1"}).encode())
    assert own.status == 201


def test_a_list_of_jobs_shows_a_token_its_own_and_names_no_other(asked: AskedApp) -> None:
    registrar = asked.tokens.give("plan")
    names = ["a", "mine", "mine-1", "mine-2", "mine-2-b", "mine-3", "minf", "z"]
    for name in names:
        answer = asked.ask("POST", "/v1/jobs", registrar, body=json.dumps({**SPEC, "name": name}).encode())
        assert answer.status == 201
    token = asked.tokens.give("read", "z", "mine-2*", "mine-*", "nothing-*")
    seen: list[str] = []
    after = ""
    while True:
        page = asked.ask("GET", f"/v1/jobs?limit=2&after={after}", token).json
        seen += [job["name"] for job in page["jobs"]]
        if page["next_after"] is None:
            break
        after = page["next_after"]
        assert after in seen
    assert seen == ["mine-1", "mine-2", "mine-2-b", "mine-3", "z"]
    assert [job["name"] for job in asked.ask("GET", "/v1/jobs", registrar).json["jobs"]] == names


def test_a_token_given_over_http_works_and_stops_when_it_is_revoked(asked: AskedApp) -> None:
    admin = asked.tokens.give("admin")
    wanted = {"name": "trainer", "scope": "plan", "jobs": ["mine-*"]}
    answer = asked.ask("POST", "/v1/tokens", admin, body=json.dumps(wanted).encode())
    assert answer.status == 201
    given = NewToken.model_validate_json(answer.body)
    assert is_secret(given.token)
    assert given.token not in repr(given)
    assert asked.ask("GET", "/v1/jobs", given.token).status == 200
    listed = asked.ask("GET", "/v1/tokens", admin)
    assert given.token.encode() not in listed.body
    assert hash_of(given.token).encode() not in listed.body
    assert [token["jobs"] for token in listed.json["tokens"] if token["name"] == "trainer"] == [["mine-*"]]
    assert asked.ask("POST", "/v1/tokens", admin, body=json.dumps(wanted).encode()).json["code"] == "token-conflict"
    assert asked.ask("DELETE", "/v1/tokens/trainer", admin).status == 204
    assert asked.ask("GET", "/v1/jobs", given.token).status == 401
    assert asked.ask("DELETE", "/v1/tokens/trainer", admin).status == 404


def test_a_token_with_a_lifetime_works_until_it_has_expired_and_is_told_so(asked: AskedApp) -> None:
    admin = asked.tokens.give("admin")
    wanted = {"name": "guest", "scope": "read", "expires_in_s": 2}
    given = NewToken.model_validate_json(asked.ask("POST", "/v1/tokens", admin, body=json.dumps(wanted).encode()).body)
    assert given.expires_at == pytest.approx(given.created_at + 2)
    assert asked.ask("GET", "/v1/jobs", given.token).status == 200
    # Remembered for less than the seconds that other tokens are.
    time.sleep(2.1)
    for path in ("/v1/jobs", "/nothing/here"):
        answer = asked.ask("GET", path, given.token)
        assert (answer.status, answer.json["code"]) == (401, "token-expired")
    listed = {token["name"]: token for token in asked.ask("GET", "/v1/tokens", admin).json["tokens"]}
    assert (listed["guest"]["expires_at"], listed["guest"]["is_expired"]) == (given.expires_at, True)
    assert [token["expires_at"] for name, token in listed.items() if name != "guest"] == [None]
    assert asked.ask("DELETE", "/v1/tokens/guest", admin).status == 204
    assert asked.ask("GET", "/v1/jobs", given.token).json["code"] == "unauthenticated"


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "x", "scope": "read", "expires_in_s": 0},
        {"name": "x", "scope": "read", "expires_in_s": 1.5},
        {"name": "x", "scope": "read", "expires_in_s": 10**12},
        {"name": "x"},
        {"name": "x", "scope": "root"},
        {"name": "x y", "scope": "read"},
        {"name": "x", "scope": "read", "jobs": []},
        {"name": "x", "scope": "read", "jobs": ["a*b"]},
        {"name": "x", "scope": "read", "jobs": ["**"]},
        {"name": "x", "scope": "read", "secret": "mine"},
    ],
)
def test_a_token_that_cannot_be_given_is_refused(wrong: dict[str, object], asked: AskedApp) -> None:
    answer = asked.ask("POST", "/v1/tokens", asked.tokens.give("admin"), body=json.dumps(wrong).encode())
    assert (answer.status, answer.json["code"]) == (422, "invalid-request")


def entries(store: SqlStore) -> list[tuple[str | None, str, str, str]]:
    rows = store.access.audit(after=0, limit=1000)
    return [(row.token, row.action, row.subject, row.outcome) for row in rows]


def test_what_administrators_did_and_what_was_refused_is_recorded(asked: AskedApp, store: SqlStore) -> None:
    store.jobs.put(JobRow("theirs", b"{}"))
    admin, planner = asked.tokens.give("admin"), asked.tokens.give("plan")
    with capture_logs() as logs:
        asked.ask("DELETE", "/v1/jobs/theirs", planner)
        asked.ask("DELETE", "/v1/jobs/theirs")
        asked.ask("DELETE", "/v1/jobs/theirs", new_secret())
        asked.ask("DELETE", "/v1/jobs/theirs", admin)
        asked.ask("DELETE", "/v1/jobs/theirs", admin)
        asked.ask("POST", "/v1/tokens", admin, body=b'{"name": "new", "scope": "read"}')
        asked.ask("DELETE", "/v1/tokens/new", admin)
        asked.ask("GET", "/v1/tokens", planner)
        asked.ask("GET", "/v1/audit", planner)
        asked.ask("GET", "/v1/tokens", admin)
        asked.ask("GET", "/v1/jobs", planner)
    expected = [
        ("plan-2", "delete-job", "theirs", "refused"),
        (None, "delete-job", "theirs", "refused"),
        (None, "delete-job", "theirs", "refused"),
        ("admin-1", "delete-job", "theirs", "done"),
        ("admin-1", "create-token", "new", "done"),
        ("admin-1", "revoke-token", "new", "done"),
        ("plan-2", "list-tokens", "", "refused"),
        ("plan-2", "read-audit", "", "refused"),
    ]
    assert entries(store) == expected
    logged = [line for line in logs if line["event"] == "audit"]
    assert [(line["token"], line["action"], line["subject"], line["outcome"]) for line in logged] == expected
    first = asked.ask("GET", "/v1/audit?limit=5", admin).json
    rest = asked.ask("GET", f"/v1/audit?limit=5&after={first['next_after']}", admin).json
    assert [entry["action"] for entry in first["entries"] + rest["entries"]] == [entry[1] for entry in expected]
    assert rest["next_after"] is None


def test_without_tokens_what_is_deleted_is_recorded_all_the_same(open_app: AskedApp, store: SqlStore) -> None:
    store.jobs.put(JobRow("theirs", b"{}"))
    assert open_app.ask("DELETE", "/v1/jobs/theirs").status == 204
    assert entries(store) == [(None, "delete-job", "theirs", "done")]


def test_strangers_cannot_fill_the_store_with_refusals(asked: AskedApp, store: SqlStore) -> None:
    for number in range(REFUSALS_AT_ONCE + 50):
        asked.ask("DELETE", f"/v1/jobs/j{number}")
    assert REFUSALS_AT_ONCE <= len(entries(store)) <= REFUSALS_AT_ONCE + 10


def test_a_subject_is_recorded_short_printable_and_without_secrets(asked: AskedApp, store: SqlStore) -> None:
    secret = new_secret()
    asked.ask("DELETE", "/v1/jobs/a\x00\x1b[2Jb\n" + "x" * 5000)
    asked.ask("DELETE", f"/v1/tokens/{secret}", asked.tokens.give("admin"))
    asked.ask("DELETE", f"/v1/tokens/{secret}")
    subjects = [subject for _, _, subject, _ in entries(store)]
    assert len(subjects) == 2
    assert subjects[0].startswith("a??[2Jb?xxx")
    assert len(subjects[0]) == 200
    assert subjects[1] == "hyd_***"


class LostAccess:
    """Tokens in a database that is gone."""

    def __getattr__(self, name: str) -> object:
        def refuse(*_: object, **__: object) -> None:
            raise StoreUnavailable(f"database postgresql://planner:***@db.internal/x is gone ({name})")

        return refuse


def test_a_lost_store_lets_nobody_in_and_tells_strangers_nothing_of_it(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = AskedApp(app_on(store), Tokens(store.access))
    token = asked.tokens.give("admin")
    monkeypatch.setattr(store, "access", LostAccess())
    lost = AskedApp(app_on(store), asked.tokens)
    with capture_logs() as logs:
        answer = lost.ask("GET", "/v1/tokens", token)
    assert (answer.status, answer.json["code"], answer.headers["retry-after"]) == (503, "store-unavailable", "1")
    assert b"db.internal" not in answer.body
    assert any("db.internal" in line.get("detail", "") for line in logs)
    assert lost.ask("GET", "/healthz").status == 200
    assert lost.ask("GET", "/v1/tokens").status == 401


def test_a_scope_from_a_newer_version_allows_nothing_here(asked: AskedApp, store: SqlStore) -> None:
    secret = new_secret()
    asked.tokens.give("read")
    row = replace(store.access.tokens()[0], name="odd", secret_hash=hash_of(secret), scope="owner")
    store.access.put_token(row)
    assert asked.ask("GET", "/v1/jobs", secret).status == 403


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "[::1].evil.example"])
def test_a_page_whose_name_resolves_to_this_machine_is_refused(host: str, open_app: AskedApp) -> None:
    answer = open_app.ask("GET", "/v1/jobs", headers=[("host", host)])
    assert (answer.status, answer.json["code"], answer.num_body_reads) == (403, "forbidden", 0)
    assert open_app.ask("GET", "/healthz", headers=[("host", host)]).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9999", "http://localhost:8000"])
def test_a_foreign_page_cannot_post_to_a_service_without_tokens(origin: str, open_app: AskedApp) -> None:
    headers = [("host", "127.0.0.1:8000"), ("origin", origin)]
    for method, path in (("POST", "/v1/jobs"), ("DELETE", "/v1/jobs/x"), ("POST", "/v1/tokens")):
        assert open_app.ask(method, path, headers=headers).status == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "[::1]:8000", "app.localhost", "planner", ""])
def test_programs_and_the_own_viewer_reach_a_service_without_tokens(host: str, open_app: AskedApp) -> None:
    assert open_app.ask("GET", "/v1/jobs", headers=[("host", host)]).status == 200
    if host:
        headers = [("host", host), ("origin", f"http://{host}")]
        assert open_app.ask("POST", "/v1/jobs", headers=headers).status == 422


def test_where_auth_is_off_any_name_will_do(store: SqlStore) -> None:
    app = AskedApp(app_on(store, auth="off"), Tokens(store.access))
    assert app.ask("GET", "/v1/jobs", headers=[("host", "planner.example")]).status == 200


def test_refusals_are_counted_by_route(asked: AskedApp) -> None:
    asked.ask("DELETE", "/v1/jobs/some-job")
    metrics = asked.ask("GET", "/metrics", asked.tokens.give("read")).body.decode()
    assert 'hydraulis_http_requests_total{method="DELETE",route="/v1/jobs/{job}",status="401"} 1.0' in metrics
    assert "some-job" not in metrics


def test_the_store_has_a_hash_and_no_secret(asked: AskedApp, store: SqlStore) -> None:
    secret = asked.tokens.give("read")
    row = store.access.token_with_hash(hash_of(secret))
    assert row is not None
    assert secret not in repr(row)
    assert store.access.token_with_hash(secret) is None
