"""Plans in time, whatever the planner does: real servers that misbehave, real clocks."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moody_planner import (
    BASIS,
    Mood,
    MoodyPlanner,
    after,
    another_plan,
    busy,
    closing,
    garbage,
    half,
    moody,
    nonsense,
    planned,
    refusing,
    silent,
    trickling,
    well,
)

from planner_client import NoPlanPossible, OneShot, PlannerClient, SteadyPlanner, SteadySettings
from planner_client.asking import Batches
from planner_client.breaker import BreakerPolicy
from planner_client.contract import Cluster, IterationTimings, Plan, PlanRequest, ReplicaTiming, SourceBatch
from planner_client.errors import PlannerUnavailable
from planner_client.flow import RetryPolicy
from planner_client.plan_check import check_answers

CLUSTER = Cluster.model_validate({"profile": "p", "num_gpus": 4, "options": {"deadline_ms": 500}})
DEADLINE_S = 0.5
OVERSHOOT_S = 0.35
"""More than a deadline is ever overrun on a machine that others use, too."""

QUICK = SteadySettings(deadline_s=DEADLINE_S, ask_timeout_s=3.0, breaker=BreakerPolicy(3, 0.2, 0.4))


def batch(iteration: int) -> dict[str, SourceBatch]:
    lengths = [100 + (number * 131 + iteration * 17) % 1500 for number in range(40)]
    return {"a": SourceBatch(lengths=lengths[:25]), "b": SourceBatch(lengths=lengths[25:])}


@contextmanager
def steady(url: str, settings: SteadySettings = QUICK, **options: Any) -> Iterator[SteadyPlanner]:
    policy = RetryPolicy(max_attempts=2, first_pause_s=0.02, max_pause_s=0.05)
    with (
        PlannerClient(url, policy=policy) as client,
        SteadyPlanner(OneShot(client, CLUSTER), settings, **options) as planner,
    ):
        yield planner


def wait_until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    ends_at = time.monotonic() + timeout_s
    while time.monotonic() < ends_at and not condition():
        time.sleep(0.01)
    return condition()


def test_the_planners_plan_is_taken_when_it_comes_in_time() -> None:
    with moody() as server, steady(server.url) as planner:
        taken = planner.plan(1, batch(1))
        assert (taken.origin, taken.reason, taken.plan.solved_by) == ("service", None, "heuristic")
        assert taken.waited_ms < 1000 * DEADLINE_S
        assert planner.counts.num_service == 1


def test_plans_are_fetched_ahead_so_that_taking_them_does_not_wait() -> None:
    with moody(after(0.2)) as server, steady(server.url) as planner:
        for iteration in range(4):
            planner.announce(iteration, batch(iteration))
        assert wait_until(lambda: server.num_requests == 4)
        time.sleep(0.5)
        waits = [planner.take(iteration) for iteration in range(4)]
    assert [taken.origin for taken in waits] == ["service"] * 4
    assert max(taken.waited_ms for taken in waits) < 50


MOODS: dict[str, Mood] = {
    "silence": silent,
    "half an answer": half,
    "an answer byte by byte": trickling,
    "a closed connection": closing,
    "nonsense": nonsense,
    "the plan of another batch": another_plan,
    "garbage": garbage,
    "too late": after(0.9),
    "429 with a long wait": busy(429, 60),
    "503 with a short wait": busy(503, 1),
    "a refusal": refusing,
}


@pytest.mark.parametrize("mood", MOODS)
def test_whatever_the_planner_does_a_plan_comes_by_the_deadline(mood: str) -> None:
    with moody(MOODS[mood]) as server, steady(server.url, initial=BASIS) as planner:
        for iteration in range(5):
            began = time.monotonic()
            taken = planner.plan(iteration, batch(iteration))
            took_s = time.monotonic() - began
            assert took_s < DEADLINE_S + OVERSHOOT_S
            assert (taken.origin, taken.plan.solved_by, taken.plan.lower_bound_ms) == ("fallback", "fallback", None)
            assert taken.reason
            check_answers(taken.plan, OneShot(PlannerClient(server.url), CLUSTER).request(iteration, batch(iteration)))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://planner.invalid:8000", "https://127.0.0.1:9"])
def test_a_planner_that_is_not_there_or_has_no_name_keeps_nobody_waiting(url: str) -> None:
    with steady(url, initial=BASIS) as planner:
        began = time.monotonic()
        assert planner.plan(0, batch(0)).origin == "fallback"
        assert time.monotonic() - began < DEADLINE_S + OVERSHOOT_S


def test_after_some_failures_nobody_waits_until_the_planner_answers_again_by_itself() -> None:
    with moody() as server, steady(server.url) as planner:
        assert planner.plan(0, batch(0)).origin == "service"
        server.mood = silent
        waited = [planner.plan(iteration, batch(iteration)).waited_ms for iteration in range(1, 7)]
        assert min(waited[:3]) > 0.5 * 1000 * DEADLINE_S
        assert max(waited[3:]) < 200
        assert planner.counts.breaker != "closed"
        server.mood = well
        origins = []
        for iteration in range(7, 60):
            taken = planner.plan(iteration, batch(iteration))
            origins.append(taken.origin)
            if taken.origin == "service":
                break
            assert taken.waited_ms < 200
            time.sleep(0.05)
        assert origins[-1] == "service"
        assert planner.counts.breaker == "closed"


def test_a_planner_that_died_and_came_back_is_used_again() -> None:
    with moody() as server, steady(server.url) as planner:
        assert planner.plan(0, batch(0)).origin == "service"
        server.go()
        origins = [planner.plan(iteration, batch(iteration)).origin for iteration in range(1, 5)]
        assert origins == ["fallback"] * 4
        server.come()
        assert wait_until(lambda: planner.plan(int(time.monotonic() * 1000), batch(9)).origin == "service")


def test_a_plan_that_comes_after_the_fallback_was_decided_is_not_used_for_that_iteration() -> None:
    with moody(after(0.9)) as server, steady(server.url, initial=BASIS) as planner:
        first = planner.plan(5, batch(5))
        assert first.origin == "fallback"
        assert wait_until(lambda: planner.counts.num_late == 1)
        assert planner.take(5) is first
        planner.announce(5, batch(5))
        assert planner.take(5) is first


def test_many_threads_that_take_one_iteration_get_one_plan() -> None:
    with moody(after(DEADLINE_S)) as server, steady(server.url, initial=BASIS) as planner:
        for iteration in range(6):
            planner.announce(iteration, batch(iteration))
            taken: list[object] = []

            def take(iteration: int = iteration, taken: list[object] = taken) -> None:
                taken.append(planner.take(iteration))

            threads = [threading.Thread(target=take) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(10)
            assert len(taken) == 8
            assert len({id(one) for one in taken}) == 1


def test_without_anything_to_start_from_the_error_is_clear_and_comes_by_the_deadline() -> None:
    with moody(silent) as server, steady(server.url) as planner:
        began = time.monotonic()
        with pytest.raises(
            NoPlanPossible, match=r"gave no plan within 0\.5 s. Without it: .* give SteadyPlanner an init"
        ):
            planner.plan(0, batch(0))
        assert time.monotonic() - began < DEADLINE_S + OVERSHOOT_S


def test_without_anything_to_start_from_a_planner_that_comes_up_within_the_deadline_is_still_asked() -> None:
    server = MoodyPlanner()
    server.come()
    server.go()
    patient = SteadySettings(deadline_s=5.0, breaker=BreakerPolicy(1, 30.0, 30.0))
    with steady(server.url, patient) as planner:
        threading.Timer(1.0, server.come).start()
        assert planner.plan(0, batch(0)).origin == "service"
    server.go()


def test_a_refusal_with_nothing_to_start_from_is_told_at_once() -> None:
    with moody(refusing) as server, steady(server.url, SteadySettings(deadline_s=20.0)) as planner:
        began = time.monotonic()
        with pytest.raises(NoPlanPossible, match="not for you"):
            planner.plan(0, batch(0))
        assert time.monotonic() - began < 2.0


def test_a_sequence_over_every_limit_is_told_with_its_length_and_the_limit() -> None:
    said = "sequence of 9000 tokens but without the planner the limit is 4000"
    with (
        moody(closing) as server,
        steady(server.url, initial=BASIS) as planner,
        pytest.raises(NoPlanPossible, match=said),
    ):
        planner.plan(0, {"a": SourceBatch(lengths=[9000])})


def test_a_restarted_trainer_finds_the_last_good_plan_in_its_file(tmp_path: Path) -> None:
    kept = tmp_path / "last-good.json"
    with moody() as server, steady(server.url, keep_in=kept) as planner:
        planner.plan(0, batch(0))
        assert wait_until(kept.exists)
        server.go()
        with steady(server.url, keep_in=kept) as restarted:
            assert restarted.plan(1, batch(1)).origin == "fallback"
    assert [path.name for path in tmp_path.iterdir()] == ["last-good.json"]


def test_a_file_of_another_cluster_is_not_used(tmp_path: Path) -> None:
    kept = tmp_path / "last-good.json"
    with moody() as server, steady(server.url, keep_in=kept) as planner:
        planner.plan(0, batch(0))
        assert wait_until(kept.exists)
    strategies = [[{"tp": 1, "pp": 1, "num_replicas": 4}]]
    other = Cluster.model_validate({"profile": "p", "num_gpus": 4, "strategies": strategies})
    with (
        PlannerClient("http://127.0.0.1:9") as client,
        SteadyPlanner(OneShot(client, other), QUICK, keep_in=kept) as planner,
        pytest.raises(NoPlanPossible, match="no plan of the planner's is known"),
    ):
        planner.plan(1, batch(1))


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 2}', b"\xff", b'{"format": 1, "cluster": "x", "plan": {}}']
)
def test_a_broken_file_is_ignored_and_said_so(content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = tmp_path / "last-good.json"
    kept.write_bytes(content)
    with moody() as server, steady(server.url, keep_in=kept) as planner:
        assert "cannot be used and is ignored" in caplog.text
        assert planner.plan(0, batch(0)).origin == "service"
        assert wait_until(lambda: len(kept.read_bytes()) > 500)


def test_a_disk_that_takes_nothing_does_not_matter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with moody() as server, steady(server.url, keep_in=tmp_path / "missing" / "plan.json") as planner:
        assert planner.plan(0, batch(0)).origin == "service"
        assert wait_until(lambda: "could not be kept" in caplog.text)


def test_the_window_bounds_what_is_announced() -> None:
    with moody() as server, steady(server.url) as planner:
        for iteration in range(4):
            planner.announce(iteration, batch(iteration))
        with pytest.raises(ValueError, match=r"\[0, 1, 2, 3\] wait to be taken, and the window is 4"):
            planner.announce(4, batch(4))
        planner.announce(3, batch(3))
        with pytest.raises(ValueError, match="announced with another batch"):
            planner.announce(3, batch(33))
        planner.forget()
        planner.announce(3, batch(33))
        assert planner.take(3).origin == "service"
        with pytest.raises(ValueError, match="iteration 9 was not announced"):
            planner.take(9)


def test_a_planner_that_hangs_for_ever_does_not_pile_up_requests() -> None:
    settings = SteadySettings(deadline_s=0.05, window=2, ask_timeout_s=30.0, breaker=BreakerPolicy(1000, 0.1, 0.1))
    before = threading.active_count()
    of_other_tests = set(threading.enumerate())
    with moody(silent) as server, steady(server.url, settings, initial=BASIS) as planner:
        for iteration in range(30):
            planner.plan(iteration, batch(iteration))
        asking = [
            thread for thread in set(threading.enumerate()) - of_other_tests if thread.name.startswith("planner-ask")
        ]
        assert len(asking) <= 4
        assert server.num_requests <= 4
    assert threading.active_count() >= before


class Recording:
    """A way of asking whose planner can be told to be away."""

    def __init__(self) -> None:
        self.is_away = True
        self.sent: list[IterationTimings] = []

    def request(self, iteration: int, batches: Batches) -> PlanRequest:
        return PlanRequest(
            profile="p", num_gpus=4, iteration=iteration, lengths={name: own.lengths for name, own in batches.items()}
        )

    def ask(self, request: PlanRequest, batches: Batches, timeout_s: float) -> Plan:
        assert batches
        assert timeout_s > 0
        if self.is_away:
            raise PlannerUnavailable("away")
        return planned(request)

    def report_timings(self, timings: IterationTimings, timeout_s: float) -> bool:
        assert timeout_s > 0
        if self.is_away:
            raise PlannerUnavailable("away")
        self.sent.append(timings)
        return True


def timings(iteration: int, digest: str = "sha256:0") -> IterationTimings:
    return IterationTimings(
        digest=digest,
        iteration=iteration,
        replicas=[ReplicaTiming(replica=0, wall_ms=1.0, micro_batch_ms=[1.0])],
    )


def test_measured_times_wait_for_the_planner_and_the_oldest_are_dropped_and_counted() -> None:
    asking = Recording()
    with SteadyPlanner(asking, SteadySettings(max_timings_waiting=5), initial=BASIS) as planner:
        began = time.monotonic()
        for iteration in range(20):
            planner.report_timings(timings(iteration))
        assert time.monotonic() - began < 0.2
        assert planner.counts.num_timings_dropped == 15
        asking.is_away = False
        assert wait_until(lambda: len(asking.sent) == 5)
        assert wait_until(lambda: planner.counts.num_timings_sent == 5)
        assert [one.iteration for one in asking.sent] == [15, 16, 17, 18, 19]


def test_measured_times_of_a_fallback_say_so() -> None:
    asking = Recording()
    with SteadyPlanner(asking, QUICK, initial=BASIS) as planner:
        made = planner.plan(1, batch(1))
        asking.is_away = False
        own = planner.plan(2, batch(2))
        planner.report_timings(timings(1, made.plan.digest))
        planner.report_timings(timings(2, own.plan.digest))
        assert wait_until(lambda: len(asking.sent) == 2, 10)
    assert [(one.iteration, one.solved_by) for one in asking.sent] == [(1, "fallback"), (2, "planner")]


def test_closing_does_not_wait_for_a_planner_that_is_away() -> None:
    planner = SteadyPlanner(Recording(), initial=BASIS)
    planner.report_timings(timings(1))
    began = time.monotonic()
    planner.close()
    assert time.monotonic() - began < 3.0
    assert planner.counts.num_timings_dropped == 1
    with pytest.raises(ValueError, match="is closed"):
        planner.announce(1, batch(1))


def test_whoever_waits_when_the_planner_is_closed_gets_a_fallback_at_once() -> None:
    with moody(silent) as server, steady(server.url, SteadySettings(deadline_s=20.0), initial=BASIS) as planner:
        threading.Timer(0.2, planner.close).start()
        began = time.monotonic()
        assert planner.plan(0, batch(0)).origin == "fallback"
        assert time.monotonic() - began < 2.0


def test_fallbacks_are_logged_with_their_reason(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), moody(busy(503, 60)) as server, steady(server.url, initial=BASIS) as planner:
        for iteration in range(3):
            planner.plan(iteration, batch(iteration))
    assert "iteration 2 runs by a plan made without the planner" in caplog.text
    assert "too much to do" in caplog.text
    assert "is not waited for" in caplog.text


def test_a_warning_is_given_when_plans_turn_to_fallbacks_and_when_they_return(caplog: pytest.LogCaptureFixture) -> None:
    settings = SteadySettings(deadline_s=5.0, breaker=BreakerPolicy(2, 0.05, 0.1))
    with (
        caplog.at_level(logging.WARNING),
        moody(busy(503, 60)) as server,
        steady(server.url, settings, initial=BASIS) as planner,
    ):
        for iteration in range(5):
            planner.plan(iteration, batch(iteration))
        server.mood = well
        for iteration in range(5, 40):
            time.sleep(0.1)
            if planner.plan(iteration, batch(iteration)).origin == "service":
                break
    said = [record.getMessage() for record in caplog.records if "runs by" in record.getMessage()]
    assert [text.partition(":")[0] for text in said] == [
        "iteration 0 runs by a plan made without the planner",
        f"iteration {iteration} runs by a plan of the planner's again",
    ]


@pytest.mark.parametrize(
    "numbers", [{"deadline_s": 0.0}, {"deadline_s": float("inf")}, {"ask_timeout_s": -1.0}, {"window": 0}]
)
def test_settings_that_make_no_sense_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="give"):
        SteadySettings(**numbers)


def test_a_name_server_that_does_not_answer_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def resolve(*_: object, **__: object) -> list[object]:
        time.sleep(5)
        raise socket.gaierror("late")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    with steady("http://planner:8000", initial=BASIS) as planner:
        began = time.monotonic()
        assert planner.plan(0, batch(0)).origin == "fallback"
        assert time.monotonic() - began < DEADLINE_S + OVERSHOOT_S
    with PlannerClient("http://planner:8000") as client:
        began = time.monotonic()
        with pytest.raises(PlannerUnavailable, match="not resolved in time"):
            client.profiles(timeout_s=0.3)
        assert time.monotonic() - began < 0.3 + OVERSHOOT_S
        names = [thread for thread in threading.enumerate() if thread.name == "planner-names"]
        assert len(names) <= 2


def test_the_plan_of_a_planner_that_claims_to_have_fallen_back_is_not_taken() -> None:
    def labelled(connection: socket.socket, request: bytes) -> None:
        plan = planned(PlanRequest.model_validate_json(request))
        body = json.dumps({**json.loads(plan.model_dump_json()), "solved_by": "fallback"}).encode()
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

    with moody(labelled) as server, steady(server.url, initial=BASIS) as planner:
        taken = planner.plan(0, batch(0))
        assert taken.origin == "fallback"
        assert "labelled" in str(taken.reason)
