"""Requests generated from the OpenAPI document, valid and not: documented answers only, and never a 500."""

from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from served_planner import ServedPlanner

from planner_client.contract import FaultCode, Plan, PlanRequest
from planner_client.plan_check import check_answers

NUM_EXAMPLES = 30
DEADLINE_MS = 100
BUILTIN = "llama-7b-a100-40g"


def _histogram(lengths: list[int]) -> dict[str, list[int]]:
    distinct = sorted(set(lengths))
    return {"lengths": distinct, "counts": [1 + length % 5 for length in distinct]}


OPERATIONS = [
    ("POST", "/v1/plans"),
    ("GET", "/v1/plans/{digest}"),
    ("POST", "/v1/profiles"),
    ("GET", "/v1/profiles"),
    ("GET", "/v1/profiles/{name}"),
    ("DELETE", "/v1/profiles/{name}"),
    ("GET", "/v1/plans"),
    ("DELETE", "/v1/plans/{digest}"),
    ("GET", "/v1/jobs/{job}/learning"),
    ("GET", "/v1/jobs/{job}/learning/versions"),
    ("GET", "/v1/jobs/{job}/learning/versions/{version}"),
    ("POST", "/v1/jobs/{job}/learning/reset"),
    ("GET", "/v1/nodes"),
    ("PUT", "/v1/nodes/{node}"),
    ("POST", "/v1/jobs"),
    ("GET", "/v1/jobs"),
    ("GET", "/v1/jobs/{job}"),
    ("DELETE", "/v1/jobs/{job}"),
    ("PUT", "/v1/jobs/{job}/iterations/{iteration}/histograms"),
    ("PUT", "/v1/jobs/{job}/iterations/{iteration}/histograms/{source}"),
    ("GET", "/v1/jobs/{job}/iterations"),
    ("GET", "/v1/jobs/{job}/iterations/{iteration}"),
    ("GET", "/v1/jobs/{job}/iterations/{iteration}/plan"),
    ("POST", "/v1/jobs/{job}/iterations/{iteration}/timings"),
    ("GET", "/v1/jobs/{job}/iterations/{iteration}/timings"),
    ("GET", "/v1/jobs/{job}/series"),
    ("GET", "/v1/jobs/{job}/iterations/{iteration}/overview"),
    ("GET", "/v1/jobs/{job}/iterations/{iteration}/replicas"),
    ("GET", "/v1/jobs/{job}/iterations/{iteration}/candidates"),
    ("GET", "/v1/tokens"),
    ("POST", "/v1/tokens"),
    ("DELETE", "/v1/tokens/{name}"),
    ("GET", "/v1/audit"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/metrics"),
]


@pytest.fixture(scope="module")
def generated(planner: ServedPlanner) -> Any:
    return schemathesis.openapi.from_url(f"{planner.url}/openapi.json")


def test_every_operation_is_asked(generated: Any) -> None:
    offered = {(method.upper(), path) for path, item in generated.raw_schema["paths"].items() for method in item}
    assert offered == set(OPERATIONS)


@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=str)
def test_generated_requests_get_documented_answers(generated: Any, method: str, path: str) -> None:
    operation = generated[path][method]
    modes = [GenerationMode.POSITIVE]
    if operation.body or operation.path_parameters:
        modes.append(GenerationMode.NEGATIVE)
    cases = st.one_of([operation.as_strategy(generation_mode=mode) for mode in modes])
    statuses: set[int] = set()

    @given(case=cases)
    @settings(
        max_examples=NUM_EXAMPLES if operation.body or operation.path_parameters else 2,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: schemathesis.Case) -> None:
        _shorten_deadline(case.body)
        statuses.add(_ask_and_check(case))

    ask()
    if operation.body:
        assert 422 in statuses
    elif not operation.path_parameters:
        assert statuses == {200}


options = st.fixed_dictionaries(
    {"deadline_ms": st.integers(1, 300)},
    optional={
        "alignment": st.sampled_from([1, 7, 128, 1024]),
        "max_length": st.integers(1, 20_000),
        "over_long": st.sampled_from(["reject", "drop"]),
        "target_gap": st.floats(0, 10),
        "seed": st.integers(0, 2**31 - 1),
        "sync_ms": st.floats(0, 1e15),
    },
)
groups = st.lists(
    st.fixed_dictionaries(
        {"tp": st.sampled_from([4, 8]), "pp": st.sampled_from([1, 2, 3]), "num_replicas": st.integers(1, 3)}
    ),
    min_size=1,
    max_size=3,
)
lengths = st.lists(st.one_of(st.integers(1, 6000), st.sampled_from([1, 128, 9000])), max_size=30)
batches = st.one_of(
    st.fixed_dictionaries({"lengths": lengths}),
    st.fixed_dictionaries({"lengths": st.dictionaries(st.sampled_from(["a", "b:0", "c/d"]), lengths, max_size=3)}),
    st.fixed_dictionaries({"histograms": st.dictionaries(st.just("a"), lengths.map(_histogram), max_size=1)}),
)


@given(
    batch=batches,
    common=st.fixed_dictionaries(
        {"profile": st.just(BUILTIN), "num_gpus": st.sampled_from([3, 8, 16, 64]), "options": options},
        optional={"strategies": st.lists(groups, max_size=2), "iteration": st.integers(0, 2**53)},
    ),
)
@settings(max_examples=60, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
def test_requests_that_reach_the_planner_get_a_whole_plan_or_a_reason(
    planner: ServedPlanner, batch: dict[str, Any], common: dict[str, Any]
) -> None:
    """Whatever is asked within the contract:

    1. The answer is a plan, or a refusal with one of the stable codes; never an internal error.
    2. A plan places or drops every sequence exactly once and its digest holds.
    3. No micro-batch is over its replica's cap.
    4. The same request again gets the same bytes.
    """
    body = {**common, **batch}
    with httpx.Client(base_url=planner.url, timeout=60) as http:
        answer = http.post("/v1/plans", json=body)
        assert answer.status_code in {200, 422, 504}, answer.text
        if answer.status_code != 200:
            assert answer.json()["code"] in {*FaultCode} - {FaultCode.INTERNAL}
            return
        plan = check_answers(Plan.model_validate_json(answer.content), PlanRequest.model_validate(body))
        assert http.post("/v1/plans", json=body).content == answer.content
    for replica in plan.replicas:
        for micro_batch in replica.micro_batches:
            assert micro_batch.num_tokens + micro_batch.num_padding_tokens <= replica.max_tokens


def _is_plan(body: Any) -> bool:
    return isinstance(body, dict) and "num_gpus" in body


def _shorten_deadline(body: Any) -> None:
    """Keep generated deadlines, which go up to ten minutes, from being waited for."""
    if _is_plan(body) and isinstance(body.setdefault("options", {}), dict):
        body["options"]["deadline_ms"] = DEADLINE_MS


def _ask_and_check(case: schemathesis.Case) -> int:
    response = case.call(timeout=60)
    assert response.status_code != 500, response.text
    if response.status_code >= 400:
        document = response.json()
        assert document["code"]
        assert document["detail"]
        assert document["status"] == response.status_code
    case.validate_response(
        response, checks=[status_code_conformance, content_type_conformance, response_schema_conformance]
    )
    return int(response.status_code)
