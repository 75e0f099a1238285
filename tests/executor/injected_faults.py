"""Faults raised on purpose in the inner functions of one rank, and what all ranks make of them; importable by ranks."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from plan_factory import make_plan
from scenarios import CONFIG, SEED, make_optimizer, make_tokens

from worker_agent.executor import links, pipeline, propagate
from worker_agent.executor.collectives import RowExchange
from worker_agent.executor.compute_buffer import ComputeBuffer
from worker_agent.executor.exchange import SequenceExchange
from worker_agent.executor.faults import ExecutionFault, PlanningFailed
from worker_agent.executor.model import DecoderLayer
from worker_agent.executor.pipeline import StagePipeline
from worker_agent.executor.process_groups import ProcessGroups
from worker_agent.executor.propagate import Propagation
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.scratch import Scratch
from worker_agent.executor.shards import ShardedState
from worker_agent.executor.tensor_parallel import TensorGroup

TIMEOUT_S = 20.0
HELD = {"rank-0": make_tokens([3, 5], 1), "rank-1": make_tokens([4], 2)}
PLAN = make_plan([[[("rank-0", 3, 1)], [("rank-1", 4, 1)], [("rank-0", 5, 1)]]], ranks=[[0, 1, 2, 3]], layout=(2, 1, 2))
NO_MEMORY = RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory")


@dataclass(frozen=True)
class Injection:
    """The n-th call of something raises on one rank, if the call comes from ``caller``, where that is given."""

    owner: Any
    name: str
    rank: int
    call: int = 0
    fault: Exception = torch.OutOfMemoryError("injected")  # noqa: RUF009 - raised, never changed
    caller: str | None = None
    ahead: bool = False


INJECTIONS: dict[str, Injection] = {
    "memory to receive an activation in": Injection(links.torch, "empty", 2, 0, caller=links.__name__),
    "memory to receive a gradient in": Injection(links.torch, "empty", 1, 1, NO_MEMORY, caller=links.__name__),
    "memory for tokens": Injection(RowExchange, "reserve", 1, 0, MemoryError("injected")),
    "memory for parameters": Injection(Propagation, "reserve", 3, 0, NO_MEMORY),
    "memory for what stands in": Injection(Scratch, "__init__", 2),
    "posting the first bucket": Injection(Propagation, "_post", 0),
    "posting a bucket of gradients": Injection(Propagation, "_post", 3, 3, NO_MEMORY),
    "packing parameters": Injection(propagate, "_packed", 1, 1),
    "packing gradients": Injection(propagate, "_packed", 2, 3),
    "summing gradients": Injection(propagate, "_add_pieces", 3),
    "gradients of zero": Injection(ComputeBuffer, "begin", 0, 0, NO_MEMORY),
    "gradients of the shard": Injection(ShardedState, "zero_gradients", 0),
    "the norm": Injection(IterationRunner, "_square", 2),
    "a collective of a stage": Injection(TensorGroup, "combine", 1, 4),
    "a layer": Injection(DecoderLayer, "forward", 3, 2),
    "a loss": Injection(StagePipeline, "_loss", 2, 1, NO_MEMORY),
    "a backward pass": Injection(StagePipeline, "_backward", 0, 2),
    "adding losses up": Injection(StagePipeline, "_computed", 3),
    "building a pipeline": Injection(StagePipeline, "__init__", 1),
    "cutting micro-batches": Injection(SequenceExchange, "micro_batches", 0, 0, NO_MEMORY),
    "targets": Injection(pipeline, "next_token_targets", 3, 2),
    "collecting losses of sequences": Injection(SequenceExchange, "_fill", 2),
    "losses of sequences that came back": Injection(SequenceExchange, "_results", 0),
    "a process group of a stage": Injection(ProcessGroups, "_make", 0),
    "the process group of the pipeline": Injection(ProcessGroups, "_make", 3, 2),
    "memory for tokens, ahead": Injection(RowExchange, "reserve", 1, 0, ahead=True),
    "the process group that prepares ahead": Injection(ProcessGroups, "_make", 2, ahead=True),
}


@dataclass(frozen=True)
class Seen:
    """What a rank saw: the fault's name and message, how long it took, the next loss and the loss of each sequence."""

    fault: str
    message: str
    taken_s: float
    weights_before: torch.Tensor
    weights_after: torch.Tensor
    next_loss: float


@contextmanager
def injected(injection: Injection, rank: int) -> Iterator[None]:
    """Let a call raise, if this is the rank."""
    if rank != injection.rank:
        yield
        return
    whole: Callable[..., Any] = getattr(injection.owner, injection.name)
    num_calls = 0

    def broken(*given: Any, **named: Any) -> Any:
        nonlocal num_calls
        if injection.caller is not None and sys._getframe(1).f_globals["__name__"] != injection.caller:
            return whole(*given, **named)
        num_calls += 1
        if num_calls - 1 == injection.call:
            raise injection.fault
        return whole(*given, **named)

    with mock.patch.object(injection.owner, injection.name, broken):
        yield
    if num_calls <= injection.call:
        raise PlanningFailed("NothingInjected", f"there were {num_calls} calls")


def run_injected(rank: int) -> dict[str, Seen]:
    """Run an iteration with each injection, and another one after it."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    return {name: _run(rank, injection, group) for name, injection in INJECTIONS.items()}


def _run(rank: int, injection: Injection, group: dist.ProcessGroup) -> Seen:
    state = ShardedState(CONFIG, seed=SEED, dtype=torch.float64, make_optimizer=make_optimizer, group=group)
    runner = IterationRunner(state, layers_per_bucket=2, return_sequence_losses=True, group=group)
    held = {source: HELD.get(source, []) for source in runner.sources}
    before, fault, message = state.gather_flat(state.masters), "none", ""
    began = time.monotonic()
    try:
        with injected(injection, rank):
            if injection.ahead:
                runner.prepare(PLAN, held)
            runner.run(PLAN, None if injection.ahead else held)
    except ExecutionFault as raised:
        fault, message = type(raised).__name__, str(raised)
    taken_s = time.monotonic() - began
    after = state.gather_flat(state.masters)
    next_loss = runner.run(PLAN, held).loss
    runner.close()
    return Seen(fault, message, taken_s, before, after, next_loss)


def build_with_a_fault(rank: int) -> tuple[str, str, float]:
    """Build a runner where one rank cannot make the first process group, and then one that runs."""
    state = ShardedState(CONFIG, seed=SEED, dtype=torch.float64, make_optimizer=make_optimizer)
    fault, message = "none", ""
    try:
        with injected(Injection(ProcessGroups, "_make", 1), rank):
            IterationRunner(state)
    except ExecutionFault as raised:
        fault, message = type(raised).__name__, str(raised)
    runner = IterationRunner(state)
    loss = runner.run(PLAN, {source: HELD.get(source, []) for source in runner.sources}).loss
    runner.close()
    return fault, message, loss


def run_and_build(rank: int) -> tuple[dict[str, Seen], tuple[str, str, float]]:
    return run_injected(rank), build_with_a_fault(rank)
