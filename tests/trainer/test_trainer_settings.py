from collections.abc import Callable
from typing import Any

import pytest

from worker_agent.executor.faults import NotFinite
from worker_agent.trainer.advice import stopped
from worker_agent.trainer.checkpoint_folder import checkpoint_name
from worker_agent.trainer.settings import (
    BatchLimit,
    CheckpointSettings,
    EvaluationSettings,
    OptimizerSettings,
    RunLength,
    ScheduleSettings,
    refuse_bad_seed,
    refuse_no_duration,
)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: OptimizerSettings(learning_rate=-1.0), "learning_rate is -1.0; give at least 0"),
        (lambda: OptimizerSettings(learning_rate=float("nan")), "learning_rate is nan"),
        (lambda: OptimizerSettings(betas=(0.9, 1.0)), r"betas are \(0.9, 1.0\)"),
        (lambda: OptimizerSettings(max_norm=0.0), "max_norm is 0.0; give a positive number"),
        (lambda: ScheduleSettings(warmup_iterations=-1), "warmup_iterations is -1"),
        (lambda: ScheduleSettings(decay="steps"), "decay is 'steps'; give constant, linear or cosine"),  # type: ignore[arg-type]
        (lambda: ScheduleSettings(final_share=2.0), "final_share is 2.0"),
        (BatchLimit, "give tokens_per_iteration, sequences_per_iteration or both"),
        (lambda: BatchLimit(tokens=0), "tokens_per_iteration is 0; give at least 1"),
        (RunLength, "give num_iterations, num_epochs or both"),
        (lambda: RunLength(epochs=0), "num_epochs is 0"),
        (lambda: CheckpointSettings("folder", keep=0), "keep is 0"),
        (lambda: CheckpointSettings("folder", resume="always"), "resume is 'always'"),  # type: ignore[arg-type]
        (lambda: refuse_bad_seed(-1), "seed is -1; give a whole number from 0 to 9223372036854775807"),
        (lambda: refuse_bad_seed(2**63), "seed is 9223372036854775808; give a whole number"),
        (lambda: refuse_bad_seed(1.5), "seed is 1.5; give a whole number"),  # type: ignore[arg-type]
        (lambda: refuse_no_duration(wait_s=float("nan")), "wait_s is nan; give a positive number of seconds"),
        (lambda: refuse_no_duration(wait_s=float("inf")), "wait_s is inf"),
        (lambda: refuse_no_duration(wait_s=-1.0), "wait_s is -1.0"),
        (lambda: EvaluationSettings([], every_iterations=0), "every_iterations is 0"),
        (lambda: EvaluationSettings(iter([])), "list_iterator, which can be read only once"),
    ],
)
def test_a_setting_out_of_range_is_refused_with_its_limit(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def advice(checkpoint: Any, settings: CheckpointSettings | None) -> str:
    return str(stopped(NotFinite("the loss is nan after computing iteration 12"), 12, checkpoint, settings))


def test_a_stopped_run_says_what_happened_and_from_where_to_go_on() -> None:
    settings = CheckpointSettings("folder")
    said = advice(settings.path / checkpoint_name(10), settings)
    assert said.startswith("iteration 12 was not finished (NotFinite): the loss is nan")
    assert "from checkpoint folder/iteration-00000010 (10 iterations done), start the same command again" in said


def test_a_run_that_never_resumes_by_itself_is_told_how_to() -> None:
    settings = CheckpointSettings("folder", resume="never")
    assert "start again with resume='newest'" in advice(settings.path / checkpoint_name(10), settings)


def test_a_stopped_run_without_a_checkpoint_says_so() -> None:
    assert "No checkpoint had been written to folder yet" in advice(None, CheckpointSettings("folder"))
    assert "The run writes no checkpoints" in advice(None, None)
