"""What the planner that tests share holds."""

from typing import Any

import pytest

from planner_client import PlannerClient, RequestRefused
from planner_client.contract import (
    IterationTimings,
    JobSpec,
    Plan,
    PlanOptions,
    PlanRequest,
    Profile,
    ReplicaTiming,
    SourceBatch,
)

PROFILE = "llama-7b-a100-40g"
RUN = "run-1"
ODD = "0.a_B-" + "x" * 122
NUM_PLANNED = 4
HARMFUL = '=cmd|"x"!A1, \x1b]0;owned\x07\u202eéß\n-- ü'
"""A name that a terminal, a spreadsheet and a careless reader of CSV would all act on."""

SPELLED_OUT = r'=cmd|"x"!A1, \x1b]0;owned\x07\u202eéß\n-- ü'


def spec(name: str, **changes: Any) -> JobSpec:
    fields = {"profile": PROFILE, "num_gpus": 8, "sources": ["node-0", "rack/1"], "options": {"deadline_ms": 300}}
    return JobSpec.model_validate({"name": name, **fields, **changes})


def batches(iteration: int) -> dict[str, SourceBatch]:
    return {
        "node-0": SourceBatch(lengths=[3000, 800 + iteration, 120]),
        "rack/1": SourceBatch(lengths=[1500, 400, 400]),
    }


def planned(client: PlannerClient, job: str, iteration: int) -> Plan:
    client.report_all(job, iteration, batches(iteration))
    plan = client.iteration_plan(job, iteration, wait_s=30.0)
    assert isinstance(plan, Plan)
    return plan


def measured(plan: Plan, wall_ms: float) -> IterationTimings:
    return IterationTimings(
        digest=plan.digest,
        iteration=plan.iteration or 0,
        replicas=[
            ReplicaTiming(replica=number, wall_ms=wall_ms, micro_batch_ms=[1.0] * len(replica.micro_batches))
            for number, replica in enumerate(plan.replicas)
            if replica.micro_batches
        ],
    )


def one_shot(client: PlannerClient, *lengths: int) -> Plan:
    request = PlanRequest(profile=PROFILE, num_gpus=8, lengths=list(lengths), options=PlanOptions(deadline_ms=300))
    return client.plan(request)


def profile_named(client: PlannerClient, name: str, **changes: Any) -> Profile:
    known = client.profile(PROFILE)
    usable = [layout for layout in known.layouts if layout.tp * layout.pp > 1]
    return known.model_copy(update={"name": name, "layouts": usable, **changes})


def fill(url: str) -> None:
    """A job with planned iterations and an open one, one that failed, one with nothing; a harmful profile."""
    with PlannerClient(url) as client:
        client.register_job(spec(RUN, source_wait_ms=600_000))
        for iteration in range(NUM_PLANNED):
            plan = planned(client, RUN, iteration)
        for wall_ms in (900.0, 1234.5):
            client.report_timings(RUN, NUM_PLANNED - 1, measured(plan, wall_ms))
        client.report(RUN, 7, "node-0", SourceBatch(lengths=[5]))
        strategies = [[{"tp": 2, "pp": 1, "num_replicas": 4}]]
        client.register_job(
            spec(ODD, source_wait_ms=1, missing_sources="refuse", plan_wait_ms=60_000, strategies=strategies)
        )
        client.report(ODD, 0, "rack/1", SourceBatch(lengths=[5]))
        with pytest.raises(RequestRefused, match="sources-missing"):
            client.iteration_plan(ODD, 0, wait_s=30.0)
        client.register_job(spec("idle", sources=[f"node-{number}" for number in range(20)]))
        one_shot(client, 500, 600)
        model = client.profile(PROFILE).model.model_copy(update={"name": HARMFUL})
        client.register_profile(profile_named(client, "harmful", model=model))
