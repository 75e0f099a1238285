"""One long run on real lengths, planned in several ways, and what ranks are told to do with it; importable by ranks."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from planner_client.contract import Plan, PlanRequest, Profile
from planner_service.translate import plan_request
from planner_service.workloads import builtin_stream
from worker_agent.executor.model import DecoderConfig
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState

WORLD_SIZE = 4
CONFIG = DecoderConfig(vocab_size=256, hidden_size=32, num_layers=4, num_heads=4, num_kv_heads=2)
STREAM, SCALED_DOWN = "github", 16
BATCH_TOKENS = 2000
MAX_TOKENS_A_RANK = 200
"""Limit of a micro-batch for each rank of a replica. One sequence in eight is longer, so that replicas must differ."""
MAX_LENGTH = WORLD_SIZE * MAX_TOKENS_A_RANK
SPEED_OF_TP = {1: 1.0, 2: 0.7, 4: 0.5}
"""How much of a rank's speed is left in tensor-parallel groups; chosen so that every division of four ranks wins at
times."""
NUM_MOTIFS = 40
SEED, RATE, MAX_NORM = 7, 3e-3, 1.0

TIGHT_LAYOUTS = ((1, 1), (2, 1), (4, 1), (1, 2), (1, 3), (1, 4), (2, 2))
"""All (tp, pp) that four ranks, four heads and four layers allow."""

Held = tuple[dict[str, list[Tensor]], ...]
"""Sequences by source, for each iteration."""


@dataclass(frozen=True)
class Share:
    """One iteration on one rank (ms)."""

    wall_ms: float
    propagate_ms: float
    exchange_ms: float


@dataclass
class LongCourse:
    """What a rank saw: loss and norm by iteration, times, and whole weights in the end."""

    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    shares: list[Share] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def profile(max_tokens_a_rank: int, layouts: Sequence[tuple[int, int]]) -> Profile:
    """Describe costs like those of real devices: attention squared, tensor parallelism below full speed."""
    return Profile.model_validate(
        {
            "name": f"long-run-{max_tokens_a_rank}",
            "source": "made up for this bench",
            "model": {"name": "tiny", "num_layers": 4, "hidden_size": 32, "vocab_size": 256},
            "device": {"name": "CPU core", "memory_bytes": 2**30},
            "layouts": [
                {
                    "tp": tp,
                    "pp": pp,
                    "a_ms_per_token2": 1e-4 / (tp * pp * SPEED_OF_TP[tp]),
                    "b_ms_per_token": 0.02 / (tp * pp * SPEED_OF_TP[tp]),
                    "c_ms": 0.3,
                    "max_tokens": max_tokens_a_rank * tp * pp,
                }
                for tp, pp in layouts
            ],
        }
    )


TIGHT = profile(MAX_TOKENS_A_RANK, TIGHT_LAYOUTS)
ROOMY = profile(MAX_LENGTH, ((1, 1),))
"""As much memory in one rank as in four: what one static strategy needs to hold the longest sequence."""

WAYS = {
    "naive": (ROOMY, {"method": "plain"}, [[{"tp": 1, "pp": 1, "num_replicas": WORLD_SIZE}]]),
    "homogeneous": (TIGHT, {"homogeneous": True}, []),
    "heterogeneous": (TIGHT, {}, []),
}
"""Profile, options and candidate strategies (none: all are searched) of each way to plan."""


def batches_of_stream(num_batches: int) -> tuple[list[list[int]], int]:
    """Cut the stream into batches; return their lengths, and how many over-long sequences were left out on the way."""
    batches: list[list[int]] = []
    held: list[int] = []
    num_over_long = 0
    for full_length in builtin_stream(STREAM):
        length = max(1, full_length // SCALED_DOWN)
        if length > MAX_LENGTH:
            num_over_long += 1
            continue
        held.append(length)
        if sum(held) >= BATCH_TOKENS:
            batches.append(held)
            held = []
            if len(batches) == num_batches:
                return batches, num_over_long
    raise ValueError(f"the stream has {len(batches)} batches of {BATCH_TOKENS} tokens, not {num_batches}")


def by_source(lengths: Sequence[int]) -> dict[str, list[int]]:
    """Deal sequences out to the ranks' sources in turn."""
    return {f"rank-{rank}": list(lengths[rank::WORLD_SIZE]) for rank in range(WORLD_SIZE)}


def plan_batches(way: str, batches: Sequence[Sequence[int]]) -> list[Plan]:
    """Plan every batch one way."""
    costs, options, strategies = WAYS[way]
    return [
        plan_request(
            PlanRequest.model_validate(
                {
                    "profile": costs,
                    "num_gpus": WORLD_SIZE,
                    "strategies": strategies,
                    "iteration": iteration,
                    "lengths": by_source(lengths),
                    "options": {"deadline_ms": 100, **options},
                }
            ),
            [costs],
            remaining_ms=lambda: 1e9,
        )
        for iteration, lengths in enumerate(batches)
    ]


def draw_tokens(batches: Sequence[Sequence[int]]) -> Held:
    """Draw token ids that can be learned: a sequence repeats one of a few motifs from a place in it on."""
    generator = torch.Generator().manual_seed(SEED)
    motifs = [
        torch.randint(CONFIG.vocab_size, (int(size),), generator=generator)
        for size in torch.randint(4, 20, (NUM_MOTIFS,), generator=generator)
    ]

    def sequence(length: int) -> Tensor:
        motif = motifs[int(torch.randint(NUM_MOTIFS, (), generator=generator))]
        begin = int(torch.randint(len(motif), (), generator=generator))
        return motif.roll(-begin).repeat(-(-length // len(motif)))[:length]

    return tuple(
        {source: [sequence(length) for length in own] for source, own in by_source(lengths).items()}
        for lengths in batches
    )


def train_long(_: int, plans: Sequence[Plan], held: Held) -> LongCourse:
    """Train by the plans on this rank, each iteration prepared while the one before it runs."""
    state = ShardedState(
        CONFIG,
        seed=SEED,
        dtype=torch.float64,
        make_optimizer=lambda groups: torch.optim.AdamW(groups, lr=RATE),
    )
    runner = IterationRunner(state, max_norm=MAX_NORM, layers_per_bucket=1)
    course = LongCourse()

    def prepare(iteration: int) -> None:
        if iteration < len(plans):
            runner.prepare(plans[iteration], {source: held[iteration][source] for source in runner.sources})

    try:
        prepare(0)
        for iteration, plan in enumerate(plans):
            prepare(iteration + 1)
            result = runner.run(plan)
            course.losses.append(result.loss)
            course.norms.append(result.grad_norm)
            course.shares.append(Share(result.wall_ms, result.propagate_ms, result.exchange_ms))
        course.weights = {name: weights.clone() for name, weights in state.gathered().items()}
    finally:
        runner.close()
    return course


def mean_shares(courses: Sequence[LongCourse]) -> dict[str, float]:
    """Return means over iterations and ranks, as shares of the iteration; and those of the rank that waits least.

    A rank that is done early waits in the return of gradients for those that still compute; the rank with the least
    such time shows what moving them costs.
    """
    iterations = list(zip(*(course.shares for course in courses), strict=True))
    wall = [statistics.mean(share.wall_ms for share in ranks) for ranks in iterations]
    parts = {
        "propagation": [statistics.mean(share.propagate_ms for share in ranks) for ranks in iterations],
        "propagation of the rank that waits least": [
            min(share.propagate_ms for share in ranks) for ranks in iterations
        ],
        "exchange": [statistics.mean(share.exchange_ms for share in ranks) for ranks in iterations],
    }
    return {"iteration_ms": statistics.mean(wall), **{name: sum(ms) / sum(wall) for name, ms in parts.items()}}
