"""Solver processes that stick, die, refuse or break, and the deadline that holds all the same."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from served_planner import is_running

from planner_client.contract import Plan, PlanRequest, Profile
from planner_service.core.faults import PlanningFault
from planner_service.pool import PoolLimits, SolverPool
from planner_service.pool.process import inner_deadline_ms
from planner_service.pool.slot import PlannerBroken, SolverDied

PROFILE = Profile.model_validate(
    {
        "name": "tiny",
        "source": "made up",
        "model": {"name": "tiny", "num_layers": 1, "hidden_size": 8, "vocab_size": 8},
        "device": {"name": "cpu", "memory_bytes": 1},
        "layouts": [
            {"tp": 1, "pp": 1, "a_ms_per_token2": 0, "b_ms_per_token": 1, "c_ms": 0, "max_tokens": 100},
        ],
    }
)
ANSWER_SLACK_S = 0.5
"""How late an answer may come on a loaded machine; the deadlines below are far from it."""


def request(*, seed: int = 0, deadline_ms: int = 5000) -> PlanRequest:
    return PlanRequest.model_validate(
        {
            "profile": "tiny",
            "num_gpus": 1,
            "lengths": [3, 4],
            "options": {"seed": seed, "deadline_ms": deadline_ms},
        }
    )


@asynccontextmanager
async def running_pool(planner: str, **limits: Any) -> AsyncIterator[SolverPool]:
    bounds = {
        "num_workers": 1,
        "max_waiting": 8,
        "max_wait_ms": 20_000,
        "grace_ms": 500,
        "start_timeout_s": 30,
        "max_solver_bytes": 2**30,
    }
    pool = SolverPool(PoolLimits(**{**bounds, **limits}), solve_name=f"misbehaving_planner:{planner}")
    await pool.start()
    try:
        yield pool
    finally:
        pids = pool.pids
        await pool.close()
        assert not [pid for pid in pids if is_running(pid)]


def in_pool(planner: str, scenario: Callable[[SolverPool], Any], **limits: Any) -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_pool(planner, **limits) as pool:
            await scenario(pool)

    asyncio.run(run())


def test_a_plan_comes_back_as_the_solver_made_it() -> None:
    async def scenario(pool: SolverPool) -> None:
        solved = await pool.solve(request(), (PROFILE,))
        plan = Plan.model_validate_json(solved.plan.body)
        assert plan.num_tokens == 7
        assert plan.planning_ms == pool.pids[0]
        assert not plan.cut_by_wall_clock

    in_pool("obliging", scenario)


def test_a_solver_that_ignores_its_deadline_is_cut_and_replaced() -> None:
    async def scenario(pool: SolverPool) -> None:
        await pool.solve(request(seed=1), (PROFILE,))
        first_pid = pool.pids[0]
        began = time.monotonic()
        with pytest.raises(PlanningFault) as refused:
            await pool.solve(request(deadline_ms=300), (PROFILE,))
        assert time.monotonic() - began < 0.3 + ANSWER_SLACK_S
        assert refused.value.code == "deadline-exceeded"
        assert refused.value.numbers == {"deadline_ms": 300.0}
        assert (await pool.solve(request(seed=1), (PROFILE,))).plan.planning_ms != first_pid
        assert not is_running(first_pid)
        assert pool.num_replaced == 1

    in_pool("stuck", scenario)


def test_at_the_deadline_the_best_incumbent_is_the_answer_and_says_so() -> None:
    async def scenario(pool: SolverPool) -> None:
        await asyncio.sleep(1.0)
        began = time.monotonic()
        solved = await pool.solve(request(deadline_ms=400), (PROFILE,))
        assert time.monotonic() - began < 3.0
        plan = Plan.model_validate_json(solved.plan.body)
        assert plan.makespan_ms == 50.0
        assert plan.cut_by_wall_clock
        assert solved.solve_ms < 400 + 1000 * ANSWER_SLACK_S

    in_pool("stuck_after_incumbents", scenario)


def test_a_solver_that_keeps_its_deadline_is_not_cut() -> None:
    async def scenario(pool: SolverPool) -> None:
        for _ in range(3):
            solved = await pool.solve(request(deadline_ms=500), (PROFILE,))
            assert not solved.plan.cut_by_wall_clock
        assert pool.num_replaced == 0

    in_pool("slow", scenario)


@pytest.mark.parametrize("deadline_ms", [1, 10, 1000, 600_000])
def test_the_search_ends_before_the_server_stops_waiting(deadline_ms: int) -> None:
    inner_ms = inner_deadline_ms(deadline_ms)
    assert 0 < inner_ms < deadline_ms
    assert deadline_ms - inner_ms <= 50


def test_a_request_whose_solver_dies_is_tried_once_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRAULIS_TEST_MARKER", str(tmp_path / "died"))

    async def scenario(pool: SolverPool) -> None:
        solved = await pool.solve(request(seed=2), (PROFILE,))
        assert Plan.model_validate_json(solved.plan.body).num_tokens == 7
        assert pool.num_replaced == 1

    in_pool("dying", scenario)


def test_a_request_whose_solvers_die_twice_fails_and_the_pool_lives() -> None:
    async def scenario(pool: SolverPool) -> None:
        with pytest.raises(SolverDied):
            await pool.solve(request(seed=0), (PROFILE,))
        solved = await pool.solve(request(seed=1), (PROFILE,))
        assert solved.plan.makespan_ms == 50.0
        assert solved.plan.cut_by_wall_clock

    in_pool("dying", scenario)


def test_a_solver_killed_from_outside_while_idle_is_replaced() -> None:
    async def scenario(pool: SolverPool) -> None:
        await pool.solve(request(), (PROFILE,))
        killed = pool.pids[0]
        os.kill(killed, signal.SIGKILL)
        solved = await pool.solve(request(), (PROFILE,))
        assert solved.plan.planning_ms != killed

    in_pool("obliging", scenario)


def test_a_stopped_solver_does_not_hold_its_request() -> None:
    async def scenario(pool: SolverPool) -> None:
        running = asyncio.ensure_future(pool.solve(request(deadline_ms=1500), (PROFILE,)))
        while pool.num_ready == 0:
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        os.kill(pool.pids[0], signal.SIGSTOP)
        with pytest.raises(PlanningFault, match="deadline"):
            await asyncio.wait_for(running, 10)

    in_pool("slow", scenario)


def test_a_request_that_takes_too_much_memory_is_refused_and_the_solver_lives() -> None:
    async def scenario(pool: SolverPool) -> None:
        await pool.solve(request(seed=1), (PROFILE,))
        pid = pool.pids[0]
        with pytest.raises(PlanningFault, match="more than the 1073741824 bytes") as refused:
            await pool.solve(request(), (PROFILE,))
        assert refused.value.code == "invalid-request"
        assert (await pool.solve(request(seed=1), (PROFILE,))).plan.planning_ms == pid

    in_pool("greedy", scenario)


def test_a_refusal_travels_with_its_numbers() -> None:
    async def scenario(pool: SolverPool) -> None:
        with pytest.raises(PlanningFault) as refused:
            await pool.solve(request(), (PROFILE,))
        assert refused.value.code == "sequence-too-long"
        assert refused.value.numbers == {"length": 9, "limit": 8}
        assert pool.num_replaced == 0

    in_pool("refusing", scenario)


def test_a_bug_of_the_planner_keeps_its_traceback_and_the_solver_lives() -> None:
    async def scenario(pool: SolverPool) -> None:
        for _ in range(2):
            with pytest.raises(PlannerBroken, match="KeyError: 'a bug of the planner'"):
                await pool.solve(request(), (PROFILE,))
        assert pool.num_replaced == 0

    in_pool("broken", scenario)


def test_one_request_too_many_is_told_when_to_come_back() -> None:
    async def scenario(pool: SolverPool) -> None:
        while not pool.is_ready:
            await asyncio.sleep(0.02)
        jobs = [asyncio.ensure_future(pool.solve(request(deadline_ms=800), (PROFILE,))) for _ in range(3)]
        await asyncio.sleep(0.1)
        with pytest.raises(PlanningFault) as refused:
            await pool.solve(request(), (PROFILE,))
        assert refused.value.code == "overloaded"
        assert refused.value.numbers["retry_after_s"] >= 1  # type: ignore[operator]
        plans = await asyncio.gather(*jobs)
        assert max(solved.wait_ms for solved in plans) > 800

    in_pool("slow", scenario, max_waiting=2)


def test_waiting_for_a_solver_has_a_bound_of_its_own() -> None:
    async def scenario(pool: SolverPool) -> None:
        while not pool.is_ready:
            await asyncio.sleep(0.02)
        first = asyncio.ensure_future(pool.solve(request(deadline_ms=1500), (PROFILE,)))
        await asyncio.sleep(0.1)
        with pytest.raises(PlanningFault, match="within 200 ms"):
            await pool.solve(request(), (PROFILE,))
        await first

    in_pool("slow", scenario, max_wait_ms=200)


def test_a_request_given_up_frees_its_solver() -> None:
    async def scenario(pool: SolverPool) -> None:
        while not pool.is_ready:
            await asyncio.sleep(0.02)
        pid = pool.pids[0]
        given_up = asyncio.ensure_future(pool.solve(request(deadline_ms=60_000), (PROFILE,)))
        await asyncio.sleep(0.2)
        given_up.cancel()
        solved = await asyncio.wait_for(pool.solve(request(deadline_ms=100), (PROFILE,)), 5)
        assert solved.plan.planning_ms == pid
        assert pool.num_replaced == 0

    in_pool("slow", scenario)


def test_a_request_given_up_while_it_waits_takes_no_solver() -> None:
    async def scenario(pool: SolverPool) -> None:
        while not pool.is_ready:
            await asyncio.sleep(0.02)
        first = asyncio.ensure_future(pool.solve(request(deadline_ms=1000), (PROFILE,)))
        await asyncio.sleep(0.1)
        second = asyncio.ensure_future(pool.solve(request(deadline_ms=60_000), (PROFILE,)))
        await asyncio.sleep(0.1)
        second.cancel()
        await first
        assert pool.num_waiting == 0
        await asyncio.wait_for(pool.solve(request(deadline_ms=100), (PROFILE,)), 5)

    in_pool("slow", scenario)


def test_closing_the_pool_ends_running_and_waiting_requests_at_once() -> None:
    async def run() -> None:
        async with asyncio.timeout(60), running_pool("slow") as pool:
            while not pool.is_ready:
                await asyncio.sleep(0.02)
            jobs = [asyncio.ensure_future(pool.solve(request(deadline_ms=60_000), (PROFILE,))) for _ in range(3)]
            await asyncio.sleep(0.2)
            began = time.monotonic()
            await pool.close()
            outcomes = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 5)
            assert time.monotonic() - began < 5
            assert [getattr(outcome, "code", outcome) for outcome in outcomes] == ["shutting-down"] * 3
            with pytest.raises(PlanningFault, match="shutting down"):
                await pool.solve(request(), (PROFILE,))

    asyncio.run(run())


def test_a_planner_that_cannot_be_imported_leaves_the_pool_not_ready_and_says_why() -> None:
    async def scenario(pool: SolverPool) -> None:
        while pool.start_failure is None:
            await asyncio.sleep(0.05)
        assert not pool.is_ready
        assert "ended while it started" in pool.start_failure

    in_pool("no_such_function", scenario)
