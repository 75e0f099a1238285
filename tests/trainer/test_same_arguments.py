"""How arguments are described to compare them between ranks; three real ranks refuse them in `test_rank_groups`."""

from pathlib import Path

import torch

from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.same_arguments import described, sequences_described
from worker_agent.trainer.settings import CheckpointSettings, EvaluationSettings, OptimizerSettings


def make(groups: object) -> None:
    """An optimizer's maker, at another place in each process."""


def test_equal_settings_are_described_alike_and_unlike_ones_are_not() -> None:
    assert described(OptimizerSettings(learning_rate=0.1)) == described(OptimizerSettings(learning_rate=0.1))
    assert described(OptimizerSettings(learning_rate=0.1)) != described(OptimizerSettings(learning_rate=0.2))
    assert described(CheckpointSettings(Path("a"))) != described(CheckpointSettings(Path("b")))
    assert described((3, True)) != described((4, True))
    assert described(torch.float32) != described(torch.bfloat16)
    assert described(None) != described(0)
    fields = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "num_kv_heads": 2, "ffn_size": 8, "vocab_size": 16}
    assert described(DecoderConfig(**fields)) != described(DecoderConfig(**{**fields, "vocab_size": 17}))


def test_functions_are_described_by_name_and_not_by_place() -> None:
    text = described(OptimizerSettings(make=make))
    assert "make" in text
    assert "0x" not in text


def test_sequences_are_told_apart_by_how_many_there_are_and_not_read_for_it() -> None:
    data = [torch.arange(number + 1) for number in range(7)]
    assert sequences_described(data) == "7 sequences"
    assert sequences_described(iter(data)) == "list_iterator"
    assert described(EvaluationSettings(data)) != described(EvaluationSettings(data[1:]))
    assert "tensor" not in described(EvaluationSettings(data))
