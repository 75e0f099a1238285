"""How long iterations wait and plans take, as a service learns it."""

import orjson
import pytest

from planner_service.jobs.lateness import LATE, NUM_REMEMBERED, RECENT_S, Congestion, UsualTime


def test_the_usual_time_is_that_of_nearly_all_and_nothing_is_known_at_first() -> None:
    usual = UsualTime()
    assert usual.seconds == 0.0
    for _ in range(95):
        usual.add(0.1)
    for _ in range(5):
        usual.add(9.0)
    assert usual.seconds == pytest.approx(0.1)
    for _ in range(NUM_REMEMBERED):
        usual.add(2.0)
    assert usual.seconds == pytest.approx(2.0)


def test_there_is_too_much_when_iterations_wait_for_half_of_the_time_in_which_plans_are_of_use() -> None:
    congestion = Congestion()
    assert not congestion.is_too_much(1000, now=0.0)
    for at in range(10):
        congestion.add(0.6, now=at / 10)
    assert congestion.is_too_much(1000, now=1.0)
    assert not congestion.is_too_much(2000, now=1.0)
    assert not congestion.is_too_much(None, now=1.0)
    congestion.add(0.1, now=1.0)
    assert congestion.is_too_much(1000, now=1.0), "one that was quick is no change"
    assert not congestion.is_too_much(1000, now=1.0 + RECENT_S + 0.1), "what was long ago says nothing"


def test_what_is_told_of_iterations_given_up_names_the_setting_and_what_to_do() -> None:
    told = orjson.loads(LATE)
    assert (told["code"], told["status"]) == ("plan-too-late", 410)
    assert "plan_wait_ms" in told["detail"]
    assert "plan of your own" in told["remedy"]
