"""What ranks do with sharded training states; importable by them."""

from typing import Any

import torch
import torch.distributed as dist
from reference import optimizer_groups
from torch import Tensor

from worker_agent.executor.model import Decoder
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState

CONFIG = DecoderConfig(vocab_size=7, hidden_size=8, num_layers=2, num_heads=2, ffn_size=6)
SEED = 4


def adam(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)


def gradient(step: int, num_elements: int) -> Tensor:
    """Some gradient of all elements."""
    return torch.randn(num_elements, dtype=torch.float64, generator=torch.Generator().manual_seed(step))


def step(state: ShardedState, number: int) -> None:
    state.zero_gradients()
    state.gradients.copy_(gradient(number, state.table.num_elements)[slice(*state.interval)])
    state.optimizer.step()
    state.optimizer.zero_grad()


def new_state(config: DecoderConfig = CONFIG) -> ShardedState:
    return ShardedState(config, seed=SEED, dtype=torch.float64, make_optimizer=adam)


def whole(state: ShardedState) -> dict[str, Tensor]:
    shards = {"masters": state.masters, **state.optimizer_shards()}
    return {name: state.gather_flat(shard) for name, shard in shards.items()}


def train(_: int, begins_with: dict[str, Tensor] | None, first: int, num_steps: int) -> dict[str, Any]:
    """Take up a whole state, or begin anew, and step; report the whole state before and after."""
    state = new_state()
    if begins_with is not None:
        own = {name: values[slice(*state.interval)] for name, values in begins_with.items()}
        state.masters.copy_(own.pop("masters"))
        state.load_optimizer_shards(own)
    before = whole(state)
    for number in range(first, first + num_steps):
        step(state, number)
    return {
        "before": before,
        "after": whole(state),
        "named": state.gathered(),
        "interval": state.interval,
        "ranks": dist.get_world_size(),
    }


def train_whole(num_steps: int) -> Decoder:
    """The same steps on a whole decoder in one process."""
    model, table = Decoder(CONFIG, seed=SEED, dtype=torch.float64), ParameterTable.of(CONFIG)
    named = dict(model.named_parameters())
    optimizer = adam(optimizer_groups(model))
    for number in range(num_steps):
        flat = gradient(number, table.num_elements)
        for entry in table.entries:
            named[entry.name].grad = flat[entry.begin : entry.end].view(entry.shape).clone()
        optimizer.step()
    return model
