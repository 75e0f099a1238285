"""How much memory a rank takes to train, and how much it must take; importable by ranks."""

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from planner_client.contract import Plan
from worker_agent.executor.layout import rank_roles
from worker_agent.executor.model import DecoderConfig
from worker_agent.executor.parameter_routes import Leg, parameter_routes
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState

WORLD_SIZE = 2
CONFIG = DecoderConfig(vocab_size=1024, hidden_size=512, num_layers=12, num_heads=8)
SMALL = DecoderConfig(vocab_size=1024, hidden_size=16, num_layers=12, num_heads=8)
LAYERS_PER_BUCKET = 2
LENGTH = 8
"""Tokens of the one sequence of each rank: activations and logits of so few are below one percent of the parameters."""
FP32_BYTES = 4
MASTERS_GRADIENTS_AND_TWO_MOMENTS = 4
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@dataclass(frozen=True)
class Footprint:
    """Memory of one rank (bytes).

    ``state`` are masters, gradients and two moments of the shard, ``compute`` parameters and gradients of the part
    that the rank computes, ``transfer`` what is packed to be sent and what arrives to be summed. ``grown`` is how far
    the resident set grew at its peak, ``kept`` how far it has grown in the end.
    """

    state: int
    compute: int
    transfer: int
    grown: int
    kept: int

    @property
    def least(self) -> int:
        """What no executor can do without that keeps optimizer states apart from where it computes."""
        return self.state + self.compute

    @property
    def over_least(self) -> float:
        return self.grown / self.least

    @property
    def over_accounted(self) -> float:
        return self.grown / (self.least + self.transfer)


def measure(rank: int, plans: Sequence[Plan]) -> Footprint:
    """Run the plans one after another on this rank and measure from before its state is built."""
    # A small decoder first: libraries, threads and connections are loaded and opened by whoever comes first.
    _train(rank, SMALL, plans)
    gc.collect()
    before = _status_bytes("VmRSS")
    _CLEAR.write_text("5")  # the peak begins anew (proc_pid_clear_refs(5))
    kept = _train(rank, CONFIG, plans) - before
    state, compute, transfer = needed_bytes(rank, plans)
    return Footprint(state, compute, transfer, _status_bytes("VmHWM") - before, kept)


def needed_bytes(rank: int, plans: Sequence[Plan]) -> tuple[int, int, int]:
    """Return what the rank needs for state, computation and transfer, by its routes; of each, the most of any plan."""
    table = ParameterTable.of(CONFIG)
    begin, end = table.shard(rank, WORLD_SIZE)
    compute, transfer = 0, 0
    for plan in plans:
        routes = parameter_routes(plan, rank_roles(plan, WORLD_SIZE), table, LAYERS_PER_BUCKET)
        rounds = range(routes.outward.num_rounds)
        outward = [routes.parameter_leg(number, rank) for number in rounds]
        inward = [routes.gradient_leg(number, rank) for number in rounds]
        compute = max(compute, 2 * routes.num_buffer_elements[rank])
        arrived = sum(leg.num_received for leg in inward)
        transfer = max(transfer, _num_packed(outward), _num_packed(inward) + arrived)
    # What was sent is gone when gradients arrive, and its memory is used again.
    elements = (MASTERS_GRADIENTS_AND_TWO_MOMENTS * (end - begin), compute, transfer)
    state_bytes, compute_bytes, transfer_bytes = (FP32_BYTES * number for number in elements)
    return state_bytes, compute_bytes, transfer_bytes


def _num_packed(legs: Sequence[Leg]) -> int:
    """Count elements that have to be copied together; a single interval is sent from where it lies."""
    return sum(leg.num_sent for leg in legs if len(leg.sent) > 1)


def _train(rank: int, config: DecoderConfig, plans: Sequence[Plan]) -> int:
    """Train and return the resident set in the end, the state still held."""
    state = ShardedState(config, make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3))
    runner = IterationRunner(state, max_norm=1.0, layers_per_bucket=LAYERS_PER_BUCKET)
    tokens = torch.randint(config.vocab_size, (LENGTH,), generator=torch.Generator().manual_seed(rank))
    try:
        for plan in plans:
            runner.run(plan, [tokens])
        return _status_bytes("VmRSS")
    finally:
        runner.close()


def _status_bytes(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) * 1024
