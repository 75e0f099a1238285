"""How rows of jobs and iterations are held and read.

Statements that every iteration needs are made once: to make one anew, and the key under which its text is remembered,
takes longer than to run it.
"""

import json
from typing import Any

from sqlalchemy import Select, bindparam, select

from planner_service.store.job_store import IterationRow, JobRow
from planner_service.store.sql.database import Transaction
from planner_service.store.sql.tables import ITERATIONS, JOBS

FINAL = frozenset({"planned", "failed"})

ABANDONED = "abandoned"
"""State of unfinished iterations whose job was deleted, until they are gone."""


def iteration_query() -> Select[Any]:
    """Return the query for iterations of jobs that are there, with the names of these."""
    return select(ITERATIONS, JOBS.c.name).join(JOBS, JOBS.c.number == ITERATIONS.c.job_number)


def of_job(name: Any) -> Any:
    """Return the condition on iterations that they are a job's; by its number, which indexes have."""
    return ITERATIONS.c.job_number == select(JOBS.c.number).where(JOBS.c.name == name).scalar_subquery()


ITERATION_BY_NAME = iteration_query().where(of_job(bindparam("job")), ITERATIONS.c.iteration == bindparam("iteration"))
ITERATION_BY_NUMBER = iteration_query().where(ITERATIONS.c.number == bindparam("number"))
_HELD_BY_NAME = ITERATION_BY_NAME.with_for_update(of=ITERATIONS)
_HELD_BY_NUMBER = ITERATION_BY_NUMBER.with_for_update(of=ITERATIONS)


def iteration_row(row: Any) -> IterationRow:
    """Read an iteration of `iteration_query`."""
    return IterationRow(
        job=row.name,
        iteration=row.iteration,
        state=row.state,
        num_expected=row.num_expected,
        num_reported=row.num_reported,
        due_at=row.due_at,
        finished_at=row.finished_at,
        num_tries=row.num_tries,
        request_key=row.request_key,
        summary=_bytes(row.summary),
        problem=_bytes(row.problem),
        measured_ms=row.measured_ms,
    )


def job_row(row: Any) -> JobRow:
    """Read a job."""
    return JobRow(name=row.name, spec=bytes(row.spec), created_at=row.created_at)


def hold_iteration(transaction: Transaction, **names: object) -> Any:
    """Return an iteration, as it is now and stays until the transaction ends; None if there is none.

    Whoever holds a job, too, takes it first.

    Parameters
    ----------
    names
        Which one: its ``number``, or its ``job`` and ``iteration``.
    """
    query = _HELD_BY_NUMBER if "number" in names else _HELD_BY_NAME
    row = transaction.connection.execute(query, names).first()
    return None if row is None or row.name is None or row.state == ABANDONED else row


def hold_job(transaction: Transaction, query: Select[Any], **names: object) -> Any:
    """Return the job of a query if it is there, which then stays until the transaction ends; None if there is none."""
    return transaction.connection.execute(query, names).first()


def held_job_query(condition: Any) -> Select[Any]:
    """Return the query of `hold_job` for the job of a condition: its number and how many iterations are open."""
    query = select(JOBS.c.number, JOBS.c.num_open).where(condition, JOBS.c.name.is_not(None))
    return query.with_for_update(key_share=True)


JOB_BY_NAME = held_job_query(JOBS.c.name == bindparam("job"))


def profiles_named(spec: bytes) -> tuple[str, ...]:
    """Return the profiles that a spec names, ascending; one that is given whole is part of the spec."""
    try:
        cluster = json.loads(spec)
    except ValueError:
        # Whoever stored it knows what it is; no profile is named in it.
        return ()
    if not isinstance(cluster, dict):
        return ()
    pools = [cluster, *(cluster.get("devices") or ())]
    named = (pool.get("profile") for pool in pools if isinstance(pool, dict))
    return tuple(sorted({name for name in named if isinstance(name, str)}))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
