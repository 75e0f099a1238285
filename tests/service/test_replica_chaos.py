"""Two services over one PostgreSQL database are killed and cut off while many sources report."""

import asyncio
from collections.abc import Callable

import pytest
from postgres import PostgresServer
from replica_chaos import Chaos, ChaosShape, Outcome, every_iteration_has_one_plan
from served_planner import ServedPlanner

Serve = Callable[..., ServedPlanner]


@pytest.mark.timeout(300)
def test_every_iteration_has_one_plan_whatever_happens_to_the_services(
    serve: Serve, postgres_server: PostgresServer
) -> None:
    shape = ChaosShape(num_jobs=6, num_iterations=14, num_sources=4, pause_s=1.0)
    chaos = Chaos(serve, postgres_server, shape, seed=5)
    outcome = asyncio.run(_all_of(chaos))
    assert outcome.harms.total() >= 2
    every_iteration_has_one_plan(outcome, shape)


@pytest.mark.bench
@pytest.mark.long
@pytest.mark.timeout(3000)
def test_fifty_jobs_of_two_hundred_sources_have_one_plan_for_each_of_five_thousand_iterations(
    serve: Serve, postgres_server: PostgresServer
) -> None:
    shape = ChaosShape(num_jobs=50, num_iterations=100, num_sources=4, pause_s=30.0)
    chaos = Chaos(serve, postgres_server, shape, seed=6)
    outcome = asyncio.run(_all_of(chaos))
    print(  # noqa: T201 - the figures are what a bench is for
        f"\n{len(outcome.plans)} iterations in {outcome.elapsed_s:.0f} s; harms {dict(outcome.harms)}; answers "
        f"{dict(sorted(outcome.statuses.items()))}, {outcome.num_lost} requests without one"
    )
    assert outcome.harms.total() >= 10
    every_iteration_has_one_plan(outcome, shape)


async def _all_of(chaos: Chaos) -> Outcome:
    outcome = await chaos.run()
    await chaos.look_again()
    return outcome
