"""Who makes a run's plans, and what happens where nobody does."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch.distributed as dist
from moody_planner import moody, refusing, send
from plan_factory import make_plan

from planner_client.contract import JobSpec, Plan, PlanOptions, PlanRequest, ReplicaGroup
from planner_client.fallback import FallbackBasis, fallback_plan
from worker_agent.executor.faults import IterationFailed, PlanningFailed
from worker_agent.trainer.planning import OwnPlans, PlanFeed, planner_of
from worker_agent.trainer.process_group import join_process_group
from worker_agent.trainer.service_plans import ServicePlans, cluster_of
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


@pytest.fixture
def service(request: pytest.FixtureRequest) -> Iterator[ServicePlans]:
    """Plans of the planner that a test names, closed when it is over."""
    plans = ServicePlans(request.param)
    yield plans
    plans.close()


@pytest.mark.parametrize("job", [None, "run-1"])
def test_the_planner_is_asked_for_the_runs_cluster_and_a_job_for_one_source_a_rank(job: str | None) -> None:
    group = ReplicaGroup(tp=1, pp=1, num_replicas=2)
    options = PlanOptions(alignment=8)
    asked = cluster_of(settings(strategies=("(2,1)x1", (group,)), options=options, job=job), 2)
    assert (asked.profile, asked.num_gpus) == ("some-profile", 2)
    assert [[entry.tp for entry in strategy] for strategy in asked.strategies] == [[2], [1]]
    assert asked.options.alignment == 8
    assert isinstance(asked, JobSpec) == (job is not None)
    if isinstance(asked, JobSpec):
        assert (asked.name, asked.sources) == ("run-1", ["rank-0", "rank-1"])
        assert asked.learning == "observe"
        learning = cluster_of(settings(job=job, learning="on"), 2)
        assert isinstance(learning, JobSpec)
        assert learning.learning == "on"


@pytest.mark.parametrize(
    ("changes", "said"),
    [({"learning": "on"}, "only jobs learn; give job="), ({"learning": "always"}, "give one of off, observe, on")],
)
def test_learning_needs_a_job_and_one_of_three_words(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        settings(**changes)


def test_without_candidates_all_strategies_are_searched() -> None:
    assert cluster_of(settings(), 2).strategies == []


def test_plans_of_ones_own_need_no_planner() -> None:
    plan = make_plan([[[("rank-0", 5, 1), ("rank-0", 3, 1)]]])
    with PlanFeed(OwnPlans(lambda lengths: plan if lengths == LENGTHS else None)) as feed:  # type: ignore[arg-type, return-value]
        feed.announce(4, LENGTHS)
        taken = feed.take(4)
    assert (taken.plan, taken.origin) == (plan, "own")


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


@pytest.mark.parametrize("service", [settings("http://127.0.0.1:9", timeout_s=1.0)], indirect=True)
def test_a_planner_that_is_away_is_named_with_its_address_within_the_time_limit(service: ServicePlans) -> None:
    started = time.monotonic()
    with PlanFeed(service) as feed:
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
        plans = ServicePlans(settings(url, timeout_s=0.5))
        with closing(plans), PlanFeed(plans) as feed:
            feed.announce(0, LENGTHS)
            with pytest.raises(PlanningFailed, match=f"planner at {url} gave no plan"):
                feed.take(0)
    assert time.monotonic() - started < 5


def test_a_plan_is_waited_for_as_long_as_its_deadline_and_transport_need() -> None:
    assert ServicePlans(settings(options=PlanOptions(deadline_ms=2000))).timeout_s == 17
    assert ServicePlans(settings(timeout_s=3.0)).timeout_s == 3


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
        ({"url": "http://a:b@c", "profile": "p"}, "holds a user name or password; give token= instead"),
        ({"url": "http://a", "profile": "p", "token": "two words"}, "the token is empty or holds spaces"),
        ({"url": "http://a", "profile": "p", "job": "my run"}, "job is 'my run'; give at most 128 letters"),
        ({"url": "http://a", "profile": "p", "window": 0}, "plan_window is 0; give at least 1"),
        ({"plans": len, "job": "run-1"}, "job 'run-1' is registered with a planner, and plans= needs none"),
        ({"plans": len, "timeout_s": 0.0}, "plan_timeout_s is 0.0; give a positive number"),
        ({"plans": len, "timeout_s": -1.0}, "plan_timeout_s is -1.0; give a positive number"),
        ({"plans": len, "timeout_s": float("nan")}, "plan_timeout_s is nan; give a positive number"),
        ({"plans": len, "collective_timeout_s": float("nan")}, "collective_timeout_s is nan; give a positive number"),
        ({"plans": len, "collective_timeout_s": -1.0}, "collective_timeout_s is -1.0; give a positive number"),
    ],
)
def test_planning_that_cannot_work_is_refused_before_it_begins(arguments: dict[str, object], message: str) -> None:
    given: dict[str, object] = {"url": None, "plans": None, "collective_timeout_s": 60.0, **arguments}
    with pytest.raises(ValueError, match=message):
        planner_of(**given)  # type: ignore[arg-type]


def test_an_address_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(ValueError, match="planner address 'nowhere' is not an http URL"):
        settings("nowhere")


def test_certificates_that_the_asking_rank_cannot_read_end_all_ranks_alike(tmp_path: Path) -> None:
    plans = ServicePlans(settings("https://127.0.0.1:9", ca_file=tmp_path / "none.pem"))
    with pytest.raises(IterationFailed, match=r"opening the planner: rank 0: ValueError: ca_file .*cannot be read"):
        PlanFeed(plans)


def test_a_token_is_in_no_text_of_the_settings() -> None:
    assert "hyd_secret" not in repr(settings(token="hyd_secret"))  # noqa: S106 - made up


def test_token_and_certificates_come_from_the_environment_where_they_are_not_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HYDRAULIS_TOKEN", "hyd_from_environment")
    monkeypatch.setenv("HYDRAULIS_CA_FILE", str(tmp_path / "none.pem"))
    with moody(refusing) as server:
        for given, sent in ((None, b"Bearer hyd_from_environment"), ("hyd_given", b"Bearer hyd_given")):
            plans = ServicePlans(settings(server.url, timeout_s=2.0, token=given))
            with closing(plans), PlanFeed(plans) as feed:
                feed.announce(0, LENGTHS)
                with pytest.raises(PlanningFailed, match=r"refused to plan: not for you \[forbidden\]; give a token="):
                    feed.take(0)
            assert sent in server.heads[-1]
    with pytest.raises(IterationFailed, match=r"ca_file .*none.pem.* cannot be read"):
        PlanFeed(ServicePlans(settings("https://127.0.0.1:9")))


def test_a_planner_that_refuses_a_run_that_has_begun_does_not_stop_it() -> None:
    strategies, options = ("(1,1)x1",), PlanOptions(max_tokens_per_micro_batch=20)
    with moody() as server:
        server.mood = of_one_rank
        plans = ServicePlans(settings(server.url, timeout_s=5.0, strategies=strategies, options=options))
        with closing(plans), PlanFeed(plans) as feed, PlanFeed(plans, numbered=False) as of_evaluation:
            feed.announce(0, LENGTHS)
            assert feed.take(0).origin == "service"
            server.mood = refusing
            feed.announce(1, LENGTHS)
            of_evaluation.announce(1, LENGTHS)
            assert feed.take(1).origin == "fallback"
            assert of_evaluation.take(1).plan.iteration is None


def test_a_planner_that_refuses_the_first_plan_stops_a_run_that_could_go_on_without_it() -> None:
    options = PlanOptions(max_tokens_per_micro_batch=20)
    with moody(refusing) as server:
        plans = ServicePlans(settings(server.url, timeout_s=5.0, strategies=("(1,1)x1",), options=options))
        with closing(plans), PlanFeed(plans) as feed:
            feed.announce(0, LENGTHS)
            with pytest.raises(PlanningFailed, match=r"refused to plan: not for you"):
                feed.take(0)


def of_one_rank(connection: socket.socket, request: bytes) -> None:
    """Plan as a planner would whose one replica is the rank of these tests."""
    basis = FallbackBasis.of_strategy("(1,1)x1", max_tokens=20)
    plan = fallback_plan(basis, PlanRequest.model_validate_json(request))
    send(connection, 200, plan.model_copy(update={"solved_by": "heuristic"}).model_dump_json().encode())


def test_a_batch_that_cannot_be_asked_for_is_that_iterations_fault() -> None:
    plans = ServicePlans(settings(job="run-1"))
    with closing(plans), PlanFeed(plans) as feed:
        feed.announce(3, {"rank-0": [5], "rank-7": [3]})
        with pytest.raises(PlanningFailed, match=r"batch of iteration 3 cannot be planned: .*'rank-7' is in only one"):
            feed.take(3)
