"""The calls that concern jobs: against the real service, and against answers no planner should give."""

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from misbehaving_server import Reaction, close, misbehaving, reply

from planner_client import AsyncPlannerClient, BadAnswer, PlannerClient, RequestRefused
from planner_client.calls import PlannerCalls
from planner_client.contract import (
    IterationStatus,
    IterationTimings,
    JobSpec,
    Plan,
    PlanOptions,
    PlanRequest,
    ReplicaTiming,
    SourceBatch,
)
from planner_client.flow import RetryPolicy

sys.path.append(str(Path(__file__).parent.parent / "service"))
from served_planner import servers

PROFILE = "llama-7b-a100-40g"
QUICK = RetryPolicy(max_attempts=3, first_pause_s=0.01, max_pause_s=0.02)


def spec(name: str, **changes: object) -> JobSpec:
    fields = {"profile": PROFILE, "num_gpus": 8, "sources": ["node-0", "rack/1"], "options": {"deadline_ms": 300}}
    return JobSpec.model_validate({"name": name, **fields, **changes})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers(tmp_path_factory.mktemp("jobs")) as start:
        yield start("--workers", "1").url


class Asker:
    """Calls either client the same way."""

    def __init__(self, url: str, kind: str) -> None:
        self._url = url
        self._kind = kind

    def __call__(self, method: str, *args: Any, **options: Any) -> Any:
        if self._kind == "sync":
            with PlannerClient(self._url, policy=QUICK, timeout_s=5.0) as client:
                return getattr(client, method)(*args, **options)

        async def run() -> Any:
            async with AsyncPlannerClient(self._url, policy=QUICK, timeout_s=5.0) as client:
                return await getattr(client, method)(*args, **options)

        return asyncio.run(run())


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def timings_of(plan: Plan) -> IterationTimings:
    return IterationTimings(
        digest=plan.digest,
        iteration=plan.iteration or 0,
        replicas=[
            ReplicaTiming(replica=number, wall_ms=5.0, micro_batch_ms=[1.0] * len(replica.micro_batches))
            for number, replica in enumerate(plan.replicas)
            if replica.micro_batches
        ],
    )


def test_a_job_from_its_registration_to_its_end(url: str, kind: str) -> None:
    ask = Asker(url, kind)
    name = f"run-{kind}"
    assert ask("register_job", spec(name)).name == name
    assert ask("register_job", spec(name)).num_sources == 2
    with pytest.raises(RequestRefused, match="job-conflict"):
        ask("register_job", spec(name, num_gpus=16))
    assert ask("job", name).spec == spec(name)
    assert ask("report", name, 0, "rack/1", SourceBatch(lengths=[300, 400])).missing == ["node-0"]
    waiting = ask("iteration_plan", name, 0, wait_s=0.3)
    assert isinstance(waiting, IterationStatus)
    assert waiting.state == "collecting"
    ask("report", name, 0, "node-0", SourceBatch(lengths=[900]))
    plan = ask("iteration_plan", name, 0, wait_s=10.0)
    assert (plan.num_sequences, plan.iteration) == (3, 0)
    both = {"node-0": SourceBatch(lengths=[700]), "rack/1": SourceBatch(lengths=[800, 90])}
    for iteration in (1, 2):
        ask("report_all", name, iteration, both)
        assert ask("iteration_plan", name, iteration, wait_s=10.0).num_sequences == 3
    assert ask("iteration", name, 1).state == "planned"
    assert [one.iteration for one in ask("iterations", name)] == [0, 1, 2]
    assert [one.iteration for one in ask("iterations", name, newest_first=True, limit=2)] == [2, 1]
    assert [one.iteration for one in ask("iterations", name, after=0)] == [1, 2]
    ask("report_timings", name, 0, timings_of(plan))
    ask("report_timings", name, 0, timings_of(plan))
    assert ask("timings", name, 0) == [timings_of(plan)]
    assert ask("timings", name, 1) == []
    with pytest.raises(RequestRefused, match="plan-mismatch"):
        ask("report_timings", name, 1, timings_of(plan))
    assert name in [job.name for job in ask("jobs")]
    assert plan.digest in [one.digest for one in ask("plans")]
    with pytest.raises(RequestRefused, match="plan-in-use"):
        ask("delete_plan", plan.digest)
    ask("delete_job", name)
    with pytest.raises(RequestRefused, match="unknown-job"):
        ask("delete_job", name)


def test_lists_are_read_page_by_page_to_their_end(url: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner_client.calls.PAGE", 2)
    ask = Asker(url, kind)
    names = [f"many-{kind}-{number}" for number in range(5)]
    for name in names:
        ask("register_job", spec(name))
    for iteration in range(5):
        ask("report_all", names[0], iteration, {"node-0": SourceBatch(lengths=[9]), "rack/1": SourceBatch(lengths=[8])})
    found = [job.name for job in ask("jobs")]
    assert [name for name in found if name in names] == names
    assert found == sorted(found)
    assert len(ask("jobs", limit=3)) == 3
    assert ask("jobs", limit=0) == []
    assert [one.iteration for one in ask("iterations", names[0])] == [0, 1, 2, 3, 4]
    assert [one.iteration for one in ask("iterations", names[0], newest_first=True)] == [4, 3, 2, 1, 0]
    assert [one.iteration for one in ask("iterations", names[0], after=1, limit=2)] == [2, 3]
    for name in names:
        ask("delete_job", name)


def test_a_profile_is_registered_and_deleted(url: str, kind: str) -> None:
    ask = Asker(url, kind)
    known = ask("profile", PROFILE)
    usable = [layout for layout in known.layouts if layout.tp * layout.pp > 1]
    profile = known.model_copy(update={"name": f"mine-{kind}", "layouts": usable})
    ask("register_profile", profile)
    ask("delete_profile", profile.name)
    with pytest.raises(RequestRefused, match="unknown-profile"):
        ask("profile", profile.name)


def test_a_plan_is_deleted(url: str, kind: str) -> None:
    ask = Asker(url, kind)
    request = PlanRequest(
        profile=PROFILE, num_gpus=8, lengths=[500, 600 + len(kind)], options=PlanOptions(deadline_ms=300)
    )
    digest = ask("plan", request).digest
    ask("delete_plan", digest)
    with pytest.raises(RequestRefused, match="not-found"):
        ask("plan_with_digest", digest)


PROBLEM = {"type": "urn:x", "title": "x", "detail": "it is gone", "code": "unknown-job"}
GONE = reply(404, json.dumps({**PROBLEM, "status": 404}).encode(), media_type="application/problem+json")
STATUS = {"iteration": 3, "state": "collecting", "num_reported": 0, "due_at": 0.0, "missing": [], "num_missing": 0}


def status(job: str = "j", iteration: int = 3) -> Reaction:
    content = {**STATUS, "job": job, "iteration": iteration, "num_tries": 0}
    return reply(202, json.dumps(content).encode())


def test_what_an_earlier_try_deleted_counts_as_deleted(kind: str) -> None:
    with misbehaving(close, GONE) as server:
        Asker(server.url, kind)("delete_job", "j")
        assert server.num_requests == 2
    with misbehaving(GONE) as server, pytest.raises(RequestRefused, match="it is gone"):
        Asker(server.url, kind)("delete_job", "j")


@pytest.mark.parametrize("reaction", [status("other"), status(iteration=4), reply(202, b"{}"), reply(200, b"[]")])
def test_the_status_of_something_else_is_a_bad_answer(reaction: Reaction, kind: str) -> None:
    with misbehaving(reaction) as server, pytest.raises(BadAnswer):
        Asker(server.url, kind)("iteration_plan", "j", 3)


def test_a_planner_that_does_not_hold_a_long_poll_open_is_not_asked_without_end(kind: str) -> None:
    with misbehaving(status()) as server:
        began = time.monotonic()
        assert Asker(server.url, kind)("iteration_plan", "j", 3, wait_s=0.5).state == "collecting"
        assert 0.4 < time.monotonic() - began < 1.5
        assert server.num_requests < 60


@pytest.mark.parametrize(
    ("method", "field", "next_after"), [("jobs", "jobs", "a"), ("nodes", "nodes", "a"), ("plans", "plans", 7)]
)
def test_a_list_that_turns_in_circles_is_a_bad_answer(
    method: str, field: str, next_after: str | int, kind: str
) -> None:
    page = reply(200, json.dumps({field: [], "next_after": next_after}).encode())
    with misbehaving(page) as server:
        with pytest.raises(BadAnswer, match="goes on after"):
            Asker(server.url, kind)(method)
        assert server.num_requests == 2


def test_both_clients_offer_every_call_with_the_same_parameters() -> None:
    calls = {name for name in vars(PlannerCalls) if not name.startswith("_")}
    assert len(calls) == 26
    for client in (PlannerClient, AsyncPlannerClient):
        for name in calls:
            assert inspect.signature(getattr(client, name)) == inspect.signature(getattr(PlannerCalls, name))
            assert getattr(client, name).__doc__
    assert all(inspect.iscoroutinefunction(getattr(AsyncPlannerClient, name)) for name in calls)


def test_a_closed_client_says_so(kind: str) -> None:
    call: Callable[[], Any]
    if kind == "async":

        async def run() -> Any:
            client = AsyncPlannerClient("http://127.0.0.1:9")
            await client.close()
            return await client.profiles()

        call = lambda: asyncio.run(run())  # noqa: E731 - one of two ways to make the same call
    else:
        client = PlannerClient("http://127.0.0.1:9")
        client.close()
        call = client.profiles
    with pytest.raises(Exception, match="this client is closed"):
        call()
