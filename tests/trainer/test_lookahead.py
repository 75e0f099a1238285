"""Iterations are announced two ahead, prepared one ahead, and a missing plan is a fault of its own iteration alone."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from worker_agent.executor.faults import PlanningFailed
from worker_agent.trainer.lookahead import Lookahead
from worker_agent.trainer.planning import RunPlan
from worker_agent.trainer.sampling import DataPosition


@dataclass
class Told:
    """Stands for loader, feed and runner at once, and writes down what it is told."""

    missing: int | None = None
    log: list[str] = field(default_factory=list)
    num_read: int = 0

    def next(self) -> Any:
        self.num_read += 1
        return Batch(self.num_read - 1)

    def announce(self, iteration: int, _: object) -> None:
        self.log.append(f"announce {iteration}")

    def take(self, iteration: int) -> RunPlan:
        self.log.append(f"take {iteration}")
        if iteration == self.missing:
            raise PlanningFailed("Timeout", "too late")
        return RunPlan(plan=f"plan {iteration}")  # type: ignore[arg-type]

    def prepare(self, plan: str, held: str) -> None:
        self.log.append(f"prepare {plan} for {held}")


@dataclass
class Batch:
    number: int

    @property
    def held(self) -> str:
        return f"batch {self.number}"

    @property
    def lengths(self) -> dict[str, list[int]]:
        return {}

    @property
    def after(self) -> DataPosition:
        return DataPosition(0, self.number + 1)


def ahead_of(told: Told, num_iterations: int) -> Lookahead:
    return Lookahead(told, told, told, lambda iteration, _: iteration >= num_iterations)  # type: ignore[arg-type]


def test_an_iteration_is_prepared_while_the_one_before_it_runs() -> None:
    told = Told()
    ahead = ahead_of(told, 4)
    taken = []
    for iteration in range(4):
        batch, plan = ahead.take(iteration)
        taken.append((batch.held, plan.plan))
        told.log.append(f"run {iteration}")
    assert taken == [(f"batch {i}", f"plan {i}") for i in range(4)]
    assert told.num_read == 4, "nothing is read past the end"
    for iteration in range(1, 4):
        begun = told.log.index(f"announce {iteration}")
        assert begun < told.log.index(f"run {max(0, iteration - 2)}")
        assert told.log.count(f"take {iteration}") == 1
    for iteration in range(2, 4):
        assert told.log.index(f"prepare plan {iteration} for batch {iteration}") < told.log.index(
            f"run {iteration - 1}"
        )


def test_a_plan_that_is_missing_does_not_stop_the_iteration_before_it() -> None:
    told = Told(missing=2)
    ahead = ahead_of(told, 4)
    assert [ahead.take(iteration)[1].plan for iteration in range(2)] == ["plan 0", "plan 1"]
    with pytest.raises(PlanningFailed, match="too late"):
        ahead.take(2)
