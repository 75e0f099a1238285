from collections.abc import Callable
from functools import partial
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


class CountsInPlainNumbers(torch.optim.Optimizer):
    """Steps by the mean of all gradients so far, which it counts in a Python number."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, {"lr": 0.1})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                if not state:
                    state |= {"count": 0, "sum": torch.zeros_like(parameter)}
                state["count"] += 1
                state["sum"] += parameter.grad
                parameter.sub_(group["lr"] * state["sum"] / state["count"])


def only_decayed(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups[:1], lr=1e-2)


OPTIMIZERS: dict[str, Callable[[list[dict[str, Any]]], torch.optim.Optimizer]] = {
    "momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1),
    "dampened momentum": partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.5),
    "Rprop": partial(torch.optim.Rprop, lr=0.1),
    "NAdam": partial(torch.optim.NAdam, lr=0.1, weight_decay=0.1),
    "RAdam": partial(torch.optim.RAdam, lr=0.1),
    "ASGD": partial(torch.optim.ASGD, lr=0.1, t0=1, lambd=0.1),
    "Adagrad": partial(torch.optim.Adagrad, lr=0.1, initial_accumulator_value=0.3),
    "Adadelta": partial(torch.optim.Adadelta, lr=0.1),
    "Adamax": partial(torch.optim.Adamax, lr=0.1),
    "RMSprop": partial(torch.optim.RMSprop, lr=0.1, momentum=0.5, centered=True),
    "AMSGrad": partial(torch.optim.Adam, lr=0.1, amsgrad=True),
    "without states": partial(torch.optim.SGD, lr=0.1),
    "numbers that are no tensors": CountsInPlainNumbers,
    "norms left out": only_decayed,
}


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_saving_and_loading_states_changes_no_step_of_any_optimizer(name: str) -> None:
    """Hold for every optimizer that treats each element by itself.

    1. Asking for the states, before or after the first step, changes no step.
    2. States taken over before the first step, after it or after several lead on to the same weights.
    3. So they do in an optimizer that had stepped on something else.
    """

    def fresh() -> ShardedState:
        return ShardedState(CONFIG, seed=SEED, dtype=torch.float64, make_optimizer=OPTIMIZERS[name])

    num_steps = 4
    unasked, asked = fresh(), fresh()
    courses, saved = [], []
    for number in range(num_steps):
        saved.append((asked.masters.clone(), asked.optimizer_shards()))
        step(asked, number)
        step(unasked, number)
        assert torch.equal(asked.masters, unasked.masters)
        courses.append(unasked.masters.clone())
    assert len({frozenset(shards) for _, shards in saved}) == 1
    for begins_at, (masters, shards) in enumerate(saved):
        begun = fresh()
        step(begun, 99)
        for state in (fresh(), begun):
            state.masters.copy_(masters)
            state.load_optimizer_shards(shards)
            for number in range(begins_at, num_steps):
                step(state, number)
                assert torch.equal(state.masters, courses[number]), f"from {begins_at}, step {number}"


@pytest.mark.usefixtures("alone")
def test_asking_for_states_runs_no_hook_and_no_schedulers_step() -> None:
    state = new_state()
    seen: list[object] = []
    state.optimizer.register_step_pre_hook(lambda *given: seen.append(given))
    state.optimizer.register_step_post_hook(lambda *given: seen.append(given))
    torch.optim.lr_scheduler.LambdaLR(state.optimizer, lambda _: 1.0)
    state.optimizer_shards()
    assert not seen
    assert not state.optimizer.state


@pytest.mark.usefixtures("alone")
def test_an_optimizer_that_mixes_elements_is_refused() -> None:
    class Mixes(torch.optim.SGD):
        def step(self) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["rows"] = torch.zeros(1, 3)

    state = ShardedState(CONFIG, make_optimizer=lambda groups: Mixes(groups, lr=0.1))
    with pytest.raises(ValueError, match=r"state 'rows' of shape \(1, 3\).*treats every element by itself"):
        state.optimizer_shards()


@pytest.mark.usefixtures("alone")
def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match="seed is -1; give 0 or more"):
        ShardedState(CONFIG, seed=-1, make_optimizer=adam)


@pytest.mark.usefixtures("alone")
def test_plain_momentum_travels_too() -> None:
    state = ShardedState(
        CONFIG, dtype=torch.float64, make_optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    )
    step(state, 0)
    assert set(state.optimizer_shards()) == {"momentum_buffer"}
    assert torch.equal(state.optimizer_shards()["momentum_buffer"], gradient(0, state.table.num_elements))
