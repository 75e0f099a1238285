"""What the ranks of a test are told to run, and what they report; importable by spawned ranks."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from planner_client.contract import IterationTimings, Plan
from worker_agent.executor.agree import share_plan
from worker_agent.executor.faults import ExecutionFault, RankLost
from worker_agent.executor.measure import gather_timings
from worker_agent.executor.model import Decoder, DecoderConfig
from worker_agent.executor.runner import IterationResult, IterationRunner

CONFIG = DecoderConfig(vocab_size=23, hidden_size=16, num_layers=2, num_heads=4, num_kv_heads=2)
SEED = 11
STEP_SIZE = 0.1
TIMEOUT_S = 3


@dataclass(frozen=True)
class Scenario:
    """One iteration, or several, on fresh weights.

    ``plans`` holds one plan for each iteration; ``plan_by_rank`` replaces the first on some ranks. ``held`` are the
    sequences by source. ``broken_rank`` raises in its forward, ``overflowing_rank`` gets an infinite gradient, and
    ``poisoned`` makes a weight NaN on every rank; ``meddling`` names one of `MEDDLINGS`. The rest is what the
    runner is built with.
    """

    plans: tuple[Plan, ...]
    held: dict[str, list[Tensor]]
    plan_by_rank: dict[int, Plan] = field(default_factory=dict)
    held_by_rank: dict[int, Any] = field(default_factory=dict)
    rank_of_source: dict[str, int] | None = None
    rank_of_source_by_rank: dict[int, dict[str, int]] = field(default_factory=dict)
    config: DecoderConfig = CONFIG
    dtype: torch.dtype = torch.float64
    broken_rank: int | None = None
    overflowing_rank: int | None = None
    poisoned: bool = False
    meddling: str | None = None


@dataclass
class Report:
    """What one rank saw: results and flat gradients by iteration, the weights in the end, or the fault."""

    results: list[IterationResult] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    timings: list[IterationTimings | None] = field(default_factory=list)
    weights: Tensor | None = None
    fault: str | None = None
    message: str = ""
    taken_s: float = 0.0


def run_out_of_memory(*_: Any) -> None:
    """Fail as a forward hook would see it."""
    raise RuntimeError("the device ran out of memory")


class Mute(Exception):  # noqa: N818 - an exception that cannot say what it is
    def __str__(self) -> str:
        raise LookupError


def _raising(fault: Exception) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise fault

    return fail


def meddle(  # noqa: PLR0917 - what it may break
    name: str, rank: int, number: int, model: Decoder, optimizer: torch.optim.Optimizer, plan: Plan
) -> Any:
    """Break something before iteration ``number``; return what the rank runs in place of a plan, if anything."""
    if name == "text that is not Unicode" and rank == 0:
        model.register_forward_pre_hook(_raising(OSError("cannot read \udce9.bin")))
    elif name == "a fault without a text" and rank == 0:
        model.register_forward_pre_hook(_raising(Mute()))
    elif name == "an optimizer that raises" and rank == 1:
        optimizer.step = _raising(MemoryError("no room for moments"))
    elif name == "other weights on one rank" and rank == 1:
        model.head.data += 1e-9
    elif name == "a plan changed in memory" and rank == 1:
        plan.replicas[0].micro_batches[0].sequences.reverse()
    elif name == "no plan" and rank == 1:
        return {}
    elif name == "weights unfrozen" and number == 1:
        model.head.requires_grad_(requires_grad=True)
    elif name == "weights moved" and number == 1:
        model.to(torch.float32)
    return plan


MEDDLINGS = (
    "text that is not Unicode",
    "a fault without a text",
    "an optimizer that raises",
    "other weights on one rank",
    "a plan changed in memory",
    "no plan",
    "weights unfrozen",
    "weights moved",
)


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    """A step moves the weights even where the gradient is zero, so that a step too many shows."""
    return torch.optim.SGD(model.parameters(), lr=STEP_SIZE, weight_decay=0.1)


def flat_weights(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def run_scenarios(rank: int, scenarios: dict[str, Scenario]) -> dict[str, Report]:
    return {name: run_scenario(rank, scenario) for name, scenario in scenarios.items()}


def run_scenario(rank: int, scenario: Scenario) -> Report:
    report = Report()
    model = Decoder(scenario.config, seed=SEED, dtype=scenario.dtype)
    if rank == scenario.broken_rank:
        model.register_forward_pre_hook(run_out_of_memory)
    if rank == scenario.overflowing_rank:
        model.head.register_hook(lambda gradient: gradient * float("inf"))
    if scenario.poisoned:
        model.final_norm.weight.data[0] = float("nan")
    optimizer = make_optimizer(model)
    if scenario.meddling == "weights unfrozen":
        model.head.requires_grad_(requires_grad=False)
    runner = IterationRunner(
        model,
        optimizer,
        rank_of_source=scenario.rank_of_source_by_rank.get(rank, scenario.rank_of_source),
        return_sequence_losses=True,
    )
    held = scenario.held_by_rank.get(rank, {source: scenario.held.get(source, []) for source in runner.sources})
    began = time.monotonic()
    try:
        for number, plan in enumerate(scenario.plans):
            mine = scenario.plan_by_rank.get(rank, plan) if number == 0 else plan
            if scenario.meddling is not None:
                own_copy = Plan.model_validate_json(mine.model_dump_json())
                mine = meddle(scenario.meddling, rank, number, model, optimizer, own_copy)
            result = runner.run(mine, held)
            report.results.append(result)
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            report.gradients.append(torch.cat([gradient.flatten().clone() for gradient in gradients]))
            report.timings.append(gather_timings(plan, result.timing))
            optimizer.zero_grad()
    except ExecutionFault as fault:
        report.fault, report.message = type(fault).__name__, str(fault)
    report.taken_s = time.monotonic() - began
    report.weights = flat_weights(model)
    return report


def share(rank: int, offers: dict[str, list[Plan | Exception | None]], decider: int) -> dict[str, tuple[str, str]]:
    """Share each offer; report the digest of the plan got, or the fault's name and message."""
    got = {}
    for name, offer in offers.items():
        try:
            got[name] = ("plan", share_plan(offer[rank], decider=decider).digest)
        except ExecutionFault as fault:
            got[name] = (type(fault).__name__, str(fault))
    return got


def run_and_share(
    rank: int, scenarios: dict[str, Scenario], offers: dict[str, list[Plan | Exception | None]], decider: int
) -> tuple[dict[str, Report], dict[str, tuple[str, str]]]:
    shared = share(rank, offers, decider)
    return run_scenarios(rank, scenarios), shared


def lose_a_rank(rank: int, scenario: Scenario, lost_rank: int, manner: str) -> tuple[float, str]:
    """Run one iteration together, then lose a rank; report how long the others took to notice, and as what."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    model = Decoder(scenario.config, seed=SEED, dtype=scenario.dtype)
    runner = IterationRunner(model, make_optimizer(model), group=group)
    held = {source: scenario.held.get(source, []) for source in runner.sources}
    runner.run(scenario.plans[0], held)
    if rank == lost_rank:
        if manner == "dies":
            os._exit(9)
        time.sleep(600)
    began = time.monotonic()
    try:
        for _ in range(3):
            runner.run(scenario.plans[0], held)
    except RankLost as lost:
        return time.monotonic() - began, str(lost)
    raise AssertionError("the loss of a rank went unnoticed")


def make_tokens(lengths: list[int], seed: int) -> list[Tensor]:
    draw = np.random.default_rng(seed)
    return [torch.from_numpy(draw.integers(0, CONFIG.vocab_size, size=length)) for length in lengths]
