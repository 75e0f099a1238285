"""How long iterations wait and plans take, as a service learns it."""

import orjson
import pytest

from planner_service.jobs.lateness import LATE, MOST_SAVED, NUM_JOBS, NUM_REMEMBERED, RECENT_S, Congestion, UsualTime


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
        congestion.add("job", 0.6, now=at / 10)
    assert congestion.is_too_much(1000, now=1.0)
    assert not congestion.is_too_much(2000, now=1.0)
    assert not congestion.is_too_much(None, now=1.0)
    congestion.add("job", 0.1, now=1.0)
    assert congestion.is_too_much(1000, now=1.0), "one that was quick is no change"
    assert not congestion.is_too_much(1000, now=1.0 + RECENT_S + 0.1), "what was long ago says nothing"


def test_one_is_begun_for_each_that_is_taken_up_by_jobs_that_were_not_served_a_moment_ago() -> None:
    congestion = Congestion()
    congestion.add("seldom", 0.9, now=0.0)
    assert congestion.may_begin("never", 1000, now=0.1)
    assert not congestion.may_begin("other", 1000, now=0.1), "its place is taken"
    congestion.add("often", 0.9, now=3.0)
    assert not congestion.may_begin("often", 1000, now=3.1)
    assert congestion.may_begin("seldom", 1000, now=3.1)
    for at in range(100):
        congestion.add("often", 0.9, now=4.0 + at / 100)
    assert [congestion.may_begin(f"job-{number}", 1000, now=5.0) for number in range(MOST_SAVED + 1)] == [
        *[True] * MOST_SAVED,
        False,
    ]


def test_only_so_many_jobs_are_remembered() -> None:
    congestion = Congestion()
    for number in range(NUM_JOBS + 1):
        congestion.add(f"job-{number}", 0.9, now=1.0)
    assert not congestion.may_begin("job-1", 1000, now=1.0)
    assert congestion.may_begin("job-0", 1000, now=1.0)


def test_what_is_told_of_iterations_given_up_names_the_setting_and_what_to_do() -> None:
    told = orjson.loads(LATE)
    assert (told["code"], told["status"]) == ("plan-too-late", 410)
    assert "plan_wait_ms" in told["detail"]
    assert "plan of your own" in told["remedy"]
