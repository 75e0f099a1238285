import math
import warnings

import pytest
import torch
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau, StepLR

from worker_agent.trainer.faults import CheckpointRefused
from worker_agent.trainer.learning_rate import decay_end, learning_rate_share
from worker_agent.trainer.optimizer import (
    make_optimizer,
    make_schedule,
    restore_schedule,
    schedule_document,
    step_schedule,
)
from worker_agent.trainer.settings import OptimizerSettings, ScheduleSettings


def shares(schedule: ScheduleSettings, num_iterations: int) -> list[float]:
    end = decay_end(schedule, num_iterations)
    return [learning_rate_share(iteration, schedule, end) for iteration in range(num_iterations)]


def test_the_rate_rises_in_equal_steps_and_stays() -> None:
    assert shares(ScheduleSettings(warmup_iterations=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_linear_fall_reaches_its_final_share_in_the_last_iteration() -> None:
    linear = ScheduleSettings(warmup_iterations=2, decay="linear", final_share=0.2)
    assert shares(linear, 6) == pytest.approx([0.5, 1, 0.8, 0.6, 0.4, 0.2])
    assert learning_rate_share(99, linear, 6) == pytest.approx(0.2)


def test_a_cosine_falls_along_half_a_cosine() -> None:
    cosine = ScheduleSettings(decay="cosine")
    assert shares(cosine, 5) == pytest.approx([(1 + math.cos(math.pi * done / 4)) / 2 for done in range(5)])


def test_a_fall_may_end_before_the_run() -> None:
    assert shares(ScheduleSettings(decay="linear", decay_iterations=3), 5) == pytest.approx([1, 0.5, 0, 0, 0])


@pytest.mark.parametrize("decay", ["linear", "cosine"])
@pytest.mark.parametrize(("warmup", "num_iterations"), [(0, 1), (1, 1), (5, 3), (3, 3), (3, 4)])
def test_short_runs_have_a_rate_in_every_iteration(decay: str, warmup: int, num_iterations: int) -> None:
    schedule = ScheduleSettings(warmup_iterations=warmup, decay=decay)  # type: ignore[arg-type]
    assert all(0 <= share <= 1 for share in shares(schedule, num_iterations))


def test_a_fall_without_an_end_is_refused() -> None:
    with pytest.raises(ValueError, match="cosine fall has no end; give num_iterations"):
        decay_end(ScheduleSettings(decay="cosine"), None)


def optimizer_of(settings: OptimizerSettings | None = None) -> torch.optim.Optimizer:
    matrix, norm = torch.nn.Parameter(torch.ones(2, 2)), torch.nn.Parameter(torch.ones(2))
    groups = [{"name": "decayed", "params": [matrix]}, {"name": "undecayed", "params": [norm], "weight_decay": 0.0}]
    return make_optimizer(groups, settings or OptimizerSettings(learning_rate=0.1))


def rates(optimizer: torch.optim.Optimizer, scheduler: torch.optim.lr_scheduler.LRScheduler, num: int) -> list[float]:
    seen = []
    for _ in range(num):
        seen.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        step_schedule(scheduler, loss=1.0)
    return seen


def test_matrices_decay_and_norms_do_not() -> None:
    decay = {group["name"]: group["weight_decay"] for group in optimizer_of(OptimizerSettings()).param_groups}
    assert decay == {"decayed": 0.1, "undecayed": 0.0}


def test_another_optimizer_takes_the_groups_as_they_are() -> None:
    optimizer = optimizer_of(OptimizerSettings(make=lambda groups: torch.optim.SGD(groups, lr=3.0)))
    assert isinstance(optimizer, torch.optim.SGD)


def test_a_resumed_run_has_the_rates_that_would_have_come() -> None:
    schedule = ScheduleSettings(warmup_iterations=2, decay="cosine")
    whole = optimizer_of()
    expected = rates(whole, make_schedule(whole, schedule, 7), 7)
    resumed = optimizer_of()
    assert rates(resumed, make_schedule(resumed, schedule, 7, begun_at=3), 4) == expected[3:]


def test_a_run_may_be_resumed_with_a_lower_rate() -> None:
    schedule = ScheduleSettings()
    before = optimizer_of()
    scheduler = make_schedule(before, schedule, 7)
    rates(before, scheduler, 3)
    lower = optimizer_of(OptimizerSettings(learning_rate=0.01))
    resumed = make_schedule(lower, schedule, 7, begun_at=3)
    restore_schedule(lower, resumed, schedule, schedule_document(before, scheduler))
    assert rates(lower, resumed, 2) == [0.01, 0.01]


def test_a_scheduler_of_torch_goes_on_where_its_state_was() -> None:
    schedule = ScheduleSettings(make=lambda optimizer: StepLR(optimizer, step_size=2, gamma=0.5))
    before = optimizer_of()
    scheduler = make_schedule(before, schedule, None)
    rates(before, scheduler, 3)
    after = optimizer_of()
    resumed = make_schedule(after, schedule, None, begun_at=3)
    restore_schedule(after, resumed, schedule, schedule_document(before, scheduler))
    assert rates(after, resumed, 3) == rates(before, scheduler, 3) == pytest.approx([0.05, 0.025, 0.025])


def test_what_a_scheduler_of_torch_was_given_and_does_not_take_is_told() -> None:
    before = optimizer_of()
    written = make_schedule(before, ScheduleSettings(make=lambda optimizer: StepLR(optimizer, step_size=2)), None)
    begun = schedule_document(before, written)
    rates(before, written, 3)
    document = schedule_document(before, written, begun)
    lower = OptimizerSettings(learning_rate=0.001, weight_decay=0.3)
    for _ in range(2):  # also when it is resumed from a checkpoint of a run that was resumed
        after = optimizer_of(lower)
        schedule = ScheduleSettings(make=lambda optimizer: StepLR(optimizer, step_size=5))
        resumed = make_schedule(after, schedule, None, begun_at=3)
        with pytest.warns(UserWarning, match="the schedule goes on as its checkpoint says") as told:
            held = restore_schedule(after, resumed, schedule, document)
        for what in (
            "scheduler.step_size is 5, and stays 2",
            "groups[0].lr is 0.001, and stays 0.1",
            "groups[0].weight_decay is 0.3, and stays 0.1",
        ):
            assert what in str(told[0].message)
        document = schedule_document(after, resumed, held)
    same = optimizer_of()
    schedule = ScheduleSettings(make=lambda optimizer: StepLR(optimizer, step_size=2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore_schedule(same, make_schedule(same, schedule, None, begun_at=3), schedule, document)


def test_momentum_that_a_scheduler_changes_goes_on_as_well() -> None:
    schedule = ScheduleSettings(make=lambda optimizer: OneCycleLR(optimizer, max_lr=0.2, total_steps=8))
    before, after = optimizer_of(), optimizer_of()
    scheduler, resumed = make_schedule(before, schedule, None), make_schedule(after, schedule, None, begun_at=3)
    rates(before, scheduler, 3)
    restore_schedule(after, resumed, schedule, schedule_document(before, scheduler))
    for _ in range(5):
        assert [group["betas"] for group in after.param_groups] == [group["betas"] for group in before.param_groups]
        assert rates(after, resumed, 1) == rates(before, scheduler, 1)


def test_a_checkpoint_of_other_parameter_groups_is_refused() -> None:
    schedule = ScheduleSettings(make=lambda optimizer: StepLR(optimizer, step_size=2))
    before = optimizer_of()
    document = schedule_document(before, make_schedule(before, schedule, None))
    after = optimizer_of(OptimizerSettings(make=lambda groups: torch.optim.SGD(groups[:1], lr=0.1)))
    with pytest.raises(CheckpointRefused, match="with 2 parameter groups but this one has 1"):
        restore_schedule(after, make_schedule(after, schedule, None), schedule, document)


def test_a_plateau_scheduler_hears_of_the_loss() -> None:
    optimizer = optimizer_of()
    scheduler = ReduceLROnPlateau(optimizer, patience=1, factor=0.1)
    assert rates(optimizer, scheduler, 4) == pytest.approx([0.1, 0.1, 0.1, 0.01])
