"""Plans on CUDA devices with NCCL, one rank to each; needs as many devices as a case has ranks."""

from pathlib import Path

import pytest
import torch
from launched import HELD, Layout, hetero_plan
from rank_group import run_ranks
from reference import reference_step
from scenarios import SEED, Scenario, run_scenarios

from worker_agent.executor.model import Decoder
from worker_agent.executor.shape import DecoderConfig

CONFIG = DecoderConfig(vocab_size=23, hidden_size=64, num_layers=4, num_heads=4, num_kv_heads=2, ffn_size=96)
CASES: dict[str, list[Layout]] = {
    "one device": [(1, 1, (0,))],
    "data parallel": [(1, 1, (0,)), (1, 1, (1,))],
    "tp2": [(2, 1, (0, 1))],
    "pp2": [(1, 2, (0, 1))],
    "tp2 and pp2": [(2, 2, (0, 1, 2, 3))],
    "tp2 next to two of tp1": [(2, 1, (1, 2)), (1, 1, (0,)), (1, 1, (3,))],
}


@pytest.mark.gpu
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", CASES)
def test_devices_train_as_one_process_does(name: str, tmp_path: Path) -> None:
    layouts = CASES[name]
    world_size = sum(tp * pp for tp, pp, _ in layouts)
    if torch.cuda.device_count() < world_size:
        pytest.skip(f"needs {world_size} CUDA devices, this machine has {torch.cuda.device_count()}")
    plan = hetero_plan(layouts, 1)
    shared = {"held": HELD, "rank_of_source": dict.fromkeys(HELD, 0), "config": CONFIG}
    scenarios = {
        "fp64": Scenario((plan,), **shared),
        "bf16": Scenario((plan,), **shared, dtype=torch.float32, compute_dtype=torch.bfloat16),
        "prepared ahead": Scenario((plan, plan), **shared, dtype=torch.float32, ahead=True),
        "evaluation": Scenario((plan,), **shared, evaluates=True),
    }
    ends = run_ranks(run_scenarios, world_size, tmp_path, scenarios, limit_s=240.0, backend="nccl")
    batch = [sequence for sequences in HELD.values() for sequence in sequences]
    loss, gradient, _ = reference_step(Decoder(CONFIG, seed=SEED, dtype=torch.float64), batch)
    for end in ends:
        assert end.raised is None, end.raised
        assert [report.fault for report in end.returned.values()] == [None] * len(scenarios)
        exact, rough = end.returned["fp64"], end.returned["bf16"]
        assert exact.results[0].loss == pytest.approx(loss, abs=1e-9)
        torch.testing.assert_close(exact.gradients[0], gradient, rtol=0, atol=1e-9)
        assert rough.results[0].loss == pytest.approx(loss, rel=1e-2)
        assert ((rough.gradients[0].double() - gradient).norm() / gradient.norm()).item() < 0.05
        assert end.returned["prepared ahead"].results[0].loss == pytest.approx(loss, rel=1e-5)
        assert end.returned["evaluation"].evaluations == pytest.approx([loss], abs=1e-9)
