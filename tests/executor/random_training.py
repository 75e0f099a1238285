"""Random training runs by plans of the real planner, and what ranks are told to do with them; importable by ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scenarios import make_tokens
from torch import Tensor
from training_reference import BETAS, DECAY, EPSILON, RATE, Course

from planner_client.contract import Plan, PlanRequest, Profile, parse_strategy
from planner_service.translate import plan_request
from worker_agent.executor.model import DecoderConfig
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shards import ShardedState

CONFIGS = (
    DecoderConfig(vocab_size=23, hidden_size=16, num_layers=4, num_heads=4, num_kv_heads=2),
    DecoderConfig(vocab_size=23, hidden_size=16, num_layers=5, num_heads=4, num_kv_heads=1, tied_embeddings=True),
    DecoderConfig(vocab_size=24, hidden_size=24, num_layers=4, num_heads=4, ffn_size=37),
)
DEGREES = [(tp, pp) for tp in (1, 2, 4) for pp in (1, 2, 3, 4)]
SEED = 5


@dataclass(frozen=True)
class Training:
    """One run: a plan and the sequences held, by source, for each iteration."""

    config: DecoderConfig
    plans: tuple[Plan, ...]
    held: tuple[dict[str, list[Tensor]], ...]
    max_norm: float

    def trained_on(self, iteration: int) -> list[Tensor]:
        """All sequences of an iteration but those that its plan drops."""
        plan = self.plans[iteration]
        left = {(entry.source, entry.length): entry.count for entry in plan.dropped}
        kept = []
        # Dropped are the last that a source holds of a length: the placed ones are taken in the order held.
        for source, sequences in self.held[iteration].items():
            for sequence in reversed(sequences):
                if left.get((source, len(sequence)), 0):
                    left[source, len(sequence)] -= 1
                else:
                    kept.append(sequence)
        return kept


def draw_training(world_size: int, seed: int, num_iterations: int, strategies: Sequence[str] = ()) -> Training:
    """Draw a run whose strategy, unless it is given, lengths, alignment and limits change every iteration."""
    draw = np.random.default_rng(1000 * world_size + seed)
    config = CONFIGS[seed % len(CONFIGS)]
    profile = _profile(draw)
    plans, held = [], []
    for iteration in range(num_iterations):
        lengths = {
            f"rank-{rank}": np.minimum(draw.lognormal(2.0, 1.0, draw.integers(0, 5)).astype(int) + 1, 60).tolist()
            for rank in range(world_size)
        }
        request = PlanRequest.model_validate(
            {
                "profile": profile,
                "num_gpus": world_size,
                "strategies": [parse_strategy(strategies[iteration]) if strategies else _strategy(draw, world_size)],
                "iteration": iteration,
                "lengths": lengths,
                "options": {
                    "seed": int(draw.integers(100)),
                    "alignment": int(draw.choice([1, 1, 4])),
                    "max_length": int(draw.choice([25, 60])),
                    "over_long": "drop",
                    "deadline_ms": 200,
                },
            }
        )
        plans.append(plan_request(request, [profile], remaining_ms=lambda: 1e9))
        held.append({source: make_tokens(own, int(draw.integers(2**31))) for source, own in lengths.items()})
    return Training(config, tuple(plans), tuple(held), float(draw.choice([0.05, 100.0])))


def _profile(draw: np.random.Generator) -> Profile:
    layouts = [
        {
            "tp": tp,
            "pp": pp,
            "a_ms_per_token2": 1e-3 / tp / pp * float(draw.uniform(0.5, 2)),
            "b_ms_per_token": 0.05 / tp / pp * float(draw.uniform(0.5, 2)),
            "c_ms": 0.2,
            "max_tokens": 64 + 8 * int(draw.integers(8)),
        }
        for tp, pp in DEGREES
    ]
    return Profile.model_validate(
        {
            "name": "drawn",
            "source": "random",
            "model": {"name": "tiny", "num_layers": 4, "hidden_size": 16, "vocab_size": 23},
            "device": {"name": "CPU core", "memory_bytes": 2**30},
            "layouts": layouts,
        }
    )


def _strategy(draw: np.random.Generator, world_size: int) -> list[dict[str, int]]:
    """Fill the ranks, or leave some idle, with replicas drawn one after another."""
    groups: list[dict[str, int]] = []
    left = world_size
    while left and (not groups or draw.random() > 0.1):
        fitting = [(tp, pp) for tp, pp in DEGREES if tp * pp <= left]
        tp, pp = fitting[int(draw.integers(len(fitting)))]
        groups.append({"tp": tp, "pp": pp, "num_replicas": 1})
        left -= tp * pp
    return groups


def train(_: int, trainings: list[Training]) -> list[Course]:
    """Run every training on this rank and report their courses."""
    return [train_one(training) for training in trainings]


def train_one(training: Training) -> Course:
    state = ShardedState(
        training.config,
        seed=SEED,
        dtype=torch.float64,
        make_optimizer=lambda groups: torch.optim.AdamW(
            [{"weight_decay": DECAY, **group} for group in groups], lr=RATE, betas=BETAS, eps=EPSILON
        ),
    )
    runner = IterationRunner(state, max_norm=training.max_norm)
    course = Course()
    try:
        for plan, held in zip(training.plans, training.held, strict=True):
            result = runner.run(plan, {source: held.get(source, []) for source in runner.sources})
            course.losses.append(result.loss)
            course.norms.append(result.grad_norm)
        course.weights = {name: weights.clone() for name, weights in state.gathered().items()}
    finally:
        runner.close()
    return course
