from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_group import run_ranks
from reference import flat_weights
from sharding import CONFIG, SEED, adam, gradient, new_state, step, train, train_whole
from torch import Tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from worker_agent.executor.model import Decoder
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState


def on_ranks(folder: Path, world_size: int, *arguments: Any) -> list[dict[str, Any]]:
    folder.mkdir()
    ends = run_ranks(train, world_size, folder, *arguments)
    assert [end.raised for end in ends] == [None] * world_size
    return [end.returned for end in ends]


@pytest.mark.timeout(180)
def test_sharded_steps_are_those_of_a_whole_model_and_go_on_on_another_number_of_ranks(tmp_path: Path) -> None:
    three = on_ranks(tmp_path / "three", 3, None, 0, 2)
    assert {end["ranks"] for end in three} == {3}
    assert len({end["interval"] for end in three}) == 3
    after_two = three[0]["after"]
    assert set(after_two) == {"masters", "exp_avg", "exp_avg_sq", "step"}
    assert after_two["step"].tolist() == [2.0] * len(after_two["step"])
    torch.testing.assert_close(after_two["masters"], flat_weights(train_whole(2)), rtol=0, atol=1e-14)

    two = on_ranks(tmp_path / "two", 2, after_two, 2, 1)
    for end in two:
        for name, values in after_two.items():
            assert torch.equal(end["before"][name], values), name
        torch.testing.assert_close(end["after"]["masters"], flat_weights(train_whole(3)), rtol=0, atol=1e-14)
        assert set(end["named"]) == {name for name, _ in Decoder(CONFIG).named_parameters()}


def test_a_rank_without_any_element_has_the_same_states_as_the_others() -> None:
    dist.init_process_group("fake", rank=8, world_size=9, store=FakeStore())
    try:
        state = ShardedState(DecoderConfig(1, 2, 1, 1, ffn_size=1), make_optimizer=adam)
        assert state.interval == (32, 32)
        assert set(state.optimizer_shards()) == {"exp_avg", "exp_avg_sq", "step"}
        state.load_optimizer_shards(state.optimizer_shards())
        state.optimizer.step()
    finally:
        dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_the_first_weights_are_the_decoders_of_the_same_seed() -> None:
    state = new_state()
    for name, weights in Decoder(CONFIG, seed=SEED, dtype=torch.float64).named_parameters():
        assert torch.equal(state.gathered()[name], weights), name


@pytest.mark.usefixtures("alone")
def test_optimizer_states_can_be_had_before_the_first_step_without_changing_it() -> None:
    asked, unasked = new_state(), new_state()
    asked.gradients.fill_(3.0)
    states = asked.optimizer_shards()
    assert set(states) == {"exp_avg", "exp_avg_sq", "step"}
    assert all(not values.any() for values in states.values())
    assert (asked.gradients == 3.0).all()
    for number in range(2):
        step(asked, number)
        step(unasked, number)
    assert torch.equal(asked.masters, unasked.masters)


@pytest.mark.usefixtures("alone")
def test_a_scheduler_moves_the_rate_of_the_shards_optimizer() -> None:
    state = new_state()
    scheduler = torch.optim.lr_scheduler.LambdaLR(state.optimizer, lambda number: 0.5**number)
    state.optimizer_shards()
    step(state, 0)
    scheduler.step()
    assert [group["lr"] for group in state.optimizer.param_groups] == [5e-3, 5e-3]


@pytest.mark.usefixtures("alone")
def test_norms_do_not_decay() -> None:
    state = new_state()
    assert [(group["name"], group["weight_decay"]) for group in state.optimizer.param_groups] == [
        ("decayed", 0.1),
        ("undecayed", 0.0),
    ]
    assert sum(parameter.numel() for parameter in state.optimizer.param_groups[1]["params"]) == 5 * CONFIG.hidden_size


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"head": None}, "1 parameters are missing, 'head' among them"),
        ({"bias": torch.zeros(1)}, "no parameter 'bias' left to load"),
        ({"head": torch.zeros(7, 9)}, r"head has shape \(7, 9\) but this decoder's has \(7, 8\)"),
    ],
)
def test_weights_of_another_decoder_are_refused(change: dict[str, Tensor | None], said: str) -> None:
    state = new_state()
    given = {name: weights for name, weights in (state.gathered() | change).items() if weights is not None}
    with pytest.raises(ValueError, match=said):
        state.load(given)


@pytest.mark.usefixtures("alone")
def test_states_of_another_optimizer_or_size_are_refused() -> None:
    state = new_state()
    shards = state.optimizer_shards()
    with pytest.raises(ValueError, match=r"states \['exp_avg'\] were given but the optimizer has"):
        state.load_optimizer_shards({"exp_avg": shards["exp_avg"]})
    with pytest.raises(ValueError, match=r"has shape \(1,\) but this shard has"):
        state.load_optimizer_shards({name: values[:1] for name, values in shards.items()})


@pytest.mark.usefixtures("alone")
def test_plain_momentum_travels_too() -> None:
    state = ShardedState(
        CONFIG, dtype=torch.float64, make_optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    )
    step(state, 0)
    assert set(state.optimizer_shards()) == {"momentum_buffer"}
    assert torch.equal(state.optimizer_shards()["momentum_buffer"], gradient(0, state.table.num_elements))
