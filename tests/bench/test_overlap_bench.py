"""How much of moving parameters and gradients happens while ranks compute, read off Chrome traces.

``pytest tests/bench/test_overlap_bench.py -m bench -s`` prints the figures of ``docs/benchmarks.md``.
"""

import statistics
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "executor"))
sys.path.insert(0, str(Path(__file__).parents[1] / "sequences"))

from overlap_trace import CONFIG, NUM_WARM_UPS, Overlap, overlap, trace
from plan_factory import make_plan
from rank_group import run_ranks

from planner_client.contract import Plan
from worker_agent.executor.parameters import ParameterTable

pytestmark = [pytest.mark.bench, pytest.mark.long]
NUM_TRACED = 5
LENGTHS = [512, 512]
"""Sequences of each rank (tokens), each a micro-batch of its own."""


def plan_of(strategy: str, iteration: int) -> Plan:
    by_rank = [[[(f"rank-{rank}", length, 1)] for length in LENGTHS] for rank in range(2)]
    together = [micro_batch for micro_batches in by_rank for micro_batch in micro_batches]
    if strategy == "(1,1)x2":
        return make_plan(by_rank, iteration=iteration)
    layout = {"(2,1)x1": (2, 1, 1), "(1,2)x1": (1, 1, 2)}[strategy]
    return make_plan([together], ranks=[[0, 1]], layout=layout, iteration=iteration)


def median_shares(found: list[Overlap]) -> dict[str, float]:
    return {
        "of assembling": statistics.median(one.assembling_while_computing / one.assembling for one in found),
        "of returning": statistics.median(one.returning_while_computing / one.returning for one in found),
        "of both": statistics.median(
            (one.assembling_while_computing + one.returning_while_computing) / (one.assembling + one.returning)
            for one in found
        ),
    }


@pytest.mark.timeout(300)
@pytest.mark.parametrize("strategy", ["(1,1)x2", "(2,1)x1", "(1,2)x1"])
def test_parameters_and_gradients_move_while_ranks_compute(strategy: str, tmp_path: Path) -> None:
    plans = [plan_of(strategy, iteration) for iteration in range(NUM_WARM_UPS + NUM_TRACED)]
    ends = run_ranks(trace, 2, tmp_path, plans, LENGTHS, limit_s=240)
    assert not [end.raised for end in ends if end.raised], next(end.raised for end in ends if end.raised)
    print(f"\n{strategy}, {ParameterTable.of(CONFIG).num_elements / 1e6:.1f} million parameters")  # noqa: T201
    shares_by_rank, exposed_by_rank = [], []
    for rank, end in enumerate(ends):
        assert len(end.returned) == NUM_TRACED
        found = [overlap(spans) for spans in end.returned]
        shares = median_shares(found)
        exposed = statistics.median(one.exposed / one.whole for one in found)
        listed = ", ".join(f"{share:.0%} {name}" for name, share in shares.items())
        print(  # noqa: T201 - the figures are what a bench is for
            f"rank {rank}: iteration {statistics.median(one.whole for one in found) / 1e3:.0f} ms, moving "
            f"{statistics.median(one.assembling + one.returning for one in found) / 1e3:.0f} ms; while it computed: "
            f"{listed}; exposed {exposed:.1%} of the iteration"
        )
        shares_by_rank.append(shares["of both"])
        exposed_by_rank.append(exposed)
    # A stage that has nothing to compute yet, or no more, sees rounds pass while it waits for the other: what counts is
    # the rank that always computes.
    assert max(shares_by_rank) > 0.25
    assert min(exposed_by_rank) < 0.1
