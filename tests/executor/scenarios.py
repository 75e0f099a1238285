"""What the ranks of a test are told to run, and what they report; importable by spawned ranks.

A `Scenario` is plain data: plans and token ids, and what the runner is built with. Any plan for the sequences it holds
will do, whoever made it.
"""

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from planner_client.contract import IterationTimings, Plan
from worker_agent.executor.agree import share_plan
from worker_agent.executor.faults import ExecutionFault, RankLost
from worker_agent.executor.measure import gather_timings
from worker_agent.executor.model import DecoderLayer
from worker_agent.executor.runner import IterationResult, IterationRunner
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState

CONFIG = DecoderConfig(vocab_size=23, hidden_size=16, num_layers=5, num_heads=4, num_kv_heads=2, ffn_size=30)
SEED = 11
TIMEOUT_S = 3


@dataclass(frozen=True)
class Breakage:
    """What breaks on one rank while it computes: the n-th call of a layer, forward or in the backward pass after it.

    It raises, or makes the gradient infinite, or ends the process.
    """

    rank: int
    call: int = 0
    when: Literal["forward", "backward", "overflow", "death"] = "forward"
    fault: Exception = field(default_factory=lambda: torch.OutOfMemoryError("the device ran out of memory"))


@dataclass(frozen=True)
class Scenario:
    """One iteration, or several, on fresh weights.

    ``plans`` holds one plan for each iteration; ``plan_by_rank`` replaces the first on some ranks. ``held`` are the
    sequences by source; ``held_by_rank`` replaces them, and ``groups`` are atomic groups of them. ``prepared_by_rank``
    is what some ranks prepare in place of the first plan. ``evaluates`` asks for evaluations in place of training,
    ``ahead`` for each iteration to be prepared while the one before it runs, ``traced`` for what a trace shows.
    ``poisoned`` makes a weight NaN, ``meddling`` names one of
    `MEDDLINGS`. The rest is what state and runner are built with.
    """

    plans: tuple[Plan, ...]
    held: dict[str, list[Tensor]]
    plan_by_rank: dict[int, Plan] = field(default_factory=dict)
    held_by_rank: dict[int, Any] = field(default_factory=dict)
    prepared_by_rank: dict[int, Any] = field(default_factory=dict)
    groups: dict[str, list[list[int]]] = field(default_factory=dict)
    rank_of_source: dict[str, int] | None = None
    rank_of_source_by_rank: dict[int, dict[str, int]] = field(default_factory=dict)
    config: DecoderConfig = CONFIG
    dtype: torch.dtype = torch.float64
    compute_dtype: torch.dtype | None = None
    optimizer: Literal["sgd", "adam"] = "sgd"
    max_norm: float | None = None
    max_process_groups: int = 8
    evaluates: bool = False
    ahead: bool = False
    traced: bool = False
    breakage: Breakage | None = None
    poisoned: bool = False
    meddling: str | None = None


Span = tuple[str, float, float]
"""Name, begin and end (microseconds) of something in a trace."""


@dataclass
class Report:
    """What one rank saw: results and whole gradients by iteration, the weights in the end, or the fault."""

    results: list[IterationResult] = field(default_factory=list)
    evaluations: list[float] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    timings: list[IterationTimings | None] = field(default_factory=list)
    groups: list[tuple[tuple[int, ...], ...]] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    weights: Tensor | None = None
    fault: str | None = None
    message: str = ""
    taken_s: float = 0.0


class Mute(Exception):  # noqa: N818 - an exception that cannot say what it is
    def __str__(self) -> str:
        raise LookupError


def _raising(fault: Exception) -> Callable[..., None]:
    def fail(*_: Any) -> None:
        raise fault

    return fail


def _infinite(gradient: Tensor) -> Tensor:
    return gradient * float("inf")


def make_optimizer(groups: Any, kind: str = "sgd") -> torch.optim.Optimizer:
    """A step moves the weights even where the gradient is zero, so that a step too many shows."""
    if kind == "adam":
        return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)
    return torch.optim.SGD(groups, lr=0.1, weight_decay=0.1)


def _meddle(name: str, rank: int, state: ShardedState, plan: Plan) -> Any:
    """Break something before an iteration; return what the rank runs in place of its plan."""
    if name == "an optimizer that raises" and rank == 1:
        state.optimizer.step = _raising(MemoryError("no room for moments"))
    elif name == "a plan changed in memory" and rank == 1:
        plan.replicas[0].micro_batches[0].sequences.reverse()
    elif name == "no plan" and rank == 1:
        return {}
    return plan


MEDDLINGS = ("another model on one rank", "an optimizer that raises", "a plan changed in memory", "no plan")


@contextmanager
def broken(breakage: Breakage | None, rank: int) -> Iterator[None]:
    """Let a layer's call break on one rank."""
    if breakage is None or breakage.rank != rank:
        yield
        return
    whole, num_calls = DecoderLayer.forward, 0

    def forward(layer: DecoderLayer, hidden: Tensor, *given: Any) -> Tensor:
        nonlocal num_calls
        num_calls += 1
        if num_calls - 1 != breakage.call:
            return whole(layer, hidden, *given)
        if breakage.when == "death":
            os._exit(9)
        out = whole(layer, hidden, *given)
        if breakage.when == "forward":
            raise breakage.fault
        out.register_hook(_raising(breakage.fault) if breakage.when == "backward" else _infinite)
        return out

    DecoderLayer.forward = forward
    try:
        yield
    finally:
        DecoderLayer.forward = whole


def run_scenarios(rank: int, scenarios: dict[str, Scenario]) -> dict[str, Report]:
    return {name: run_scenario(rank, scenario) for name, scenario in scenarios.items()}


def run_scenario(rank: int, scenario: Scenario) -> Report:
    report = Report()
    config = scenario.config
    if scenario.meddling == "another model on one rank" and rank == 1:
        config = DecoderConfig(vocab_size=23, hidden_size=16, num_layers=2, num_heads=4)
    state = ShardedState(
        config,
        seed=SEED,
        dtype=scenario.dtype,
        make_optimizer=lambda groups: make_optimizer(groups, scenario.optimizer),
    )
    if scenario.poisoned:
        weights = state.gathered()
        state.load(weights | {"final_norm.weight": weights["final_norm.weight"] * float("nan")})
    runner = IterationRunner(
        state,
        compute_dtype=scenario.compute_dtype,
        max_norm=scenario.max_norm,
        max_process_groups=scenario.max_process_groups,
        layers_per_bucket=2,
        rank_of_source=scenario.rank_of_source_by_rank.get(rank, scenario.rank_of_source),
        return_sequence_losses=True,
    )
    held = scenario.held_by_rank.get(rank, {source: scenario.held.get(source, []) for source in runner.sources})
    groups = {source: own for source, own in scenario.groups.items() if source in runner.sources}
    began = time.monotonic()
    try:
        with broken(scenario.breakage, rank), traced(report) if scenario.traced else nullcontext():
            if scenario.ahead:
                first = scenario.plan_by_rank.get(rank, scenario.plans[0])
                runner.prepare(scenario.prepared_by_rank.get(rank, first), held, groups=groups)
            for number, plan in enumerate(scenario.plans):
                mine = scenario.plan_by_rank.get(rank, plan) if number == 0 else plan
                if scenario.ahead and number + 1 < len(scenario.plans):
                    runner.prepare(scenario.plans[number + 1], held, groups=groups)
                _iterate(rank, scenario, state, runner, mine, None if scenario.ahead else held, groups, report)
    except ExecutionFault as fault:
        report.fault, report.message = type(fault).__name__, str(fault)
    report.taken_s = time.monotonic() - began
    if scenario.meddling != "another model on one rank":
        report.weights = state.gather_flat(state.masters).cpu()
    runner.close()
    return report


def _iterate(  # noqa: PLR0917 - all that an iteration involves
    rank: int,
    scenario: Scenario,
    state: ShardedState,
    runner: IterationRunner,
    plan: Plan,
    held: dict[str, list[Tensor]] | None,
    groups: dict[str, list[list[int]]],
    report: Report,
) -> None:
    own: Any = plan
    if scenario.meddling is not None:
        own = _meddle(scenario.meddling, rank, state, Plan.model_validate_json(plan.model_dump_json()))
    if scenario.evaluates:
        report.evaluations.append(runner.evaluate(own, held, groups=groups))
        return
    result = runner.run(own, held, groups=groups)
    report.results.append(result)
    report.gradients.append(state.gather_flat(state.gradients).cpu())
    report.timings.append(gather_timings(plan, result.timing))
    report.groups.append(runner.process_groups)
    state.optimizer.zero_grad()


@contextmanager
def traced(report: Report) -> Iterator[None]:
    """Write a Chrome trace and report what is annotated in it."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        yield
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    report.spans = sorted(
        ((event["name"], event["ts"], event["ts"] + event["dur"]) for event in events if "dur" in event),
        key=lambda span: span[1],
    )


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
    """Run one iteration together, then lose a rank in the next; report how long the others took, and what they saw."""
    group = dist.new_group(timeout=timedelta(seconds=TIMEOUT_S))
    state = ShardedState(scenario.config, seed=SEED, dtype=scenario.dtype, make_optimizer=make_optimizer, group=group)
    runner = IterationRunner(state, group=group)
    held = {source: scenario.held.get(source, []) for source in runner.sources}
    runner.run(scenario.plans[0], held)
    began = time.monotonic()
    if rank == lost_rank and manner == "stalls":
        time.sleep(600)
    with broken(Breakage(lost_rank, when="death") if manner == "dies" else None, rank):
        try:
            for _ in range(3):
                runner.run(scenario.plans[0], held)
        except RankLost as lost:
            return time.monotonic() - began, str(lost)
    raise AssertionError("the loss of a rank went unnoticed")


def make_tokens(lengths: list[int], seed: int) -> list[Tensor]:
    draw = np.random.default_rng(seed)
    return [torch.from_numpy(draw.integers(0, CONFIG.vocab_size, size=length)) for length in lengths]
