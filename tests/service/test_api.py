"""The routes, asked inside the test's process; solver processes are real."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient
from served_planner import wait_until
from structlog.testing import capture_logs

from planner_client.contract import FaultCode, Plan, Problem, Profile, ProfileList
from planner_service.api import create_app
from planner_service.desk.problem_documents import STATUS_BY_CODE
from planner_service.profiles import builtin_profiles
from planner_service.settings import Settings

BUILTIN = "llama-7b-a800-80g"
PLAIN_REQUEST: dict[str, Any] = {"profile": BUILTIN, "num_gpus": 8, "lengths": [100, 200, 200]}


def settings(tmp_path: Path, **changes: Any) -> Settings:
    values = {"database": str(tmp_path / "planner.sqlite3"), "workers": 1, "max_body_bytes": 200_000, **changes}
    return Settings(**values)


def client_of(tmp_path: Path, planner: str = "obliging", **changes: Any) -> TestClient:
    app = create_app(settings(tmp_path, **changes), solve_name=f"misbehaving_planner:{planner}")
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    with client_of(tmp_path_factory.mktemp("api"), body_timeout_s=5) as client:
        yield client


def problem_of(answer: httpx.Response) -> Problem:
    assert answer.headers["content-type"] == "application/problem+json"
    problem = Problem.model_validate_json(answer.content)
    assert problem.status == answer.status_code
    assert problem.type == f"urn:hydraulis:problem:{problem.code}"
    assert problem.detail
    assert problem.remedy
    assert problem.numbers["request_id"] == answer.headers["x-request-id"]
    return problem


def measured(name: str, *, sync_ms: float = 0.0) -> dict[str, Any]:
    """Samples of t(M) = 2 + sum(1e-5 s^2 + 0.01 s) on one layout."""
    batches = [[100], [1000], [4000], [500, 500], [3000, 100], [2000, 2000, 50], [8000]]
    return {
        "name": name,
        "source": "made up",
        "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
        "device": {"name": "cpu", "memory_bytes": 10**9},
        "sync_ms": sync_ms,
        "layouts": [
            {
                "tp": 1,
                "pp": 1,
                "max_tokens": 8192,
                "samples": [
                    {"lengths": lengths, "time_ms": 2 + sum(1e-5 * s * s + 0.01 * s for s in lengths)}
                    for lengths in batches
                ],
            }
        ],
    }


def test_the_same_request_gets_the_same_bytes(api: TestClient) -> None:
    first = api.post("/v1/plans", json=PLAIN_REQUEST)
    assert first.status_code == 200
    again = api.post("/v1/plans", json=PLAIN_REQUEST)
    assert again.content == first.content
    assert again.headers["x-plan-cache"] == "hit"
    assert Plan.model_validate_json(first.content).num_tokens == 500


def test_writing_a_request_differently_does_not_make_it_another(api: TestClient) -> None:
    by_source = {"b": [100, 300], "a": [100]}
    first = api.post("/v1/plans", json={**PLAIN_REQUEST, "lengths": by_source})
    text = json.dumps(
        {"options": {"seed": 0}, "lengths": dict(reversed(by_source.items())), "num_gpus": 8, "profile": BUILTIN},
        indent=3,
    )
    again = api.post("/v1/plans", content=text)
    assert again.headers["x-plan-cache"] == "hit"
    assert again.content == first.content


def test_a_profile_sent_inline_is_the_same_request_as_by_name(api: TestClient) -> None:
    first = api.post("/v1/plans", json={**PLAIN_REQUEST, "iteration": 5})
    inline = builtin_profiles()[BUILTIN].model_dump(mode="json")
    again = api.post("/v1/plans", json={**PLAIN_REQUEST, "iteration": 5, "profile": inline})
    assert again.headers["x-plan-cache"] == "hit"
    assert again.content == first.content
    slower = {**inline, "layouts": [{**layout, "c_ms": layout["c_ms"] + 1} for layout in inline["layouts"]]}
    other = api.post("/v1/plans", json={**PLAIN_REQUEST, "iteration": 5, "profile": slower})
    assert other.headers["x-plan-cache"] == "miss"


@pytest.mark.parametrize(
    "change", [{"iteration": 1}, {"num_gpus": 16}, {"options": {"seed": 1}}, {"lengths": [100, 200, 201]}]
)
def test_another_request_gets_a_plan_of_its_own(api: TestClient, change: dict[str, Any]) -> None:
    base = {**PLAIN_REQUEST, "options": {"seed": 77}}
    api.post("/v1/plans", json=base)
    assert api.post("/v1/plans", json={**base, **change}).headers["x-plan-cache"] == "miss"


def test_a_plan_is_found_again_by_its_digest(api: TestClient) -> None:
    first = api.post("/v1/plans", json={**PLAIN_REQUEST, "iteration": 9})
    digest = first.json()["digest"]
    assert api.get(f"/v1/plans/{digest}").content == first.content
    missing = problem_of(api.get("/v1/plans/sha256:0"))
    assert (missing.status, missing.code) == (404, "not-found")


def test_a_profile_is_registered_once_and_never_changed(api: TestClient) -> None:
    profile = {**builtin_profiles()[BUILTIN].model_dump(mode="json"), "name": "mine"}
    assert api.post("/v1/profiles", json=profile).status_code == 201
    again = api.post("/v1/profiles", json=profile)
    assert again.status_code == 200
    assert Profile.model_validate_json(again.content) == Profile.model_validate(profile)
    other = problem_of(api.post("/v1/profiles", json={**profile, "sync_ms": 5.0}))
    assert (other.status, other.code) == (409, "profile-conflict")
    assert api.get("/v1/profiles/mine").content == again.content
    assert api.post("/v1/plans", json={**PLAIN_REQUEST, "profile": "mine"}).status_code == 200


def test_names_of_builtin_profiles_are_reserved(api: TestClient) -> None:
    builtin = builtin_profiles()[BUILTIN].model_dump(mode="json")
    assert api.post("/v1/profiles", json=builtin).status_code == 200
    other = problem_of(api.post("/v1/profiles", json={**builtin, "sync_ms": 5.0}))
    assert (other.status, other.code) == (409, "profile-conflict")


def test_samples_are_fitted_and_keep_their_error(api: TestClient) -> None:
    answer = api.post("/v1/profiles", json=measured("measured"))
    assert answer.status_code == 201, answer.text
    layout = Profile.model_validate_json(answer.content).layouts[0]
    assert layout.a_ms_per_token2 == pytest.approx(1e-5, rel=1e-6)
    assert layout.b_ms_per_token == pytest.approx(0.01, rel=1e-6)
    assert layout.c_ms == pytest.approx(2, rel=1e-6)
    assert layout.fit is not None
    assert layout.fit.r2 == pytest.approx(1)
    assert layout.fit.num_samples == 7
    again = api.post("/v1/profiles", json=measured("measured"))
    assert (again.status_code, again.content) == (200, answer.content)
    other = problem_of(api.post("/v1/profiles", json=measured("measured", sync_ms=1.0)))
    assert other.code == "profile-conflict"


def test_all_profiles_are_listed(api: TestClient) -> None:
    api.post("/v1/profiles", json=measured("listed"))
    profiles = ProfileList.model_validate_json(api.get("/v1/profiles").content).profiles
    names = [profile.name for profile in profiles]
    assert names == sorted(names)
    assert set(builtin_profiles()) == {profile.name for profile in profiles if profile.is_builtin}
    assert "listed" in names


def test_a_profile_that_nobody_registered_is_404_and_says_what_there_is(api: TestClient) -> None:
    for answer in (
        api.get("/v1/profiles/nobody"),
        api.post("/v1/plans", json={**PLAIN_REQUEST, "profile": "nobody"}),
    ):
        problem = problem_of(answer)
        assert (problem.status, problem.code) == (404, "unknown-profile")
        assert BUILTIN in problem.numbers["builtin"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "Invalid JSON"),
        (b"{", "Invalid JSON"),
        (b"\xff\xfe{}", "Invalid JSON"),
        (b'{"profile": "\xe9"}', "Invalid JSON"),
        (b"null", "object"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"[" * 100_000, "recursion"),
        (b'{"a":' * 30_000 + b"1" + b"}" * 30_000, "recursion"),
        (b'{"profile": "p", "num_gpus": ' + b"9" * 5000 + b', "lengths": [1]}', "out of range"),
        (b'{"profile": "p", "num_gpus": ' + b"9" * 30 + b', "lengths": [1]}', "num_gpus"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [NaN]}', "lengths.0"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [1], "options": {"target_gap": NaN}}', "options.target_gap"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [1], "options": {"sync_ms": Infinity}}', "options.sync_ms"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [1], "options": {"seed": 1e400}}', "options.seed"),
        (b'{"profile": "p", "num_gpus": true, "lengths": [1]}', "num_gpus"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [0]}', "lengths.0"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": {"a": [5, -1]}}', "lengths.a.1"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [2147483648]}', "lengths.0"),
        (b'{"profile": "p", "num_gpus": 1}', "either lengths or histograms"),
        (b'{"profile": "p", "num_gpus": 1, "lengths": [1], "gpu": 1}', "gpu"),
        (b'{"profile": "\\ud800", "num_gpus": 1, "lengths": [1]}', "Invalid JSON"),
        (b'{"profile": "p\\u0000", "num_gpus": 1, "lengths": [1]}', "profile"),
    ],
)
def test_a_body_that_cannot_be_used_is_422_and_says_where(api: TestClient, body: bytes, said: str) -> None:
    problem = problem_of(api.post("/v1/plans", content=body))
    assert (problem.status, problem.code) == (422, "invalid-request")
    assert said in problem.detail
    assert problem.numbers["errors"][0]["value"]
    assert len(json.dumps(problem.numbers)) < 5000
    assert "b'" not in problem.detail + problem.numbers["errors"][0]["value"]


@pytest.mark.parametrize(
    ("change", "detail", "value"),
    [
        (
            {"num_gpus": None},
            "give the cluster as profile and num_gpus, or as devices where GPUs are of several types",
            3,
        ),
        (
            {"atomic_groups": {"node-7": [{"lengths": [100, 200]}]}},
            "atomic_groups names source node-7 but the batch has no sequences of that source; its sources are local",
            4,
        ),
        (
            {"atomic_groups": {"local": [{"lengths": [100, 100]}]}},
            "atomic_groups of source local take 2 sequences of 100 tokens but it has 1; "
            "the sequences of groups are part of the batch",
            4,
        ),
    ],
)
def test_what_is_wrong_with_a_request_as_a_whole_does_not_repeat_the_request(
    api: TestClient, change: dict[str, Any], detail: str, value: int
) -> None:
    problem = problem_of(api.post("/v1/plans", json={**PLAIN_REQUEST, **change}))
    assert (problem.status, problem.code, problem.detail) == (422, "invalid-request", detail)
    assert problem.numbers["errors"] == [{"field": "", "message": detail, "value": f"an object with {value} fields"}]


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'{"layouts": 3}', b'{"layouts": [{"samples": 3}]}', b"{" * 9999])
def test_a_profile_that_is_none_is_422(api: TestClient, body: bytes) -> None:
    assert problem_of(api.post("/v1/profiles", content=body)).code == "invalid-request"


def test_errors_in_samples_are_told_for_a_measurement_not_for_a_profile(api: TestClient) -> None:
    wrong = measured("wrong")
    wrong["layouts"][0]["samples"][2]["time_ms"] = -1
    problem = problem_of(api.post("/v1/profiles", json=wrong))
    assert [error["field"] for error in problem.numbers["errors"]] == ["layouts.0.samples.2.time_ms"]


def test_hundreds_of_thousands_of_errors_are_counted_not_listed(tmp_path: Path) -> None:
    with client_of(tmp_path, max_body_bytes=10**7) as client:
        body = b'{"profile": "p", "num_gpus": 1, "lengths": [' + b",".join([b"0"] * 300_000) + b"]}"
        began = time.monotonic()
        problem = problem_of(client.post("/v1/plans", content=body))
        assert time.monotonic() - began < 10
        assert problem.code == "invalid-request"
        assert len(problem.detail) < 500


def test_a_body_over_the_limit_is_413_whether_announced_or_not(api: TestClient) -> None:
    body = b" " * 200_001

    def trickle() -> Iterator[bytes]:
        yield from (body[at : at + 1000] for at in range(0, len(body), 1000))

    for content in (body, trickle()):
        problem = problem_of(api.post("/v1/plans", content=content))
        assert (problem.status, problem.code) == (413, "body-too-large")
        assert problem.numbers["limit_bytes"] == 200_000
    assert problem_of(api.post("/v1/plans", content=body[:-1])).status == 422


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "not-found"),
        ("POST", "/v1/plans/", 404, "not-found"),
        ("PUT", "/v1/plans", 405, "method-not-allowed"),
        ("PUT", "/v1/profiles/x", 405, "method-not-allowed"),
        ("POST", "/healthz", 405, "method-not-allowed"),
    ],
)
def test_paths_and_methods_that_are_not_offered_are_problems_too(
    api: TestClient, method: str, path: str, status: int, code: str
) -> None:
    answer = api.request(method, path)
    problem = problem_of(answer)
    assert (problem.status, problem.code) == (status, code)
    assert status != 405 or answer.headers["allow"]


def test_a_method_that_is_not_offered_is_answered_with_all_that_are(api: TestClient) -> None:
    for path, offered in {
        "/v1/jobs": "GET, POST",
        "/v1/jobs/a": "DELETE, GET",
        "/v1/jobs/a/iterations/0/timings": "GET, POST",
        "/v1/jobs/a/iterations/0/histograms/rack/0": "PUT",
        "/healthz": "GET",
    }.items():
        answer = api.request("PATCH", path)
        assert (answer.status_code, answer.headers["allow"]) == (405, offered)
        assert problem_of(answer).remedy == f"use {offered}"


def test_what_is_said_of_a_path_does_not_follow_the_host_that_a_caller_names(api: TestClient) -> None:
    answer = api.get("/v1/nothing", headers={"host": "localhost/somewhere?else#"})
    assert "there is nothing at /v1/nothing" in problem_of(answer).detail


def test_every_fault_code_has_a_status() -> None:
    assert set(STATUS_BY_CODE) == set(FaultCode)
    assert all(400 <= status < 600 for status in STATUS_BY_CODE.values())


def test_a_caller_finds_its_own_request_id_in_the_answer(api: TestClient) -> None:
    assert api.get("/healthz", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    replaced = api.get("/healthz", headers={"x-request-id": "not fit for a log\t"}).headers["x-request-id"]
    assert replaced.isalnum()


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        for _ in range(2):
            assert client.post("/v1/plans", json=PLAIN_REQUEST).status_code == 200
        client.post("/v1/plans", json={})
        client.get("/one/of/many/unknown/paths")
        text = client.get("/metrics").text
    for line in (
        'hydraulis_http_requests_total{method="POST",route="/v1/plans",status="200"} 2.0',
        'hydraulis_http_requests_total{method="POST",route="/v1/plans",status="422"} 1.0',
        'hydraulis_http_requests_total{method="any",route="unmatched",status="404"} 1.0',
        "hydraulis_plan_cache_hits_total 1.0",
        "hydraulis_solve_seconds_count 1.0",
        "hydraulis_queue_wait_seconds_count 1.0",
        "hydraulis_plan_makespan_seconds_sum 0.1",
        "hydraulis_solvers_ready 1.0",
    ):
        assert line in text.splitlines()


def test_equal_requests_at_once_are_solved_once(tmp_path: Path) -> None:
    with client_of(tmp_path, planner="slow", workers=2) as client:
        body = {**PLAIN_REQUEST, "options": {"deadline_ms": 1500}}
        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(lambda _: client.post("/v1/plans", json=body), range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert "hydraulis_solve_seconds_count 1.0" in client.get("/metrics").text


def test_overload_is_429_with_retry_after(tmp_path: Path) -> None:
    with client_of(tmp_path, planner="slow", max_waiting=1) as client:
        assert wait_until(lambda: client.get("/readyz").status_code == 200)

        def ask(number: int) -> httpx.Response:
            return client.post(
                "/v1/plans", json={**PLAIN_REQUEST, "iteration": number, "options": {"deadline_ms": 1000}}
            )

        with ThreadPoolExecutor(6) as threads:
            answers = list(threads.map(ask, range(6)))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 200, 429, 429, 429, 429]
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert problem_of(refused).code == "overloaded"
        assert int(refused.headers["retry-after"]) >= 1


def test_no_plan_by_the_deadline_is_504(tmp_path: Path) -> None:
    with client_of(tmp_path, planner="stuck") as client:
        problem = problem_of(client.post("/v1/plans", json={**PLAIN_REQUEST, "options": {"deadline_ms": 200}}))
        assert (problem.status, problem.code) == (504, "deadline-exceeded")
        assert problem.numbers["deadline_ms"] == 200


def test_an_incumbent_at_the_deadline_is_kept_like_any_plan(tmp_path: Path) -> None:
    with client_of(tmp_path, planner="stuck_after_incumbents") as client:
        body = {**PLAIN_REQUEST, "options": {"deadline_ms": 300}}
        first = client.post("/v1/plans", json=body)
        assert Plan.model_validate_json(first.content).cut_by_wall_clock
        assert client.post("/v1/plans", json=body).content == first.content
        assert "hydraulis_plans_cut_by_deadline_total 1.0" in client.get("/metrics").text


@pytest.mark.parametrize("planner", ["broken", "dying"])
def test_a_bug_is_500_with_an_id_that_the_log_has(tmp_path: Path, planner: str) -> None:
    with capture_logs() as logged, client_of(tmp_path, planner=planner) as client:
        problem = problem_of(client.post("/v1/plans", json=PLAIN_REQUEST))
        assert (problem.status, problem.code) == (500, "internal")
        assert problem.numbers["request_id"] in problem.detail
        assert "Traceback" not in problem.detail
    unexpected = [entry for entry in logged if entry["event"] == "unexpected_error"]
    assert [entry["request_id"] for entry in unexpected] == [problem.numbers["request_id"]]
    assert unexpected[0]["exc_info"]


def test_readiness_needs_a_warm_solver(tmp_path: Path) -> None:
    with client_of(tmp_path, planner="no_such_function") as client:
        assert client.get("/healthz").json() == {"status": "ok", "version": version("hydraulis-planner")}
        problem = problem_of(client.get("/readyz"))
        assert (problem.status, problem.code) == (503, "not-ready")


def test_a_lost_store_is_503_everywhere_and_liveness_stays(tmp_path: Path) -> None:
    with client_of(tmp_path) as client:
        assert wait_until(lambda: client.get("/readyz").status_code == 200)
        for path in tmp_path.glob("planner.sqlite3*"):
            path.write_bytes(b"\x00garbage" * 1000)
        for answer in (
            client.get("/readyz"),
            client.get("/v1/profiles/x"),
            client.post("/v1/plans", json={**PLAIN_REQUEST, "iteration": 1}),
        ):
            problem = problem_of(answer)
            assert (problem.status, problem.code) == (503, "store-unavailable")
        assert client.get("/healthz").status_code == 200
