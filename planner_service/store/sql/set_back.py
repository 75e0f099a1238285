"""A clock that was set back: times that were written before are then ahead, and nobody must wait until they come.

Which these are shows by themselves. What is due became so in the past, and what is collected was begun in it; a lease
is no longer than any service may ask for. Their times are moved together, so that what lay between them stays.
"""

from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, case, or_, select, update

from planner_service.store.sql.database import Transaction, now_of
from planner_service.store.sql.tables import ITERATIONS

TOLERANCE_S = 1.0
"""Clocks are set by less than this now and then, which is waited for."""

LONGEST_LEASE_S = 600.0
"""The longest that the settings allow."""

_COLUMNS = ITERATIONS.c


def has_any_ahead(connection: Connection) -> bool:
    """Tell whether unfinished iterations have times that only a clock which was set back leaves."""
    found = select(_COLUMNS.number).where(_is_ahead(now_of(connection))).limit(1)
    return connection.execute(found).first() is not None


def bring_back(transaction: Transaction, lease_s: float) -> int:
    """Move such times to where they would be if the clock had always gone as it does now; return how many.

    What is due may be taken up at once; who is missing has the whole wait from now on; whoever has one keeps it
    for ``lease_s``, in which it renews its lease if it is alive.
    """
    now = transaction.now()
    target = case(
        (_COLUMNS.state == "collecting", now + (_COLUMNS.due_at - _COLUMNS.began_at)),
        (_COLUMNS.state == "solving", now + lease_s),
        else_=now,
    )
    ahead_s = _COLUMNS.claimable_at - target
    moved = (_COLUMNS.began_at, _COLUMNS.due_at, _COLUMNS.useless_at)
    changes: dict[Any, Any] = {_COLUMNS.claimable_at: target, **{column: column - ahead_s for column in moved}}
    return transaction.connection.execute(update(ITERATIONS).where(_is_ahead(now)).values(changes)).rowcount


def _is_ahead(now: float | ColumnElement[float]) -> ColumnElement[bool]:
    return and_(
        _COLUMNS.claimable_at > now + TOLERANCE_S,
        or_(
            _COLUMNS.state == "due",
            and_(_COLUMNS.state == "collecting", _COLUMNS.began_at > now + TOLERANCE_S),
            and_(_COLUMNS.state == "solving", _COLUMNS.claimable_at > now + LONGEST_LEASE_S + TOLERANCE_S),
        ),
    )
