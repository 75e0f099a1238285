"""What is learned of jobs, on SQL."""

from typing import Any

from sqlalchemy import ColumnElement, Select, select, update

from planner_service.store.faults import JobUnknown
from planner_service.store.learn_store import LearnedRow, LearnerRow, LearnStore, MeasuredRow
from planner_service.store.sql.database import Database, Transaction, is_storable
from planner_service.store.sql.rows import JOB_BY_NAME, hold_job
from planner_service.store.sql.tables import ITERATIONS, JOBS, LEARNED, LEARNERS, TIMINGS


class SqlLearnStore(LearnStore):
    """States and versions in two tables; see `LearnStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def state(self, job: str) -> LearnerRow | None:
        """Return what is learned of a job, or None if nothing is yet."""
        query = select(LEARNERS.c.revision, LEARNERS.c.body).where(_is_of(LEARNERS.c.job_number, job))
        found = self._first(query, job)
        return None if found is None else LearnerRow(found.revision, bytes(found.body))

    def advance(self, job: str, revision: int, body: bytes, version: LearnedRow | None = None) -> bool:
        """Put the next state, and a version if there is a new one; see `LearnStore.advance`."""
        if not is_storable(job):
            raise JobUnknown(job)
        # Done twice it does nothing the second time but say so: whoever asks then reads the state anew.
        return self._database.write(lambda transaction: _advance(transaction, job, revision, body, version))

    def newest(self, job: str) -> LearnedRow | None:
        """Return the newest version, or None if there is none."""
        found = self.versions(job, after=None, limit=1)
        return found[0] if found else None

    def version(self, job: str, version: int) -> LearnedRow | None:
        """Return one version, or None."""
        query = select(LEARNED).where(_is_of(LEARNED.c.job_number, job), LEARNED.c.version == version)
        found = self._first(query, job)
        return None if found is None else _learned_row(found)

    def versions(self, job: str, *, after: int | None, limit: int) -> list[LearnedRow]:
        """Return versions before a number, descending, from the newest on; at most ``limit``."""
        if not is_storable(job):
            return []
        query = select(LEARNED).where(_is_of(LEARNED.c.job_number, job))
        if after is not None:
            query = query.where(LEARNED.c.version < after)
        rows = self._database.rows(query.order_by(LEARNED.c.version.desc()).limit(limit))
        return [_learned_row(row) for row in rows]

    def measured(self, job: str, *, after: int, limit: int) -> list[MeasuredRow]:
        """Return reports of measured times with larger numbers; see `LearnStore.measured`."""
        if not is_storable(job):
            return []
        query = (
            select(TIMINGS.c.number, TIMINGS.c.body, ITERATIONS.c.iteration)
            .join(ITERATIONS, ITERATIONS.c.number == TIMINGS.c.iteration_number)
            .where(_is_of(ITERATIONS.c.job_number, job), TIMINGS.c.number > after)
            .order_by(TIMINGS.c.number)
            .limit(limit)
        )
        return [MeasuredRow(row.number, row.iteration, bytes(row.body)) for row in self._database.rows(query)]

    def _first(self, query: Select[Any], job: str) -> Any:
        return self._database.first(query) if is_storable(job) else None


def _is_of(column: Any, job: str) -> ColumnElement[bool]:
    condition: ColumnElement[bool] = column == select(JOBS.c.number).where(JOBS.c.name == job).scalar_subquery()
    return condition


def _advance(transaction: Transaction, job: str, revision: int, body: bytes, version: LearnedRow | None) -> bool:
    connection = transaction.connection
    held = hold_job(transaction, JOB_BY_NAME, job=job)
    if held is None:
        raise JobUnknown(job)
    own = (LEARNERS.c.job_number == held.number) & (LEARNERS.c.revision == revision)
    if revision:
        has_moved = connection.execute(update(LEARNERS).where(own).values(revision=revision + 1, body=body)).rowcount
    else:
        has_moved = transaction.insert_unless_there(LEARNERS, job_number=held.number, revision=1, body=body)
    if has_moved and version is not None:
        values = {"job_number": held.number, "version": version.version, "body": version.body}
        transaction.insert_unless_there(LEARNED, **values, created_at=transaction.now())
    return bool(has_moved)


def _learned_row(row: Any) -> LearnedRow:
    return LearnedRow(row.version, bytes(row.body), row.created_at)
