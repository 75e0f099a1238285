"""Who makes a run's plans, and what happens where nobody does."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from plan_factory import make_plan

from planner_client.contract import Plan, PlanOptions, ReplicaGroup
from worker_agent.executor.faults import PlanningFailed
from worker_agent.trainer.planning import OwnPlans, PlanFeed, plan_request, plan_timeout_s, planner_of
from worker_agent.trainer.process_group import join_process_group
from worker_agent.trainer.settings import PlannerSettings

LENGTHS = {"rank-0": [5, 3]}


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    assert join_process_group(30.0)
    assert not join_process_group(30.0), "a group that is there is taken as it is"
    yield
    dist.destroy_process_group()


def settings(url: str = "http://127.0.0.1:9", **further: object) -> PlannerSettings:
    return PlannerSettings(url, "some-profile", **further)  # type: ignore[arg-type]


def test_the_planner_is_asked_for_the_lengths_by_source() -> None:
    group = ReplicaGroup(tp=1, pp=1, num_replicas=2)
    asked = plan_request(settings(strategies=("(2,1)x1", (group,)), options=PlanOptions(alignment=8)), LENGTHS, 2, 7)
    assert (asked.profile, asked.num_gpus, asked.iteration) == ("some-profile", 2, 7)
    assert asked.lengths == LENGTHS
    assert [[entry.tp for entry in strategy] for strategy in asked.strategies] == [[2], [1]]
    assert asked.options.alignment == 8


def test_without_candidates_all_strategies_are_searched() -> None:
    assert plan_request(settings(), LENGTHS, 2, None).strategies == []


def test_plans_of_ones_own_need_no_planner() -> None:
    plan = make_plan([[[("rank-0", 5, 1), ("rank-0", 3, 1)]]])
    with PlanFeed(OwnPlans(lambda lengths: plan if lengths == LENGTHS else None)) as feed:  # type: ignore[arg-type, return-value]
        feed.announce(4, LENGTHS)
        assert feed.take(4).plan == plan


def test_what_is_no_plan_is_named() -> None:
    with PlanFeed(OwnPlans(lambda _: "later")) as feed:  # type: ignore[arg-type, return-value]
        feed.announce(4, LENGTHS)
        with pytest.raises(PlanningFailed, match=r"plans= gave a str; return a planner_client.contract.Plan"):
            feed.take(4)


def test_a_function_that_raises_is_named() -> None:
    def fail(_: object) -> Plan:
        raise LookupError("no such table")

    with PlanFeed(OwnPlans(fail)) as feed:
        feed.announce(0, LENGTHS)
        with pytest.raises(PlanningFailed, match="LookupError: no such table"):
            feed.take(0)


def test_a_function_that_would_end_the_process_is_named() -> None:
    def leave(_: object) -> Plan:
        raise SystemExit(3)

    with PlanFeed(OwnPlans(leave)) as feed:
        feed.announce(0, LENGTHS)
        with pytest.raises(PlanningFailed, match=r"plans= called sys.exit\(3\)"):
            feed.take(0)


def test_a_function_is_never_called_twice_at_once() -> None:
    plan = make_plan([[[("rank-0", 5, 1), ("rank-0", 3, 1)]]])
    busy, overlaps = threading.Lock(), []

    def make(_: object) -> Plan:
        overlaps.append(not busy.acquire(blocking=False))
        if not overlaps[-1]:
            time.sleep(0.05)
            busy.release()
        return plan

    own_plans = OwnPlans(make)
    with PlanFeed(own_plans) as of_training, PlanFeed(own_plans, numbered=False) as of_evaluation:
        for feed in (of_training, of_evaluation):
            feed.announce(0, LENGTHS)
        assert of_evaluation.take(0).plan == of_training.take(0).plan == plan
    assert overlaps == [False, False]


def test_a_planner_that_is_away_is_named_with_its_address_within_the_time_limit() -> None:
    started = time.monotonic()
    with PlanFeed(settings("http://127.0.0.1:9", timeout_s=1.0)) as feed:
        feed.announce(0, LENGTHS)
        with pytest.raises(PlanningFailed, match=r"planner at http://127.0.0.1:9 gave no plan: .* plans="):
            feed.take(0)
    assert time.monotonic() - started < 5


def test_a_planner_that_never_answers_is_given_up_within_the_time_limit() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        with PlanFeed(settings(url, timeout_s=0.5)) as feed:
            feed.announce(0, LENGTHS)
            with pytest.raises(PlanningFailed, match=f"planner at {url} gave no plan"):
                feed.take(0)
    assert time.monotonic() - started < 5


def test_a_plan_is_waited_for_as_long_as_its_deadline_and_transport_need() -> None:
    assert plan_timeout_s(settings(options=PlanOptions(deadline_ms=2000))) == 17
    assert plan_timeout_s(settings(timeout_s=3.0)) == 3
    assert plan_timeout_s(OwnPlans(len, 7.0)) == 7  # type: ignore[arg-type]


def test_a_function_that_takes_too_long_is_given_up() -> None:
    goes_on = threading.Event()

    def wait(_: object) -> Plan:
        goes_on.wait(10)
        raise LookupError

    with PlanFeed(OwnPlans(wait, 0.1)) as feed:
        feed.announce(3, LENGTHS)
        with pytest.raises(PlanningFailed, match=r"no plan for iteration 3 within 0.15 s"):
            feed.take(3)
        goes_on.set()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "nobody makes plans; give planner_url"),
        ({"url": "http://a", "plans": len, "profile": "p"}, "http://a and plans= both make plans"),
        ({"url": "http://a"}, "planner http://a needs to know what the model costs; give profile"),
        ({"url": "http://a", "profile": "p", "strategies": ["2x1"]}, "strategy '2x1' cannot be read"),
        ({"url": "http://a", "profile": "p", "timeout_s": 50.0}, "may take 75 s but ranks wait .* for 60 s only"),
        ({"url": "http://a", "profile": "p", "timeout_s": 0.0}, "plan_timeout_s is 0"),
        ({"plans": len, "timeout_s": 0.0}, "plan_timeout_s is 0.0; give a positive number"),
        ({"plans": len, "timeout_s": -1.0}, "plan_timeout_s is -1.0; give a positive number"),
        ({"plans": len, "timeout_s": float("nan")}, "plan_timeout_s is nan; give a positive number"),
        ({"plans": len, "collective_timeout_s": float("nan")}, "collective_timeout_s is nan; give a positive number"),
        ({"plans": len, "collective_timeout_s": -1.0}, "collective_timeout_s is -1.0; give a positive number"),
    ],
)
def test_planning_that_cannot_work_is_refused_before_it_begins(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"url": None, "plans": None, "profile": None, "strategies": (), "options": None}
    given |= {"timeout_s": None, "collective_timeout_s": 60.0, **arguments}
    with pytest.raises(ValueError, match=message):
        planner_of(**given)  # type: ignore[arg-type]


def test_an_address_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="planner address 'nowhere' is not an http URL"):
        PlanFeed(settings("nowhere"))
