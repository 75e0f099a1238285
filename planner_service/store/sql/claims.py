"""Who solves an iteration, and what comes of it."""

from collections import Counter
from typing import Any

from sqlalchemy import bindparam, exists, func, or_, select, update

from planner_service.store.faults import PlanStands
from planner_service.store.interface import IterationChanged
from planner_service.store.job_store import Claim, IterationRow
from planner_service.store.plan_store import PlanRow
from planner_service.store.sql.database import Transaction
from planner_service.store.sql.plans import put_plan
from planner_service.store.sql.rows import (
    FINAL,
    ITERATION_BY_NUMBER,
    held_job_query,
    hold_iteration,
    hold_job,
    iteration_query,
    iteration_row,
)
from planner_service.store.sql.tables import BATCHES, ITERATIONS, JOBS

NUM_GIVEN_UP = 100
"""Most iterations that are given up in one transaction."""


_USELESS_AT = ITERATIONS.c.useless_at
_MAY_BE_TAKEN = (ITERATIONS.c.claimable_at <= bindparam("now")) & or_(
    _USELESS_AT.is_(None), bindparam("planned_at") < _USELESS_AT
)
"""Whether an iteration may be taken up, and a plan will be of use when it is made."""

_NEXT_JOB = (
    select(JOBS.c.number, JOBS.c.name, JOBS.c.spec)
    .where(JOBS.c.num_open > 0, exists().where(ITERATIONS.c.job_number == JOBS.c.number, _MAY_BE_TAKEN))
    .order_by(JOBS.c.served, JOBS.c.number)
    .limit(1)
)
"""The job whose turn it is: of those with something to do, the one served longest ago."""

_NEXT_JOBS = [_NEXT_JOB.with_for_update(of=JOBS, key_share=True, skip_locked=skip) for skip in (True, False)]
"""Of several who claim at once each takes another job's turn. Only where others have all of them, it waits."""

_NEXT_ITERATION = (
    select(ITERATIONS)
    .where(ITERATIONS.c.job_number == bindparam("job_number"), _MAY_BE_TAKEN)
    .order_by(ITERATIONS.c.iteration)
    .limit(1)
    .with_for_update()
)
_CHANGE_ITERATION = update(ITERATIONS).where(ITERATIONS.c.number == bindparam("the_number"))
_COUNT_TURN = (
    update(JOBS)
    .where(JOBS.c.number == bindparam("job_number"))
    .values(served=select(func.max(JOBS.c.served)).scalar_subquery() + 1)
)
_BATCHES = (
    select(BATCHES.c.source, BATCHES.c.body)
    .where(BATCHES.c.iteration_number == bindparam("number"))
    .order_by(BATCHES.c.source)
)
_JOB_OF_ITERATION = held_job_query(
    JOBS.c.number
    == select(ITERATIONS.c.job_number).where(ITERATIONS.c.number == bindparam("iteration_number")).scalar_subquery()
)
_COUNT_SETTLED = {
    state: update(JOBS)
    .where(JOBS.c.number == bindparam("job_number"))
    .values({JOBS.c.num_open: JOBS.c.num_open - 1, counter: counter + 1})
    for state, counter in {"planned": JOBS.c.num_planned, "failed": JOBS.c.num_failed}.items()
}


def claim(transaction: Transaction, owner: str, lease_s: float, solve_s: float) -> Claim | None:
    """Take up the next iteration; see `JobStore.claim`."""
    now = transaction.now()
    for planned_at in (now + solve_s, now):
        times = {"now": now, "planned_at": planned_at}
        while (job := _next_job(transaction, times)) is not None:
            found = transaction.connection.execute(_NEXT_ITERATION, {"job_number": job.number, **times})
            if (row := found.first()) is not None:
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
    stands = put_plan(transaction, plan)
    if stands != plan:
        raise PlanStands(stands)
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


def _next_job(transaction: Transaction, times: dict[str, float]) -> Any:
    for query in _NEXT_JOBS:
        if (job := transaction.connection.execute(query, times).first()) is not None:
            return job
    return None


def _take(transaction: Transaction, job: Any, row: Any, owner: str, lease_s: float) -> Claim:
    connection = transaction.connection
    num_tries = row.num_tries + 1
    now = transaction.now()
    taken = {"state": "solving", "owner": owner, "num_tries": num_tries, "claimable_at": now + lease_s}
    connection.execute(_CHANGE_ITERATION, {"the_number": row.number, **taken})
    connection.execute(_COUNT_TURN, {"job_number": job.number})
    batches = connection.execute(_BATCHES, {"number": row.number})
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
    if hold_job(transaction, _JOB_OF_ITERATION, iteration_number=claim.number) is None:
        return None
    return hold_iteration(transaction, number=claim.number)


def _settle(transaction: Transaction, row: Any, *, state: str, **values: object) -> IterationRow:
    connection = transaction.connection
    settled_as = {"state": state, "finished_at": transaction.now(), "claimable_at": None, "owner": None}
    connection.execute(_CHANGE_ITERATION, {"the_number": row.number, **settled_as, **values})
    connection.execute(_COUNT_SETTLED[state], {"job_number": row.job_number})
    settled = iteration_row(connection.execute(ITERATION_BY_NUMBER, {"number": row.number}).one())
    transaction.tell(IterationChanged("finished", settled.job, settled.iteration))
    return settled


def _is_owners(claim: Claim) -> Any:
    return (
        (ITERATIONS.c.number == claim.number)
        & (ITERATIONS.c.state == "solving")
        & (ITERATIONS.c.owner == claim.owner)
        & (ITERATIONS.c.num_tries == claim.num_tries)
    )
