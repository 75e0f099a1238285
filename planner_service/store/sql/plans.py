"""Plans by request and by digest, on SQL."""

from typing import Any

from sqlalchemy import delete, exists, func, select

from planner_service.store.plan_store import PlanRow, PlanStore, StoredPlan
from planner_service.store.sql.database import Database, Transaction, is_storable
from planner_service.store.sql.tables import ITERATIONS, JOBS, PLANS

IS_NAMED = exists().where(ITERATIONS.c.request_key == PLANS.c.request_key)
"""Whether an iteration names the plan."""


class SqlPlanStore(PlanStore):
    """Plans in one table; see `PlanStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: PlanRow) -> PlanRow:
        """Store a plan unless its request already has one; see `PlanStore.put`."""
        return self._database.write(lambda transaction: put_plan(transaction, row))

    def of_request(self, request_key: str) -> PlanRow | None:
        """Return the plan of a request, or None."""
        if not is_storable(request_key):
            return None
        found = self._database.first(select(PLANS).where(PLANS.c.request_key == request_key))
        return None if found is None else _plan_row(found)

    def with_digest(self, digest: str) -> PlanRow | None:
        """Return the plan with this digest that was stored first, or None."""
        if not is_storable(digest):
            return None
        found = self._database.first(select(PLANS).where(PLANS.c.digest == digest).order_by(PLANS.c.number).limit(1))
        return None if found is None else _plan_row(found)

    def page(self, *, after: int, limit: int) -> list[StoredPlan]:
        """Return plans with larger numbers than ``after``, ascending, at most ``limit``."""
        size = func.length(PLANS.c.body).label("num_bytes")
        query = select(PLANS.c.number, PLANS.c.digest, PLANS.c.created_at, size)
        rows = self._database.rows(query.where(PLANS.c.number > after).order_by(PLANS.c.number).limit(limit))
        return [StoredPlan(row.number, row.digest, row.created_at, row.num_bytes) for row in rows]

    def delete(self, digest: str) -> int:
        """Delete all plans with this digest that no iteration names; return how many went."""

        def work(transaction: Transaction) -> int:
            connection = transaction.connection
            # Held before it is asked who names them: whoever wants to name one now waits, and finds it gone.
            held = connection.execute(
                select(PLANS.c.number, PLANS.c.request_key)
                .where(PLANS.c.digest == digest)
                .order_by(PLANS.c.number)
                .with_for_update()
            ).all()
            keys = [row.request_key for row in held]
            deleted_jobs = select(JOBS.c.number).where(JOBS.c.name.is_(None))
            connection.execute(
                delete(ITERATIONS).where(ITERATIONS.c.request_key.in_(keys), ITERATIONS.c.job_number.in_(deleted_jobs))
            )
            numbers = [row.number for row in held]
            return connection.execute(delete(PLANS).where(PLANS.c.number.in_(numbers), ~IS_NAMED)).rowcount

        return self._database.write(work, repeatable=False) if is_storable(digest) else 0


def put_plan(transaction: Transaction, row: PlanRow) -> PlanRow:
    """Store a plan unless its request has one; return the one it has, which stays until the transaction ends."""
    query = select(PLANS).where(PLANS.c.request_key == row.request_key).with_for_update(read=True, key_share=True)
    while True:
        values = {"request_key": row.request_key, "digest": row.digest, "body": row.body}
        if transaction.insert_unless_there(PLANS, **values, created_at=transaction.now()):
            return row
        found = transaction.connection.execute(query).first()
        # It can have been deleted in between; then this one is stored after all.
        if found is not None:
            return _plan_row(found)


def _plan_row(row: Any) -> PlanRow:
    return PlanRow(request_key=row.request_key, digest=row.digest, body=bytes(row.body))
