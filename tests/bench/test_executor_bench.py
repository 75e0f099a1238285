"""The executor beside DistributedDataParallel: same batches, same model, two ranks of one thread each."""

import statistics
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "executor"))

from executor_race import Lap, Race, race
from rank_group import run_ranks

from planner_client.contract import PlanRequest, Profile
from planner_service.translate import plan_request

pytestmark = [pytest.mark.bench, pytest.mark.long]
NUM_BATCHES = 12
MAX_TOKENS = 4096
PROFILE = Profile.model_validate(
    {
        "name": "demo-sized",
        "source": "about what one thread of this machine takes for the bench's decoder",
        "model": {"name": "bench", "num_layers": 4, "hidden_size": 128, "vocab_size": 256},
        "device": {"name": "CPU core", "memory_bytes": 2**30},
        "layouts": [
            {
                "tp": 1,
                "pp": 1,
                "a_ms_per_token2": 5e-5,
                "b_ms_per_token": 0.12,
                "c_ms": 8.0,
                "max_tokens": MAX_TOKENS,
            }
        ],
    }
)


def batches_of(lengths: list[list[list[int]]]) -> Race:
    """Draw token ids for lengths by batch and rank, and plan each batch."""
    generator = torch.Generator().manual_seed(0)
    held = tuple(
        tuple(tuple(torch.randint(256, (length,), generator=generator) for length in own) for own in batch)
        for batch in lengths
    )
    plans = []
    for batch in lengths:
        request = PlanRequest.model_validate(
            {
                "profile": PROFILE,
                "num_gpus": 2,
                "strategies": [[{"tp": 1, "pp": 1, "num_replicas": 2}]],
                "lengths": {f"rank-{rank}": own for rank, own in enumerate(batch)},
            }
        )
        plans.append(plan_request(request, [PROFILE], remaining_ms=lambda: 1e9))
    return Race(held, tuple(plans), MAX_TOKENS)


def ratios(ends: list[dict[str, list[Lap]]]) -> tuple[float, float]:
    """Their time over ours: wall clock, and CPU time of the slowest rank; medians after two laps to warm up."""
    by_name = {
        name: (
            [max(lap.wall_ms for lap in laps) for laps in zip(*(end[name] for end in ends), strict=True)][2:],
            [max(lap.cpu_ms for lap in laps) for laps in zip(*(end[name] for end in ends), strict=True)][2:],
        )
        for name in ("ours", "ddp")
    }
    wall = statistics.median(a / b for a, b in zip(by_name["ddp"][0], by_name["ours"][0], strict=True))
    cpu = statistics.median(a / b for a, b in zip(by_name["ddp"][1], by_name["ours"][1], strict=True))
    return wall, cpu


def run(lengths: list[list[list[int]]], folder: Path) -> tuple[float, float]:
    ends = run_ranks(race, 2, folder, batches_of(lengths), limit_s=400)
    assert not [end.raised for end in ends if end.raised], next(end.raised for end in ends if end.raised)
    found = [end.returned for end in ends]
    for ours, theirs in zip(found[0]["ours"], found[0]["ddp"], strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=2e-3)
    shares = found[0]["ours"][-1].shares
    listed = ", ".join(f"{name} {value / shares['wall_ms']:.1%}" for name, value in shares.items())
    print(f"\nshares of the last iteration: {listed}")  # noqa: T201 - the figures are what a bench is for
    return ratios(found)


@pytest.mark.timeout(600)
def test_equal_lengths_take_no_longer_than_with_ddp(tmp_path: Path) -> None:
    wall, cpu = run([[[512] * 8, [512] * 8]] * NUM_BATCHES, tmp_path)
    print(f"\nequal lengths: DDP over ours {wall:.3f} in wall clock, {cpu:.3f} in CPU time")  # noqa: T201
    assert wall >= 1 / 1.10


@pytest.mark.timeout(600)
def test_heavy_tailed_lengths_are_faster_than_with_ddp(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    lengths = [
        [np.minimum(draw.lognormal(5.6, 1.2, 12).astype(int) + 8, MAX_TOKENS).tolist() for _ in range(2)]
        for _ in range(NUM_BATCHES)
    ]
    wall, cpu = run(lengths, tmp_path)
    print(f"\nheavy-tailed lengths: DDP over ours {wall:.3f} in wall clock, {cpu:.3f} in CPU time")  # noqa: T201
    assert cpu > 1
