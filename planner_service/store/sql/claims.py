"""Who solves an iteration, and what comes of it."""

from collections import Counter
from typing import Any

from sqlalchemy import exists, func, or_, select, update

from planner_service.store.interface import IterationChanged
from planner_service.store.job_store import Claim, IterationRow
from planner_service.store.plan_store import PlanRow
from planner_service.store.sql.database import Transaction
from planner_service.store.sql.plans import put_plan
from planner_service.store.sql.rows import FINAL, hold_iteration, hold_job, iteration_query, iteration_row
from planner_service.store.sql.tables import BATCHES, ITERATIONS, JOBS

NUM_GIVEN_UP = 100
"""Most iterations that are given up in one transaction."""


def claim(transaction: Transaction, owner: str, lease_s: float, solve_s: float) -> Claim | None:
    """Take up the next iteration; see `JobStore.claim`."""
    now = transaction.now()
    # Of several who claim at once each takes another job's turn. Only where others have all of them, it waits.
    for margin_s in (solve_s, 0.0):
        may_be_taken = claimable(now, margin_s)
        while (
            job := _next_job(transaction, may_be_taken, skip=True) or _next_job(transaction, may_be_taken, skip=False)
        ) is not None:
            row = transaction.connection.execute(
                select(ITERATIONS)
                .where(ITERATIONS.c.job_number == job.number, may_be_taken)
                .order_by(ITERATIONS.c.iteration)
                .limit(1)
                .with_for_update()
            ).first()
            if row is not None:
                return _take(transaction, job, row, owner, lease_s)
    return None


def renew(transaction: Transaction, claim: Claim, lease_s: float) -> bool:
    """Lengthen a lease; return whether the iteration is still the owner's."""
    changed = transaction.connection.execute(
        update(ITERATIONS).where(_is_owners(claim)).values(claimable_at=transaction.now() + lease_s)
    )
    return changed.rowcount > 0


def give_back(transaction: Transaction, claim: Claim) -> None:
    """Let others claim the iteration at once; does nothing if it is no longer the owner's."""
    changed = transaction.connection.execute(
        update(ITERATIONS).where(_is_owners(claim)).values(claimable_at=transaction.now(), owner=None)
    )
    if changed.rowcount > 0:
        transaction.tell(IterationChanged("due", claim.job, claim.iteration))


def finish(transaction: Transaction, claim: Claim, plan: PlanRow, summary: bytes) -> IterationRow | None:
    """Store an iteration's plan, unless it is finished already; see `JobStore.finish`."""
    row = _hold(transaction, claim)
    if row is None or row.state in FINAL:
        return None if row is None else iteration_row(row)
    put_plan(transaction, plan)
    return _settle(transaction, row, state="planned", request_key=plan.request_key, summary=summary)


def fail(transaction: Transaction, claim: Claim, problem: bytes) -> IterationRow | None:
    """Store why an iteration has no plan, unless it is finished or another has it now; see `JobStore.fail`."""
    row = _hold(transaction, claim)
    if row is None:
        return None
    is_anothers = row.num_tries != claim.num_tries or row.owner not in (None, claim.owner)
    if row.state in FINAL or is_anothers:
        return iteration_row(row)
    return _settle(transaction, row, state="failed", problem=problem)


def give_up_late(transaction: Transaction, problem: bytes) -> int:
    """Fail iterations that nobody took up while a plan was of use; see `JobStore.give_up_late`."""
    connection = transaction.connection
    is_late = (ITERATIONS.c.claimable_at <= transaction.now()) & (ITERATIONS.c.useless_at <= transaction.now())
    # Whoever holds a job may want another one next; who waited for nobody is in nobody's way.
    held = connection.execute(
        select(JOBS.c.number)
        .where(JOBS.c.number.in_(select(ITERATIONS.c.job_number).where(is_late).limit(NUM_GIVEN_UP)))
        .with_for_update(key_share=True, skip_locked=True)
    ).scalars()
    late = connection.execute(
        iteration_query()
        .where(ITERATIONS.c.job_number.in_(list(held)), is_late, JOBS.c.name.is_not(None))
        .order_by(ITERATIONS.c.number)
        .limit(NUM_GIVEN_UP)
        .with_for_update(of=ITERATIONS, skip_locked=True)
    ).all()
    if late:
        connection.execute(
            update(ITERATIONS)
            .where(ITERATIONS.c.number.in_([row.number for row in late]))
            .values(state="failed", finished_at=transaction.now(), claimable_at=None, owner=None, problem=problem)
        )
    for job_number, num_late in Counter(row.job_number for row in late).items():
        connection.execute(
            update(JOBS)
            .where(JOBS.c.number == job_number)
            .values(num_open=JOBS.c.num_open - num_late, num_failed=JOBS.c.num_failed + num_late)
        )
    for row in late:
        transaction.tell(IterationChanged("finished", row.name, row.iteration))
    return len(late)


def claimable(now: float, solve_s: float) -> Any:
    """Return the condition on iterations that they may be taken up, and a plan in so many seconds is still of use."""
    useless_at = ITERATIONS.c.useless_at
    return (ITERATIONS.c.claimable_at <= now) & or_(useless_at.is_(None), useless_at > now + solve_s)


def next_job_query(may_be_taken: Any) -> Any:
    """Return the query for the job whose turn it is: of those with something to do, the one served longest ago."""
    has_something = exists().where(ITERATIONS.c.job_number == JOBS.c.number, may_be_taken)
    return (
        select(JOBS.c.number, JOBS.c.name, JOBS.c.spec)
        .where(JOBS.c.num_open > 0, has_something)
        .order_by(JOBS.c.served, JOBS.c.number)
        .limit(1)
    )


def _next_job(transaction: Transaction, may_be_taken: Any, *, skip: bool) -> Any:
    query = next_job_query(may_be_taken).with_for_update(of=JOBS, key_share=True, skip_locked=skip)
    return transaction.connection.execute(query).first()


def _take(transaction: Transaction, job: Any, row: Any, owner: str, lease_s: float) -> Claim:
    connection = transaction.connection
    num_tries = row.num_tries + 1
    now = transaction.now()
    connection.execute(
        update(ITERATIONS)
        .where(ITERATIONS.c.number == row.number)
        .values(state="solving", owner=owner, num_tries=num_tries, claimable_at=now + lease_s)
    )
    last = select(func.max(JOBS.c.served)).scalar_subquery()
    connection.execute(update(JOBS).where(JOBS.c.number == job.number).values(served=last + 1))
    batches = connection.execute(
        select(BATCHES.c.source, BATCHES.c.body)
        .where(BATCHES.c.iteration_number == row.number)
        .order_by(BATCHES.c.source)
    )
    return Claim(
        job=job.name,
        iteration=row.iteration,
        owner=owner,
        spec=bytes(job.spec),
        batches={batch.source: bytes(batch.body) for batch in batches},
        is_overdue=row.num_reported < row.num_expected,
        num_tries=num_tries,
        number=row.number,
        waited_s=max(0.0, now - row.claimable_at),
    )


def _hold(transaction: Transaction, claim: Claim) -> Any:
    """Return the iteration of a claim, after its job; None if either was deleted."""
    number = select(ITERATIONS.c.job_number).where(ITERATIONS.c.number == claim.number).scalar_subquery()
    if hold_job(transaction, JOBS.c.number == number, JOBS.c.number) is None:
        return None
    return hold_iteration(transaction, ITERATIONS.c.number == claim.number)


def _settle(transaction: Transaction, row: Any, *, state: str, **values: object) -> IterationRow:
    connection = transaction.connection
    connection.execute(
        update(ITERATIONS)
        .where(ITERATIONS.c.number == row.number)
        .values(state=state, finished_at=transaction.now(), claimable_at=None, owner=None, **values)
    )
    counter = JOBS.c.num_planned if state == "planned" else JOBS.c.num_failed
    connection.execute(
        update(JOBS)
        .where(JOBS.c.number == row.job_number)
        .values({JOBS.c.num_open: JOBS.c.num_open - 1, counter: counter + 1})
    )
    settled = iteration_row(connection.execute(iteration_query().where(ITERATIONS.c.number == row.number)).one())
    transaction.tell(IterationChanged("finished", settled.job, settled.iteration))
    return settled


def _is_owners(claim: Claim) -> Any:
    return (
        (ITERATIONS.c.number == claim.number)
        & (ITERATIONS.c.state == "solving")
        & (ITERATIONS.c.owner == claim.owner)
        & (ITERATIONS.c.num_tries == claim.num_tries)
    )
