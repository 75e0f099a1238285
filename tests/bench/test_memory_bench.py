"""Memory of each rank while it trains, against what it must hold.

``pytest tests/bench/test_memory_bench.py -m bench -s`` prints the figures of ``docs/benchmarks.md``.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "executor"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sequences"))

from memory_footprint import CONFIG, LENGTH, WORLD_SIZE, Footprint, measure
from plan_factory import make_plan
from rank_group import run_ranks

from planner_client.contract import Plan
from worker_agent.executor.parameters import ParameterTable

pytestmark = [
    pytest.mark.bench,
    pytest.mark.long,
    pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak of a process from Linux"),
]
NUM_ITERATIONS = 3
MIB = 2**20
MARGIN = 0.1
"""Of the memory accounted for: activations, the gradient of one weight on its way, and what the allocator keeps."""

SEQUENCES = [("rank-0", LENGTH, 1), ("rank-1", LENGTH, 1)]
PLANS = {
    "(1,1)x2": make_plan([[[SEQUENCES[0]]], [[SEQUENCES[1]]]], ranks=[[0], [1]]),
    "(2,1)x1": make_plan([[SEQUENCES]], ranks=[[0, 1]], layout=(2, 1, 1)),
    "(1,2)x1": make_plan([[[SEQUENCES[0]], [SEQUENCES[1]]]], ranks=[[0, 1]], layout=(1, 1, 2)),
}
RUNS: dict[str, list[Plan]] = {
    **{strategy: [plan] * NUM_ITERATIONS for strategy, plan in PLANS.items()},
    "each in turn": [*PLANS.values()] * 2,
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", RUNS)
def test_a_rank_holds_little_more_than_it_must(name: str, tmp_path: Path) -> None:
    ends = run_ranks(measure, WORLD_SIZE, tmp_path, RUNS[name], limit_s=240)
    assert not [end.raised for end in ends if end.raised], next(end.raised for end in ends if end.raised)
    print(f"\n{name}, {ParameterTable.of(CONFIG).num_elements / 1e6:.1f} million parameters in fp32 (MiB)")  # noqa: T201
    for rank, end in enumerate(ends):
        found: Footprint = end.returned
        print(  # noqa: T201 - the figures are what a bench is for
            f"rank {rank}: state {found.state / MIB:.0f} + compute {found.compute / MIB:.0f} = "
            f"{found.least / MIB:.0f}, transfer {found.transfer / MIB:.0f}; grown {found.grown / MIB:.0f} "
            f"(kept {found.kept / MIB:.0f}): {found.over_least:.2f} of state and compute, "
            f"{found.over_accounted:.3f} of all three"
        )
        assert found.kept >= found.least, "the measure does not see what must be there"
        assert found.over_accounted <= 1 + MARGIN
