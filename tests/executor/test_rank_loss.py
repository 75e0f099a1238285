from pathlib import Path

import pytest
from plan_factory import make_plan, reseal
from rank_group import run_ranks
from scenarios import TIMEOUT_S, Scenario, lose_a_rank, make_tokens

from planner_client.contract import Plan

HELD = {"rank-0": make_tokens([5, 5], 0), "rank-1": make_tokens([7], 1)}
FIVES, SEVEN = [("rank-0", 5, 2)], [("rank-1", 7, 1)]


def tensor_parallel_next_to_one_alone() -> Plan:
    pair, alone = make_plan([[FIVES]], ranks=[[0, 1]], layout=(2, 1, 1)), make_plan([[SEVEN]], ranks=[[2]])
    return reseal(pair, replicas=[*pair.replicas, *alone.replicas], num_sequences=3, num_tokens=17)


PLANS = {
    "data parallel": make_plan([[FIVES], [SEVEN]]),
    "pipeline": make_plan([[FIVES, SEVEN]], ranks=[[0, 1, 2]], layout=(1, 1, 3)),
    "tensor parallel": tensor_parallel_next_to_one_alone(),
}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("manner", "name", "world_size", "lost_rank"),
    [
        ("stalls", "data parallel", 2, 1),
        ("dies", "pipeline", 3, 1),
        ("dies", "tensor parallel", 3, 1),
    ],
)
def test_a_lost_rank_is_a_fault_on_the_others_within_the_timeout(
    manner: str, name: str, world_size: int, lost_rank: int, tmp_path: Path
) -> None:
    scenario = Scenario((PLANS[name],), HELD)
    stalled = frozenset({lost_rank})
    ends = run_ranks(lose_a_rank, world_size, tmp_path, scenario, lost_rank, manner, stalled=stalled)
    for rank, end in enumerate(ends):
        if rank == lost_rank:
            assert end.returned is None
            assert end.exit_code == (9 if manner == "dies" else -9)
            continue
        assert end.raised is None, end.raised
        taken_s, message = end.returned
        assert taken_s < TIMEOUT_S + 20.0
        assert "a rank died or did not arrive" in message
