"""Our executor beside DistributedDataParallel, taking turns on the same batches; importable by ranks."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from planner_client.contract import Plan
from planner_client.packing import PackedMicroBatch
from worker_agent.executor.loss import next_token_targets, token_losses
from worker_agent.executor.model import Decoder, DecoderConfig
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState

CONFIG = DecoderConfig(vocab_size=256, hidden_size=128, num_layers=4, num_heads=4)
RATE, MAX_NORM = 1e-3, 1.0


@dataclass(frozen=True)
class Race:
    """Batches by rank, with the plan of each; the other side packs what a rank holds as a plain loader does."""

    held: tuple[tuple[tuple[Tensor, ...], ...], ...]
    plans: tuple[Plan, ...]
    max_tokens: int


@dataclass(frozen=True)
class Lap:
    """One iteration on one rank: wall-clock and CPU time (ms), and its loss."""

    wall_ms: float
    cpu_ms: float
    loss: float
    shares: dict[str, float]


def first_fit(sequences: Sequence[Tensor], max_tokens: int) -> list[list[Tensor]]:
    """Fill micro-batches in arrival order, each sequence into the first with room."""
    filled: list[list[Tensor]] = []
    for sequence in sequences:
        room = (held for held in filled if sum(map(len, held)) + len(sequence) <= max_tokens)
        chosen = next(room, None)
        if chosen is None:
            filled.append([sequence])
        else:
            chosen.append(sequence)
    return filled


def race(rank: int, what: Race) -> dict[str, list[Lap]]:
    """Run every batch both ways, taking turns at going first."""
    torch.set_num_threads(1)
    ours, theirs = _ours(), _theirs(what.max_tokens)
    laps: dict[str, list[Lap]] = {"ours": [], "ddp": []}
    for number, (held, plan) in enumerate(zip(what.held, what.plans, strict=True)):
        order = [("ours", ours), ("ddp", theirs)]
        for name, run in order if number % 2 else order[::-1]:
            dist.barrier()
            began, began_cpu = time.perf_counter(), time.process_time()
            loss, shares = run(held[rank], plan)
            dist.barrier()
            wall, cpu = time.perf_counter() - began, time.process_time() - began_cpu
            laps[name].append(Lap(wall * 1e3, cpu * 1e3, loss, shares))
    return laps


Run = Callable[[Sequence[Tensor], Plan], tuple[float, dict[str, float]]]


def _ours() -> Run:
    state = ShardedState(CONFIG, make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=RATE, weight_decay=0.0))
    runner = IterationRunner(state, max_norm=MAX_NORM)

    def run(held: Sequence[Tensor], plan: Plan) -> tuple[float, dict[str, float]]:
        result = runner.run(plan, list(held))
        names = ("exchange_ms", "assemble_ms", "compute_ms", "return_ms", "reduce_ms", "step_ms", "wall_ms")
        return result.loss, {name: getattr(result, name) for name in names}

    return run


def _theirs(max_tokens: int) -> Run:
    model = DistributedDataParallel(Decoder(CONFIG))
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    world_size = dist.get_world_size()

    def run(held: Sequence[Tensor], plan: Plan) -> tuple[float, dict[str, float]]:
        optimizer.zero_grad(set_to_none=True)
        micro_batches, total = first_fit(held, max_tokens), torch.zeros(1, dtype=torch.float64)
        for number, sequences in enumerate(micro_batches):
            if number < len(micro_batches) - 1:
                with model.no_sync():
                    total += _backward(model, sequences, plan.num_targets, world_size)
            else:
                total += _backward(model, sequences, plan.num_targets, world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()
        dist.all_reduce(total)
        return float(total), {}

    return run


def _backward(model: DistributedDataParallel, sequences: Sequence[Tensor], num_targets: int, world_size: int) -> Tensor:
    packed = PackedMicroBatch(torch.tensor([len(sequence) for sequence in sequences]).numpy())
    tokens, cu_seqlens = torch.cat(list(sequences)), torch.from_numpy(packed.cu_seqlens.copy())
    losses = token_losses(model(tokens, cu_seqlens, packed.max_seqlen), next_token_targets(tokens, cu_seqlens))
    # Gradients are averaged over the ranks, so each rank's part counts for all of them.
    (losses.sum() * (world_size / num_targets)).backward()
    return losses.detach().double().sum() / num_targets
