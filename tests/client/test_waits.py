"""Times without an end, far away, over or no number at all, wherever the client takes a time."""

import asyncio
import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
from misbehaving_server import hang, misbehaving, reply

from planner_client import (
    AsyncPlannerClient,
    ByJob,
    DeadlineExceeded,
    FallbackBasis,
    PlannerClient,
    SteadyPlanner,
    SteadySettings,
)
from planner_client.calls import PlannerCalls
from planner_client.contract import IterationStatus, JobSpec, SourceBatch
from planner_client.flow import Answer, Ask

NO_PROFILES = reply(200, b'{"profiles": []}')
DUE = IterationStatus(
    iteration=0, job="a", state="due", num_reported=1, due_at=0.0, missing=[], num_missing=0, num_tries=0
)
STILL_DUE = Answer(202, {}, DUE.model_dump_json().encode())
FAR_AWAY_S = [1e7, 1e10, 1e300]
WITHOUT_END = [math.inf, math.nan, -math.inf]


@pytest.mark.parametrize("client", [PlannerClient, AsyncPlannerClient])
@pytest.mark.parametrize("timeout_s", [*WITHOUT_END, 0.0, -1.0])
def test_a_client_with_no_time_or_no_end_of_it_cannot_be_made(client: Callable[..., object], timeout_s: float) -> None:
    with pytest.raises(ValueError, match=r"timeout_s is .*; give more than 0 seconds, and an end"):
        client("http://planner", timeout_s=timeout_s)


@pytest.mark.parametrize("timeout_s", WITHOUT_END)
def test_a_call_without_an_end_is_refused_before_anything_is_sent(timeout_s: float) -> None:
    with misbehaving(NO_PROFILES) as server:
        with PlannerClient(server.url) as client:
            calls: list[Callable[[], Any]] = [
                lambda: client.profiles(timeout_s=timeout_s),
                lambda: client.jobs(timeout_s=timeout_s),
                lambda: client.wait_ready(timeout_s),
                lambda: client.iteration_plan("a", 0, timeout_s=timeout_s),
                lambda: client.delete_job("a", timeout_s=timeout_s),
            ]
            for call in calls:
                with pytest.raises(ValueError, match=r"timeout_s is .*; give a number of seconds"):
                    call()
        assert server.num_requests == 0


@pytest.mark.parametrize("timeout_s", FAR_AWAY_S)
def test_an_end_that_no_operating_system_can_wait_for_is_an_end_all_the_same(timeout_s: float) -> None:
    async def profiles(url: str) -> list[Any]:
        async with AsyncPlannerClient(url, timeout_s=timeout_s) as client:
            return await client.profiles()

    with misbehaving(NO_PROFILES) as server:
        with PlannerClient(server.url, timeout_s=timeout_s) as client:
            assert client.profiles() == []
        assert asyncio.run(profiles(server.url)) == []


def test_a_time_that_is_over_is_over() -> None:
    with PlannerClient("http://planner") as client, pytest.raises(DeadlineExceeded):
        client.profiles(timeout_s=-1.0)


@pytest.mark.parametrize("wait_s", [-math.inf, -100.0, 0.0])
def test_who_would_wait_less_than_not_at_all_is_told_at_once_how_far_it_is(wait_s: float) -> None:
    with misbehaving(reply(202, STILL_DUE.body)) as server, PlannerClient(server.url) as client:
        assert isinstance(client.iteration_plan("a", 0, wait_s=wait_s), IterationStatus)


def test_a_wait_that_is_no_number_is_refused() -> None:
    with PlannerClient("http://planner") as client, pytest.raises(ValueError, match="wait_s is no number"):
        client.iteration_plan("a", 0, wait_s=math.nan)


@pytest.mark.parametrize("wait_s", [0.5, 9.0, math.inf])
@pytest.mark.parametrize("timeout_s", [0.5, 9.0, 60.0])
def test_a_poll_ends_soon_enough_for_its_answer_to_come_before_the_call_ends(wait_s: float, timeout_s: float) -> None:
    now = 0.0
    flow = PlannerCalls(clock=lambda: now).iteration_plan("a", 0, wait_s=wait_s, timeout_s=timeout_s)

    def poll() -> None:
        """Answer each request as late as it may be."""
        nonlocal now
        answer: Answer | None = None
        while True:
            step = flow.send(answer)
            assert isinstance(step, Ask)
            held_s = int(step.query.path.rpartition("=")[2]) / 1000.0
            assert step.timeout_s >= held_s + min(0.25, 0.1 * timeout_s) - 1e-9
            now += held_s + 0.002  # rounding, and the way there and back
            answer = STILL_DUE

    with pytest.raises(StopIteration) as end:
        poll()
    assert end.value.value.state == "due"
    assert min(wait_s, 0.9 * timeout_s) <= now + 0.01 <= timeout_s


def test_a_deadline_without_an_end_is_refused_and_one_far_away_is_kept() -> None:
    spec = JobSpec(name="a", profile="llama-7b-a100-40g", num_gpus=8, sources=["s"])
    batches = {"s": SourceBatch(lengths=[5])}
    basis = FallbackBasis.of_strategy("(4,1)x2", max_tokens=6000)
    with (
        misbehaving(hang) as server,
        PlannerClient(server.url) as client,
        SteadyPlanner(ByJob(client, spec), SteadySettings(deadline_s=1e300), initial=basis) as planner,
    ):
        planner.announce(0, batches)
        for deadline_s in WITHOUT_END:
            with pytest.raises(ValueError, match=r"deadline_s is .*; give a number of seconds"):
                planner.take(0, deadline_s=deadline_s)
        threading.Timer(0.2, planner.close).start()
        assert planner.take(0).origin == "fallback"
