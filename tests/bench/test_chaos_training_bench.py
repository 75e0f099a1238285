"""What a run of four ranks makes of a planner service that is killed twenty times."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(TESTS / name) for name in ("executor", "service", "sequences", "trainer")]

from chaos_training import figures, resumed_after_every_outage, run_through_chaos  # noqa: E402 - found by the path above

pytestmark = [pytest.mark.bench, pytest.mark.long]


@pytest.mark.timeout(1200)
def test_a_run_goes_on_in_time_through_twenty_kills_of_its_planner(tmp_path: Path) -> None:
    end = run_through_chaos(tmp_path, num_kills=20, pace_s=0.3, seed=20, limit_s=840.0)
    sys.stdout.write(f"\n{figures(end)}\n")
    assert resumed_after_every_outage(end) > 0
