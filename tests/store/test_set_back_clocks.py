"""A database whose clock was set back: iterations begun before are taken up as if it had not been."""

import pytest
from sqlalchemy import update

from planner_service.store import Claim, JobRow, ReportTerms, SqlStore
from planner_service.store.sql.tables import ITERATIONS

TERMS = ReportTerms(num_expected=2, wait_s=60.0, max_open=9, useful_s=30.0)
AN_HOUR_S = 3600.0
TIMES = (ITERATIONS.c.began_at, ITERATIONS.c.due_at, ITERATIONS.c.claimable_at, ITERATIONS.c.useless_at)


def set_clock_back(store: SqlStore, seconds: float = AN_HOUR_S) -> None:
    """Write what was written so far as a clock wrote it that was ahead of this one."""
    store._database.write(
        lambda transaction: transaction.connection.execute(
            update(ITERATIONS).values({column: column + seconds for column in TIMES})
        )
    )


@pytest.fixture
def jobs(store: SqlStore) -> SqlStore:
    store.jobs.put(JobRow("job", b"{}"))
    return store


def claim(store: SqlStore, lease_s: float = 5.0) -> Claim | None:
    return store.jobs.claim("me", lease_s)


@pytest.mark.parametrize("back_s", [2.0, 60.0, AN_HOUR_S])
def test_what_is_due_can_be_taken_up_at_once_by_whatever_the_clock_was_set_back(jobs: SqlStore, back_s: float) -> None:
    jobs.jobs.report("job", 0, {"a": b"1", "b": b"2"}, TERMS)
    set_clock_back(jobs, back_s)
    taken = claim(jobs)
    assert taken is not None
    assert not taken.is_overdue
    assert taken.waited_s < back_s


def test_who_is_missing_is_waited_for_as_long_as_the_job_says_from_now_on(jobs: SqlStore) -> None:
    jobs.jobs.report("job", 0, {"a": b"1"}, TERMS)
    set_clock_back(jobs)
    assert claim(jobs) is None
    due_at, now = jobs.jobs.next_due_at() or (0.0, 0.0)
    assert 50.0 < due_at - now <= 60.0
    late_at, now = jobs.jobs.next_late_at() or (0.0, 0.0)
    assert 80.0 < late_at - now <= 90.0
    jobs.jobs.report("job", 0, {"b": b"2"}, TERMS)
    assert claim(jobs) is not None


def test_an_iteration_of_a_service_that_died_before_is_taken_over_after_a_lease(jobs: SqlStore) -> None:
    jobs.jobs.report("job", 0, {"a": b"1", "b": b"2"}, TERMS)
    assert claim(jobs) is not None
    set_clock_back(jobs)
    assert claim(jobs) is None
    due_at, now = jobs.jobs.next_due_at() or (0.0, 0.0)
    assert 0.0 < due_at - now <= 5.0


def test_a_service_that_lives_keeps_its_iteration(jobs: SqlStore) -> None:
    jobs.jobs.report("job", 0, {"a": b"1", "b": b"2"}, TERMS)
    mine = claim(jobs)
    assert mine is not None
    set_clock_back(jobs)
    assert jobs.jobs.claim("another", 5.0) is None
    assert jobs.jobs.renew(mine, 60.0)
    assert jobs.jobs.claim("another", 5.0) is None


def test_where_no_clock_was_set_back_nothing_is_moved(jobs: SqlStore) -> None:
    jobs.jobs.report("job", 0, {"a": b"1", "b": b"2"}, TERMS)
    jobs.jobs.report("job", 1, {"a": b"1"}, TERMS)
    assert claim(jobs, 600.0) is not None
    before = jobs.jobs.iterations("job", after=None, limit=9)
    assert claim(jobs) is None
    assert jobs.jobs.iterations("job", after=None, limit=9) == before
