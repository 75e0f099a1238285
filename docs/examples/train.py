"""Train a small decoder on random sequences of uneven length, planned by a running service.

Start the service with `hydraulis serve`, then: torchrun --standalone --nproc-per-node 2 docs/examples/train.py
"""

import os
import sys

import torch

from planner_client.contract import Device, LayoutCost, ModelShape, Profile
from worker_agent import DecoderConfig, Trainer
from worker_agent.trainer import CheckpointSettings, OptimizerSettings, ReportSettings, ScheduleSettings
from worker_agent.trainer.metrics import IterationMetrics

PLANNER_URL = os.environ.get("PLANNER_URL", "http://127.0.0.1:8000")
CHECKPOINTS = os.environ.get("CHECKPOINTS")
PROFILE = Profile(
    name="train-example",
    source="made up for this example; `hydraulis profile` measures a real one",
    model=ModelShape(name="tiny decoder", num_layers=2, hidden_size=64, vocab_size=256),
    device=Device(name="CPU", memory_bytes=2**30),
    layouts=[
        LayoutCost(tp=1, pp=1, a_ms_per_token2=2e-5, b_ms_per_token=0.02, c_ms=3.0, max_tokens=4096),
        LayoutCost(tp=2, pp=1, a_ms_per_token2=1.2e-5, b_ms_per_token=0.012, c_ms=5.0, max_tokens=8192),
    ],
)


class RandomSequences(torch.utils.data.Dataset[torch.Tensor]):
    """Many short sequences and a few long ones, always the same."""

    def __len__(self) -> int:
        """Return the number of sequences."""
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        """Return the token ids of one sequence, shape (length,)."""
        drawn = torch.Generator().manual_seed(index)
        length = 2000 if index % 16 == 0 else int(torch.randint(16, 400, (1,), generator=drawn))
        return torch.randint(0, 256, (length,), generator=drawn)


def report(metrics: IterationMetrics) -> None:
    """Write one line for an iteration."""
    sys.stdout.write(f"iteration {metrics.iteration}: loss {metrics.loss:.4f}, strategy {metrics.strategy}\n")


def main() -> None:
    """Train for three iterations."""
    with Trainer(
        DecoderConfig(vocab_size=256, hidden_size=64, num_layers=2, num_heads=2),
        RandomSequences(),
        planner_url=PLANNER_URL,
        profile=PROFILE,
        num_iterations=3,
        tokens_per_iteration=6_000,
        optimizer=OptimizerSettings(learning_rate=1e-3),
        schedule=ScheduleSettings(warmup_iterations=1, decay="cosine", final_share=0.1),
        checkpoints=CheckpointSettings(CHECKPOINTS) if CHECKPOINTS else None,
        reports=ReportSettings(progress=False, on_iteration=report),
        collective_timeout_s=60.0,
    ) as trainer:
        trainer.train()


if __name__ == "__main__":
    main()
