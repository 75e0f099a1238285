"""How arguments are described to compare them between ranks; three real ranks refuse them in `test_trainer`."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from training_runs import CONFIG, PROFILE

from planner_client.contract import PlanOptions
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.same_arguments import described, differences, sequences_described
from worker_agent.trainer.settings import CheckpointSettings, EvaluationSettings, OptimizerSettings


def make(groups: object, rate: float = 0.1) -> None:
    """An optimizer's maker, at another place in each process."""


def config(**changes: Any) -> DecoderConfig:
    return DecoderConfig(**{"vocab_size": 16, "hidden_size": 8, "num_layers": 1, "num_heads": 2, **changes})


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        (
            OptimizerSettings(learning_rate=0.1),
            OptimizerSettings(learning_rate=0.2),
            "x.learning_rate is 0.1 on rank 0",
        ),
        (OptimizerSettings(), OptimizerSettings(betas=(0.9, 0.9)), "x.betas[1] is 0.95 on rank 0 and 0.9 on rank 1"),
        (
            OptimizerSettings(make=partial(make, rate=1)),
            OptimizerSettings(make=partial(make, rate=2)),
            "x.make.keywords",
        ),
        (
            CheckpointSettings(Path("a")),
            CheckpointSettings(Path("b")),
            "x.directory is 'a' on rank 0 and 'b' on rank 1",
        ),
        (CheckpointSettings("a"), None, "x is CheckpointSettings on rank 0 and None on rank 1"),
        (config(), config(vocab_size=17), "x.vocab_size is 16 on rank 0 and 17 on rank 1"),
        (torch.float32, torch.bfloat16, "x is torch.float32 on rank 0 and torch.bfloat16 on rank 1"),
        (PROFILE, PROFILE.model_copy(update={"name": "a"}), "x.name is 'trainer-test' on rank 0 and 'a' on rank 1"),
        (PlanOptions(), PlanOptions(deadline_ms=77), "x.deadline_ms is"),
        (["(1,1)x2"], ["(2,1)x1"], "x[0] is '(1,1)x2' on rank 0 and '(2,1)x1' on rank 1"),
        (None, 0, "x is None on rank 0 and 0 on rank 1"),
    ],
)
def test_what_differs_is_told_by_its_place_with_the_values_of_the_ranks(one: object, other: object, told: str) -> None:
    (difference,) = differences([described({"x": one, "y": 1}), described({"x": other, "y": 1})])
    assert difference.startswith(told)


def test_equal_values_at_other_places_in_memory_are_described_alike() -> None:
    def settings() -> dict[str, object]:
        return {
            "optimizer": OptimizerSettings(make=lambda groups: torch.optim.SGD(groups, lr=0.1)),
            "model": DecoderConfig(**vars(CONFIG)),
            "thing": object(),
            "folder": CheckpointSettings(Path("a")),
        }

    assert described(settings()) == described({**settings(), "folder": CheckpointSettings("a")})
    assert "0x" not in str(described(settings()))


def test_many_ranks_are_counted_and_not_all_listed() -> None:
    (difference,) = differences([{"x": str(rank > 0)} for rank in range(9)])
    assert difference == "x is False on rank 0 and True on ranks 1, 2, 3, 4 and 4 more"
    (difference,) = differences([{"x": str(rank)} for rank in range(9)])
    assert difference == "x is 0 on rank 0 and 1 on rank 1 and 2 on rank 2 and 3 on rank 3 and others"


def test_sequences_are_described_by_how_many_there_are() -> None:
    data = [torch.arange(number + 1) for number in range(7)]
    assert sequences_described(data) == "7 sequences"
    assert sequences_described(iter(data)) == "list_iterator"
    assert described({"x": EvaluationSettings(data)})["x.data"] == "7 sequences"
