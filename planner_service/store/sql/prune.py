"""Deletes what is too old, a little at a time, so that nobody waits long for the locks it takes."""

from collections import Counter
from typing import Any

from sqlalchemy import Connection, delete, or_, select, update

from planner_service.store.sql.database import Database, Transaction, now_of
from planner_service.store.sql.plans import IS_NAMED
from planner_service.store.sql.rows import FINAL
from planner_service.store.sql.tables import AUDIT, ITERATIONS, JOBS, NODES, PLANS

NUM_ITERATIONS = 100
NUM_PLANS = 100
NUM_AUDIT = 1000
NUM_NODES = 1000
NUM_BATCHES = 10_000
"""Most iterations, plans, audit entries, nodes and (about) batches that go in one transaction."""


def prune(
    database: Database, *, keep_iterations_s: float, keep_plans_s: float, keep_audit_s: float, keep_nodes_s: float
) -> int:
    """Delete what is too old; see `Store.prune`."""
    num_iterations = delete_left_behind(database) + _iterations(database, keep_iterations_s)
    num_others = _audit(database, keep_audit_s) + _nodes(database, keep_nodes_s)
    return num_iterations + _plans(database, keep_plans_s) + num_others


def delete_left_behind(database: Database) -> int:
    """Delete some iterations of deleted jobs, and these jobs when they have none; return how many iterations went."""
    of_deleted = (
        select(ITERATIONS.c.number, ITERATIONS.c.num_reported)
        .join(JOBS, JOBS.c.number == ITERATIONS.c.job_number)
        .where(JOBS.c.name.is_(None))
        .limit(NUM_ITERATIONS)
    )
    has_any = select(ITERATIONS.c.number).where(ITERATIONS.c.job_number == JOBS.c.number).exists()
    if database.first(select(JOBS.c.number).where(JOBS.c.name.is_(None)).limit(1)) is None:
        return 0

    def work(transaction: Transaction) -> int:
        connection = transaction.connection
        numbers = _bounded(connection.execute(of_deleted).all())
        num_deleted = connection.execute(delete(ITERATIONS).where(ITERATIONS.c.number.in_(numbers))).rowcount
        connection.execute(delete(JOBS).where(JOBS.c.name.is_(None), ~has_any))
        return num_deleted

    return database.write(work)


def _iterations(database: Database, keep_s: float) -> int:
    def find(connection: Connection) -> tuple[Any, list[Any]]:
        now = float(connection.execute(select(now_of(connection))).scalar_one())
        finished = ITERATIONS.c.finished_at < now - keep_s
        forgotten = (ITERATIONS.c.claimable_at <= now) & (ITERATIONS.c.began_at < now - keep_s)
        columns = (ITERATIONS.c.number, ITERATIONS.c.job_number, ITERATIONS.c.num_reported)
        queries = (
            select(*columns).where(finished).order_by(ITERATIONS.c.finished_at).limit(NUM_ITERATIONS),
            select(*columns).where(forgotten).order_by(ITERATIONS.c.claimable_at).limit(NUM_ITERATIONS),
        )
        found = [row for query in queries for row in connection.execute(query)]
        return or_(finished, forgotten), found

    too_old, found = database.read(find)
    numbers = _bounded(found[:NUM_ITERATIONS])
    if not numbers:
        return 0
    of_jobs = sorted({row.job_number for row in found[: len(numbers)]})

    def work(transaction: Transaction) -> int:
        connection = transaction.connection
        # Jobs first and in order, as everybody does.
        connection.execute(
            select(JOBS.c.number)
            .where(JOBS.c.number.in_(of_jobs))
            .order_by(JOBS.c.number)
            .with_for_update(key_share=True)
        ).all()
        held = connection.execute(
            select(ITERATIONS.c.number, ITERATIONS.c.job_number, ITERATIONS.c.state)
            .where(ITERATIONS.c.number.in_(numbers), too_old)
            .with_for_update()
        ).all()
        connection.execute(delete(ITERATIONS).where(ITERATIONS.c.number.in_([row.number for row in held])))
        for job_number, states in _states_by_job(held).items():
            connection.execute(update(JOBS).where(JOBS.c.number == job_number).values(_without(states)))
        return len(held)

    return database.write(work)


def _plans(database: Database, keep_s: float) -> int:
    def find(connection: Connection) -> list[int]:
        now = float(connection.execute(select(now_of(connection))).scalar_one())
        too_old = select(PLANS.c.number).where(PLANS.c.created_at < now - keep_s, ~IS_NAMED)
        return list(connection.execute(too_old.order_by(PLANS.c.created_at).limit(NUM_PLANS)).scalars())

    found = database.read(find)
    if not found:
        return 0

    def work(transaction: Transaction) -> int:
        connection = transaction.connection
        # Held before it is asked who names them. One that somebody else holds is being named just now.
        held = list(
            connection.execute(
                select(PLANS.c.number).where(PLANS.c.number.in_(found)).with_for_update(skip_locked=True)
            ).scalars()
        )
        return connection.execute(delete(PLANS).where(PLANS.c.number.in_(held), ~IS_NAMED)).rowcount

    return database.write(work)


def _audit(database: Database, keep_s: float) -> int:
    def find(connection: Connection) -> list[int]:
        now = float(connection.execute(select(now_of(connection))).scalar_one())
        too_old = select(AUDIT.c.number).where(AUDIT.c.at < now - keep_s)
        return list(connection.execute(too_old.order_by(AUDIT.c.at).limit(NUM_AUDIT)).scalars())

    found = database.read(find)
    if not found:
        return 0
    # Entries never change, so that nobody else has to be kept from them.
    return database.write(
        lambda transaction: transaction.connection.execute(delete(AUDIT).where(AUDIT.c.number.in_(found))).rowcount
    )


def _nodes(database: Database, keep_s: float) -> int:
    def find(connection: Connection) -> tuple[Any, list[str]]:
        now = float(connection.execute(select(now_of(connection))).scalar_one())
        too_old = NODES.c.last_seen_at < now - keep_s
        query = select(NODES.c.name).where(too_old).order_by(NODES.c.last_seen_at).limit(NUM_NODES)
        return too_old, list(connection.execute(query).scalars())

    too_old, found = database.read(find)
    if not found:
        return 0
    # One that was heard of meanwhile stays.
    return database.write(
        lambda transaction: (
            transaction.connection.execute(delete(NODES).where(NODES.c.name.in_(found), too_old)).rowcount
        )
    )


def _bounded(found: Any) -> list[int]:
    """Return the numbers of the first iterations that have not too many batches together; of one at least."""
    numbers: list[int] = []
    num_batches = 0
    for row in found:
        num_batches += row.num_reported
        if numbers and num_batches > NUM_BATCHES:
            break
        numbers.append(row.number)
    return numbers


def _states_by_job(rows: Any) -> dict[int, Counter[str]]:
    states: dict[int, Counter[str]] = {}
    for row in rows:
        states.setdefault(row.job_number, Counter())[row.state] += 1
    return states


def _without(states: Counter[str]) -> dict[Any, Any]:
    num_open = sum(num for state, num in states.items() if state not in FINAL)
    return {
        JOBS.c.num_iterations: JOBS.c.num_iterations - states.total(),
        JOBS.c.num_planned: JOBS.c.num_planned - states["planned"],
        JOBS.c.num_failed: JOBS.c.num_failed - states["failed"],
        JOBS.c.num_open: JOBS.c.num_open - num_open,
    }
