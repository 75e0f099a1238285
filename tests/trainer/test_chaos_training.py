"""A run of four ranks goes on while its planner service is killed and started again."""

from pathlib import Path

import pytest
from chaos_training import figures, resumed_after_every_outage, run_through_chaos


@pytest.mark.timeout(180)
def test_a_run_goes_on_in_time_while_its_planner_is_killed_and_comes_back(tmp_path: Path) -> None:
    end = run_through_chaos(tmp_path, num_kills=3, pace_s=0.3, seed=1, limit_s=120.0)
    assert end.num_fallbacks > 0, figures(end)
    assert resumed_after_every_outage(end) > 0
    assert len(end.metrics) >= 12
