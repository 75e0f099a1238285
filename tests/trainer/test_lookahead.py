"""Iterations are announced two ahead, prepared one ahead, and what is wrong with one is a fault of its own alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from plan_factory import reseal
from torch import Tensor
from training_runs import CONFIG, own_plan

from planner_client.contract import Plan
from worker_agent.executor.faults import ExecutionFault, IterationFailed, PlanningFailed
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState
from worker_agent.trainer.loader import BatchLoader
from worker_agent.trainer.lookahead import Lookahead
from worker_agent.trainer.planning import OwnPlans, PlanFeed, RunPlan
from worker_agent.trainer.process_group import join_process_group
from worker_agent.trainer.settings import BatchLimit

NUM_ITERATIONS = 5


@pytest.fixture(scope="module", autouse=True)
def _one_rank() -> Iterator[None]:
    assert join_process_group(30.0)
    yield
    dist.destroy_process_group()


class Run:
    """Real batches of one sequence, plans and iterations of one rank, that write down what happens."""

    def __init__(self, *, missing: int | None = None, bad: int | None = None) -> None:
        self.log: list[str] = []
        self._num_planned = 0
        self._missing = missing
        data: list[Tensor] = [torch.arange(3 + number) for number in range(NUM_ITERATIONS + 3)]
        if bad is not None:
            data[bad] = torch.ones(3)
        run, log = self, self.log

        class Feed(PlanFeed):
            def announce(self, iteration: int, lengths: Mapping[str, Sequence[int]]) -> None:
                log.append(f"announce {iteration}")
                super().announce(iteration, lengths)

            def take(self, iteration: int) -> RunPlan:
                log.append(f"take {iteration}")
                return super().take(iteration)

        class Runner(IterationRunner):
            def prepare(self, plan: Plan, sequences: Any) -> None:
                log.append(f"prepare {plan.iteration} of {len(sequences[0])} tokens")
                super().prepare(plan, sequences)

        state = ShardedState(CONFIG, make_optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1))
        self.feed, self.runner = Feed(OwnPlans(run.plan)), Runner(state)
        loader = BatchLoader(data, BatchLimit(sequences=1), shuffle=False)
        self.ahead = Lookahead(loader, self.feed, self.runner, lambda iteration, _: iteration >= NUM_ITERATIONS)

    def plan(self, lengths: Mapping[str, Sequence[int]]) -> Plan:
        self._num_planned += 1
        if self._num_planned - 1 == self._missing:
            raise LookupError("no such table")
        return reseal(own_plan(lengths, ((1, 1),)), iteration=self._num_planned - 1)

    def go(self) -> tuple[list[int], ExecutionFault | None]:
        """Run all iterations; return how many tokens each had, and what ended them too early."""
        done: list[int] = []
        try:
            for iteration in range(NUM_ITERATIONS):
                batch, taken = self.ahead.take(iteration)
                self.log.append(f"run {iteration}")
                assert torch.isfinite(torch.tensor(self.runner.run(taken.plan, batch.held).loss))
                done.append(batch.num_tokens)
        except ExecutionFault as fault:
            return done, fault
        finally:
            self.runner.close()
            self.feed.__exit__(None, None, None)
        return done, None


def test_an_iteration_is_prepared_while_the_one_before_it_runs() -> None:
    run = Run()
    assert run.go() == ([3, 4, 5, 6, 7], None)
    assert sum(line.startswith("announce") for line in run.log) == NUM_ITERATIONS, "nothing is read past the end"
    for iteration in range(1, NUM_ITERATIONS):
        assert run.log.index(f"announce {iteration}") < run.log.index(f"run {max(0, iteration - 2)}")
        assert run.log.count(f"take {iteration}") == 1
    for iteration in range(2, NUM_ITERATIONS):
        prepared = run.log.index(f"prepare {iteration} of {iteration + 3} tokens")
        assert prepared < run.log.index(f"run {iteration - 1}")


def test_a_plan_that_is_missing_does_not_stop_the_iterations_before_it() -> None:
    done, fault = Run(missing=2).go()
    assert done == [3, 4]
    assert isinstance(fault, PlanningFailed)
    assert "no such table" in str(fault)


@pytest.mark.parametrize("bad", range(4))
def test_a_sequence_that_cannot_be_read_does_not_stop_the_iterations_before_it(bad: int) -> None:
    run = Run(bad=bad)
    done, fault = run.go()
    assert done == [3, 4, 5, 6][:bad]
    assert isinstance(fault, IterationFailed)
    assert f"data[{bad}] (slot {bad} of epoch 0) holds a tensor of shape (3,) and torch.float32" in str(fault)
    assert f"announce {bad}" not in run.log
