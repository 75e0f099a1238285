from pathlib import Path

import pytest
from plan_factory import make_plan
from rank_group import run_ranks
from scenarios import TIMEOUT_S, Scenario, lose_a_rank, make_tokens

SCENARIO = Scenario(
    (make_plan([[[("rank-0", 5, 1)]], [[("rank-1", 7, 1)]]]),),
    {"rank-0": make_tokens([5], 0), "rank-1": make_tokens([7], 1)},
)


@pytest.mark.parametrize(("manner", "lost_rank", "exit_code"), [("dies", 2, 9), ("stalls", 1, -9)])
def test_a_lost_rank_is_a_fault_on_the_others_within_the_timeout(
    manner: str, lost_rank: int, exit_code: int, tmp_path: Path
) -> None:
    ends = run_ranks(lose_a_rank, lost_rank + 1, tmp_path, SCENARIO, lost_rank, manner, stalled=frozenset({lost_rank}))
    for end in ends[:lost_rank]:
        assert end.raised is None, end.raised
        taken_s, message = end.returned
        assert taken_s < TIMEOUT_S + 20.0
        assert "a rank died or did not arrive" in message
    assert ends[lost_rank].returned is None
    assert ends[lost_rank].exit_code == exit_code
