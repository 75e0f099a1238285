import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_agent.executor.model import Decoder
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.shape import DecoderConfig

CONFIG = DecoderConfig(vocab_size=23, hidden_size=16, num_layers=3, num_heads=4, num_kv_heads=2)


@pytest.mark.parametrize("tied", [False, True])
def test_the_table_names_every_trained_parameter_of_the_decoder_once(*, tied: bool) -> None:
    config = dataclasses.replace(CONFIG, tied_embeddings=tied)
    table, model = ParameterTable.of(config), Decoder(config)
    assert {entry.name: entry.shape for entry in table.entries} == {
        name: tuple(parameter.shape) for name, parameter in model.named_parameters()
    }
    assert table.num_elements == model.num_parameters
    assert table.entry("layers.1.down").layer == 1


def test_the_table_lists_parameters_back_to_back_in_the_order_of_use() -> None:
    table = ParameterTable.of(CONFIG)
    assert [entry.end for entry in table.entries[:-1]] == [entry.begin for entry in table.entries[1:]]
    assert table.entries[0].name == "embedding"
    assert [entry.name for entry in table.entries[-2:]] == ["final_norm.weight", "head"]
    assert [entry.layer for entry in table.entries] == [None, *[0] * 9, *[1] * 9, *[2] * 9, None, None]


def test_only_matrices_decay() -> None:
    table = ParameterTable.of(CONFIG)
    assert {entry.name.rsplit(".", 1)[-1] for entry in table.entries if not entry.is_matrix} == {"weight"}


def test_an_unknown_parameter_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match=r"no parameter 'layers.9.query'"):
        ParameterTable.of(CONFIG).entry("layers.9.query")


@given(st.integers(1, 5000), st.integers(1, 64))
def test_shards_are_cut_as_torch_chunk_cuts(vocab_size: int, world_size: int) -> None:
    """Hold for any number of elements and ranks.

    1. Shards follow one another from the first element to the last.
    2. Their sizes are those of ``torch.chunk``, with empty ones after its last.
    """
    import torch  # noqa: PLC0415 - the table itself needs none

    table = ParameterTable.of(dataclasses.replace(CONFIG, vocab_size=vocab_size))
    shards = [table.shard(rank, world_size) for rank in range(world_size)]
    assert [begin for begin, _ in shards[1:]] == [end for _, end in shards[:-1]]
    assert (shards[0][0], shards[-1][1]) == (0, table.num_elements)
    sizes = [chunk.numel() for chunk in torch.empty(table.num_elements, device="meta").chunk(world_size)]
    assert [end - begin for begin, end in shards] == sizes + [0] * (world_size - len(sizes))
