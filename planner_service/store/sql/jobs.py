"""Jobs and iterations, on SQL."""

from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import case, delete, func, insert, select, update

from planner_service.store.faults import JobConflict
from planner_service.store.job_store import Claim, IterationRow, JobCounts, JobRow, JobStore, ReportTerms
from planner_service.store.plan_store import PlanRow
from planner_service.store.sql import claims, reports, set_back
from planner_service.store.sql.database import Database, Transaction, is_storable, now_of
from planner_service.store.sql.prune import delete_left_behind
from planner_service.store.sql.rows import (
    ABANDONED,
    ITERATION_BY_NAME,
    iteration_query,
    iteration_row,
    job_row,
    of_job,
    profiles_named,
)
from planner_service.store.sql.tables import BATCHES, ITERATIONS, JOB_PROFILES, JOBS, PROFILES, TIMINGS

_NUM_DELETED_AT_ONCE = 5
"""Batches of iterations that go with a job while its deleter waits; the rest goes when the store is pruned."""


class SqlJobStore(JobStore):
    """Jobs and iterations in tables; see `JobStore`. What changes iterations is in `reports` and `claims`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: JobRow) -> tuple[JobRow, bool]:
        """Register a job; see `JobStore.put`."""
        return self._database.write(lambda transaction: _put(transaction, row))

    def get(self, name: str) -> JobRow | None:
        """Return the job of that name, or None."""
        if not is_storable(name):
            return None
        found = self._database.first(select(JOBS).where(JOBS.c.name == name))
        return None if found is None else job_row(found)

    def page(self, *, after: str, limit: int) -> list[JobRow]:
        """Return jobs whose names come after ``after``, ascending, at most ``limit``."""
        beginning = after.partition("\x00")[0]
        # Names hold no NUL, which is the least of all characters: nothing is between the beginning and the whole.
        rows = self._database.rows(select(JOBS).where(JOBS.c.name > beginning).order_by(JOBS.c.name).limit(limit))
        return [job_row(row) for row in rows]

    def counts_of(self, names: Collection[str]) -> dict[str, JobCounts]:
        """Count the iterations of some jobs, by name; see `JobStore.counts_of`."""
        storable = [name for name in names if is_storable(name)]
        if not storable:
            return {}
        last = select(func.max(ITERATIONS.c.iteration)).where(ITERATIONS.c.job_number == JOBS.c.number)
        query = select(
            JOBS.c.name, JOBS.c.num_iterations, JOBS.c.num_planned, JOBS.c.num_failed, last.scalar_subquery()
        ).where(JOBS.c.name.in_(storable))
        return {name: JobCounts(*numbers) for name, *numbers in self._database.rows(query)}

    def num_open(self) -> int:
        """Count the unfinished iterations of all jobs."""
        return int(self._database.first(select(func.sum(JOBS.c.num_open)).where(JOBS.c.num_open > 0))[0] or 0)

    def delete(self, name: str) -> bool:
        """Delete a job with its iterations, batches and timings (its plans stay); return whether there was one."""

        def work(transaction: Transaction) -> bool:
            connection = transaction.connection
            number = connection.execute(
                select(JOBS.c.number).where(JOBS.c.name == name).with_for_update(key_share=True)
            ).scalar()
            if number is None:
                return False
            connection.execute(update(JOBS).where(JOBS.c.number == number).values(name=None, num_open=0))
            connection.execute(delete(JOB_PROFILES).where(JOB_PROFILES.c.job_number == number))
            connection.execute(
                update(ITERATIONS)
                .where(ITERATIONS.c.job_number == number, ITERATIONS.c.claimable_at.is_not(None))
                .values(state=ABANDONED, claimable_at=None, owner=None)
            )
            return True

        if not is_storable(name) or not self._database.write(work, repeatable=False):
            return False
        for _ in range(_NUM_DELETED_AT_ONCE):
            if delete_left_behind(self._database) == 0:
                break
        return True

    def report(self, job: str, iteration: int, batches: Mapping[str, bytes], terms: ReportTerms) -> IterationRow:
        """Keep what sources hold of an iteration; see `JobStore.report`."""
        return self._database.write(lambda transaction: reports.report(transaction, job, iteration, batches, terms))

    def iteration(self, job: str, iteration: int) -> IterationRow | None:
        """Return an iteration, or None."""
        if not is_storable(job):
            return None
        found = self._database.first(ITERATION_BY_NAME, {"job": job, "iteration": iteration})
        return None if found is None else iteration_row(found)

    def iterations(self, job: str, *, after: int | None, limit: int, newest_first: bool = False) -> list[IterationRow]:
        """Return iterations after a number, ascending; or before it, descending; at most ``limit``."""
        if not is_storable(job):
            return []
        number = ITERATIONS.c.iteration
        query = iteration_query().where(JOBS.c.name == job, of_job(job))
        if after is not None:
            query = query.where(number < after if newest_first else number > after)
        query = query.order_by(number.desc() if newest_first else number).limit(limit)
        return [iteration_row(row) for row in self._database.rows(query)]

    def sources(self, job: str, iteration: int) -> list[str]:
        """Return the sources that reported, ascending."""
        query = select(BATCHES.c.source).join(ITERATIONS, ITERATIONS.c.number == BATCHES.c.iteration_number)
        return self._of_iteration(query, job, iteration, BATCHES.c.source)

    def claim(self, owner: str, lease_s: float, solve_s: float = 0.0) -> Claim | None:
        """Take up the next iteration; see `JobStore.claim`."""
        # Most of those who ask find nothing, and need no transaction to learn it.
        upcoming = self.next_due_at()
        if upcoming is None:
            return None
        if upcoming[0] > upcoming[1]:
            if not self._database.read(set_back.has_any_ahead):
                return None
            self._database.write(lambda transaction: set_back.bring_back(transaction, lease_s), repeatable=False)
        return self._database.write(lambda transaction: claims.claim(transaction, owner, lease_s, solve_s))

    def next_due_at(self) -> tuple[float, float] | None:
        """Return when the next iteration may be claimed, and what the time is now (seconds since 1970, UTC)."""
        return self._earliest(select(func.min(ITERATIONS.c.claimable_at)))

    def give_up_late(self, problem: bytes) -> int:
        """Fail iterations that nobody took up while a plan was of use; see `JobStore.give_up_late`."""
        upcoming = self.next_late_at()
        if upcoming is None or upcoming[0] > upcoming[1]:
            return 0
        return self._database.write(lambda transaction: claims.give_up_late(transaction, problem))

    def next_late_at(self) -> tuple[float, float] | None:
        """Return when the next iteration is to be given up, and what the time is now (seconds since 1970, UTC)."""
        claimable_at, useless_at = ITERATIONS.c.claimable_at, ITERATIONS.c.useless_at
        # One that a solver has is left to it until its lease ends.
        late_at = case((claimable_at > useless_at, claimable_at), else_=useless_at)
        return self._earliest(select(func.min(late_at)).where(claimable_at.is_not(None), useless_at.is_not(None)))

    def _earliest(self, query: Any) -> tuple[float, float] | None:
        """Return the one time that a query finds, and what the time is now."""

        def work(connection: Any) -> Any:
            return connection.execute(select(query.scalar_subquery(), now_of(connection))).one()

        found_at, now = self._database.read(work)
        return None if found_at is None else (float(found_at), float(now))

    def renew(self, claim: Claim, lease_s: float) -> bool:
        """Lengthen a lease; return whether the iteration is still the owner's."""
        return self._database.write(lambda transaction: claims.renew(transaction, claim, lease_s))

    def give_back(self, claim: Claim) -> None:
        """Let others claim the iteration at once; does nothing if it is no longer the owner's."""
        self._database.write(lambda transaction: claims.give_back(transaction, claim))

    def finish(self, claim: Claim, plan: PlanRow, summary: bytes) -> IterationRow | None:
        """Store an iteration's plan; see `JobStore.finish`."""
        return self._database.write(lambda transaction: claims.finish(transaction, claim, plan, summary))

    def fail(self, claim: Claim, problem: bytes) -> IterationRow | None:
        """Store why an iteration has no plan; see `JobStore.fail`."""
        return self._database.write(lambda transaction: claims.fail(transaction, claim, problem))

    def put_timings(self, job: str, iteration: int, key: str, body: bytes, measured_ms: float) -> bool:
        """Keep measured times; see `JobStore.put_timings`."""

        def work(transaction: Transaction) -> bool:
            # It holds the job, too: reports of one job are stored one after another, in the order of their numbers.
            row = reports.hold(transaction, job, iteration)
            if not transaction.insert_unless_there(TIMINGS, iteration_number=row.number, key=key, body=body):
                return False
            if row.measured_ms is None or measured_ms > row.measured_ms:
                transaction.connection.execute(
                    update(ITERATIONS).where(ITERATIONS.c.number == row.number).values(measured_ms=measured_ms)
                )
            return True

        return self._database.write(work, repeatable=False)

    def timings(self, job: str, iteration: int) -> list[bytes]:
        """Return the measured times of an iteration, in the order they came."""
        query = select(TIMINGS.c.body).join(ITERATIONS, ITERATIONS.c.number == TIMINGS.c.iteration_number)
        return [bytes(body) for body in self._of_iteration(query, job, iteration, TIMINGS.c.number)]

    def _of_iteration(self, query: Any, job: str, iteration: int, order: Any) -> list[Any]:
        if not is_storable(job):
            return []
        rows = self._database.rows(query.where(of_job(job), ITERATIONS.c.iteration == iteration).order_by(order))
        return [row[0] for row in rows]


def _put(transaction: Transaction, row: JobRow) -> tuple[JobRow, bool]:
    connection = transaction.connection
    named = profiles_named(row.spec)
    if named:
        # Held until the job is there, so that whoever deletes one of them sees that it is in use.
        connection.execute(
            select(PROFILES.c.name)
            .where(PROFILES.c.name.in_(named))
            .order_by(PROFILES.c.name)
            .with_for_update(read=True, key_share=True)
        ).all()
    created_at = transaction.now()
    counters = dict.fromkeys(("served", "num_iterations", "num_planned", "num_failed", "num_open"), 0)
    query = select(JOBS).where(JOBS.c.name == row.name)
    # Who reads the winner's row can find it deleted; then the name is free again.
    while not transaction.insert_unless_there(JOBS, name=row.name, spec=row.spec, created_at=created_at, **counters):
        found = connection.execute(query).first()
        if found is not None:
            if bytes(found.spec) != row.spec:
                raise JobConflict(row.name)
            return job_row(found), False
    if named:
        number = connection.execute(select(JOBS.c.number).where(JOBS.c.name == row.name)).scalar_one()
        connection.execute(insert(JOB_PROFILES), [{"job_number": number, "profile": name} for name in named])
    return JobRow(row.name, row.spec, created_at), True
