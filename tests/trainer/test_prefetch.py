import subprocess
import sys
import threading
import time

import pytest

from planner_client.contract import Plan
from worker_agent.prefetch import PlanPrefetcher


def make_plan(iteration: int) -> Plan:
    return Plan.seal(
        profile="p",
        iteration=iteration,
        seed=0,
        num_sequences=0,
        num_tokens=0,
        dropped=[],
        replicas=[],
        makespan_ms=0.0,
        simulated_ms=0.0,
        sync_ms=0.0,
        lower_bound_ms=None,
        gap=None,
        bound_scope=None,
        solved_by="heuristic",
        status="feasible",
        planning_ms=0.0,
        num_gpus=1,
        strategy="(1,1)x1",
    )


def test_a_plan_fetched_ahead_is_not_waited_for() -> None:
    fetched = threading.Event()

    def fetch(iteration: int) -> Plan:
        time.sleep(0.05)
        fetched.set()
        return make_plan(iteration)

    with PlanPrefetcher(fetch) as prefetcher:
        prefetcher.start(3)
        assert fetched.wait(5)
        time.sleep(0.05)
        taken = prefetcher.take(3)
    assert taken.plan.iteration == 3
    assert taken.fetch_ms >= 50
    assert taken.waited_ms < 40


def test_a_plan_not_asked_for_ahead_is_waited_for_wholly() -> None:
    def fetch(iteration: int) -> Plan:
        time.sleep(0.05)
        return make_plan(iteration)

    with PlanPrefetcher(fetch) as prefetcher:
        taken = prefetcher.take(0)
    assert taken.waited_ms >= taken.fetch_ms >= 50


def test_asking_twice_fetches_once() -> None:
    asked: list[int] = []

    def fetch(iteration: int) -> Plan:
        asked.append(iteration)
        return make_plan(iteration)

    with PlanPrefetcher(fetch) as prefetcher:
        prefetcher.start(1)
        prefetcher.start(1)
        prefetcher.take(1)
    assert asked == [1]


def test_what_fetching_raised_reaches_the_one_who_takes() -> None:
    def fetch(iteration: int) -> Plan:
        raise ConnectionError(f"no plan {iteration}")

    with PlanPrefetcher(fetch) as prefetcher:
        prefetcher.start(2)
        with pytest.raises(ConnectionError, match="no plan 2"):
            prefetcher.take(2)


def test_a_plan_that_takes_too_long_is_given_up_by_name() -> None:
    goes_on = threading.Event()

    def fetch(iteration: int) -> Plan:
        goes_on.wait(10)
        return make_plan(iteration)

    with PlanPrefetcher(fetch, timeout_s=0.05) as prefetcher:
        with pytest.raises(TimeoutError, match=r"no plan for iteration 7 within 0.05 s"):
            prefetcher.take(7)
        goes_on.set()


def test_a_time_limit_of_the_fetch_itself_is_passed_on_as_it_is() -> None:
    def fetch(iteration: int) -> Plan:
        raise TimeoutError(f"no answer to {iteration}")

    with PlanPrefetcher(fetch, timeout_s=5) as prefetcher, pytest.raises(TimeoutError, match="no answer to 7"):
        prefetcher.take(7)


_ENDLESS = """
import os, signal, threading, time
from worker_agent.prefetch import PlanPrefetcher

with PlanPrefetcher(lambda _: time.sleep(10**6), timeout_s={timeout_s}) as prefetcher:
    prefetcher.start(0)
    prefetcher.start(1)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    prefetcher.take(0)
"""


@pytest.mark.parametrize(("timeout_s", "ended_by"), [(0.1, "TimeoutError"), (None, "KeyboardInterrupt")])
def test_a_fetch_that_never_ends_does_not_keep_the_process(timeout_s: float | None, ended_by: str) -> None:
    started = time.monotonic()
    code = _ENDLESS.format(timeout_s=timeout_s)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended_by in done.stderr
    assert time.monotonic() - started < 30


def test_what_was_asked_for_before_it_was_closed_is_not_fetched_after_it() -> None:
    goes_on, asked = threading.Event(), []

    def fetch(iteration: int) -> Plan:
        asked.append(iteration)
        goes_on.wait(10)
        return make_plan(iteration)

    with PlanPrefetcher(fetch) as prefetcher:
        for iteration in range(3):
            prefetcher.start(iteration)
        (thread,) = (thread for thread in threading.enumerate() if thread.name == "plan-prefetch")
    goes_on.set()
    thread.join(10)
    assert not thread.is_alive()
    assert asked in ([], [0])
