"""What sources report of iterations before they are planned."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from planner_service.store.faults import BatchConflict, IterationClosed, JobUnknown, TooManyOpen
from planner_service.store.interface import IterationChanged
from planner_service.store.job_store import IterationRow, ReportTerms
from planner_service.store.sql.database import Transaction, is_storable
from planner_service.store.sql.rows import (
    ITERATION_BY_NAME,
    ITERATION_BY_NUMBER,
    JOB_BY_NAME,
    hold_iteration,
    hold_job,
    iteration_row,
)
from planner_service.store.sql.tables import BATCHES, ITERATIONS, JOBS

_NUM_ASKED = 500
"""Sources that one query names; databases bound how many values a statement has."""

_KNOWN_BATCHES = select(BATCHES.c.source, BATCHES.c.body).where(
    BATCHES.c.iteration_number == bindparam("number"), BATCHES.c.source.in_(bindparam("sources", expanding=True))
)
_COUNT_ANOTHER = (
    update(JOBS)
    .where(JOBS.c.number == bindparam("job_number"))
    .values(num_iterations=JOBS.c.num_iterations + 1, num_open=JOBS.c.num_open + 1)
)
_CHANGE = update(ITERATIONS).where(ITERATIONS.c.number == bindparam("the_number"))

_OPEN_TO_REPORTS = frozenset({"collecting", "due"})


def report(
    transaction: Transaction, job: str, iteration: int, batches: Mapping[str, bytes], terms: ReportTerms
) -> IterationRow:
    """Keep what sources hold of an iteration, all of it or nothing; see `JobStore.report`."""
    if not is_storable(job):
        raise JobUnknown(job)
    row = _hold_or_begin(transaction, job, iteration, terms)
    known = _known(transaction, row.number, sorted(batches)) if row.num_reported else {}
    for source, body in known.items():
        if body != batches[source]:
            raise BatchConflict(source)
    new = [source for source in sorted(batches) if source not in known]
    if not new:
        return iteration_row(row)
    if row.state not in _OPEN_TO_REPORTS:
        raise IterationClosed(new[0])
    connection = transaction.connection
    connection.execute(
        insert(BATCHES),
        [{"iteration_number": row.number, "source": source, "body": batches[source]} for source in new],
    )
    num_reported = row.num_reported + len(new)
    changes: dict[str, Any] = {"num_reported": num_reported}
    if row.state == "collecting" and num_reported >= row.num_expected:
        now = transaction.now()
        changes |= {"state": "due", "claimable_at": now, "useless_at": _useless_at(now, terms)}
        transaction.tell(IterationChanged("due", job, iteration))
    connection.execute(_CHANGE, {"the_number": row.number, **changes})
    return iteration_row(connection.execute(ITERATION_BY_NUMBER, {"number": row.number}).one())


def hold(transaction: Transaction, job: str, iteration: int) -> Any:
    """Return an iteration, which stays as it is, and its job there, until the transaction ends.

    Raises
    ------
    JobUnknown
        If there is no such iteration.
    """
    is_there = is_storable(job) and hold_job(transaction, JOB_BY_NAME, job=job) is not None
    row = hold_iteration(transaction, job=job, iteration=iteration) if is_there else None
    if row is None:
        raise JobUnknown(job)
    return row


def _hold_or_begin(transaction: Transaction, job: str, iteration: int, terms: ReportTerms) -> Any:
    row = hold_iteration(transaction, job=job, iteration=iteration)
    if row is not None:
        return row
    held = hold_job(transaction, JOB_BY_NAME, job=job)
    if held is None:
        raise JobUnknown(job)
    # Another may have begun it while this one waited for the job.
    row = hold_iteration(transaction, job=job, iteration=iteration)
    if row is not None:
        return row
    if held.num_open >= terms.max_open:
        raise TooManyOpen(held.num_open)
    began_at = transaction.now()
    due_at = began_at + terms.wait_s
    connection = transaction.connection
    connection.execute(
        insert(ITERATIONS).values(
            job_number=held.number,
            iteration=iteration,
            state="collecting",
            num_expected=terms.num_expected,
            num_reported=0,
            began_at=began_at,
            due_at=due_at,
            claimable_at=due_at,
            useless_at=_useless_at(due_at, terms),
            num_tries=0,
        )
    )
    connection.execute(_COUNT_ANOTHER, {"job_number": held.number})
    return connection.execute(ITERATION_BY_NAME, {"job": job, "iteration": iteration}).one()


def _useless_at(due_at: float, terms: ReportTerms) -> float | None:
    return None if terms.useful_s is None else due_at + terms.useful_s


def _known(transaction: Transaction, number: int, sources: list[str]) -> dict[str, bytes]:
    """Return what some sources reported before, ascending by source."""
    known: dict[str, bytes] = {}
    for first in range(0, len(sources), _NUM_ASKED):
        asked = {"number": number, "sources": sources[first : first + _NUM_ASKED]}
        known |= {row.source: bytes(row.body) for row in transaction.connection.execute(_KNOWN_BATCHES, asked)}
    return dict(sorted(known.items()))
