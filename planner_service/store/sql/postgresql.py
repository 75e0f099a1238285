"""Connections to PostgreSQL whose every wait ends, whatever became of the server."""

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import psycopg
from psycopg.abc import PQGen

from planner_service.store.sql.limits import StoreLimits

_Value = TypeVar("_Value")

_INTERVAL_S = 0.1
"""How often a wait looks at the clock."""


class BoundedConnection(psycopg.Connection[Any]):
    """A connection that counts as lost when the server says nothing for too long.

    The server's own timeouts do not help when it is stopped, and TCP's not when it is the operating system that still
    answers.
    """

    answer_s: float = StoreLimits.answer_s

    def wait(self, gen: PQGen[_Value], interval: float = _INTERVAL_S, timeout: float | None = None) -> _Value:
        """Wait for the server at most ``answer_s``.

        Raises
        ------
        psycopg.OperationalError
            If it said nothing; the connection is closed.
        """
        if timeout is not None:
            return super().wait(gen, interval, timeout)
        try:
            return super().wait(gen, interval, self.answer_s)
        except psycopg.errors._WaitTimeout as silent:  # what `wait` documents to raise
            self.pgconn.finish()
            raise psycopg.OperationalError(f"the server said nothing for {self.answer_s:g} s") from silent


def parameters(given: Mapping[str, Any], limits: StoreLimits) -> dict[str, Any]:
    """Return connection parameters: those of the URL, and what bounds waits where it says nothing else."""
    return {
        "connect_timeout": max(2, math.ceil(limits.wait_s)),
        "application_name": "hydraulis-planner",
        # After a failover the old server may still answer, to readers.
        "target_session_attrs": "read-write",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": math.ceil(limits.answer_s * 1000),
        **given,
    }


def open_connection(given: Mapping[str, Any], limits: StoreLimits, *, autocommit: bool = False) -> BoundedConnection:
    """Connect; ``given`` is what the URL says."""
    connection = BoundedConnection.connect(**parameters(given, limits), autocommit=autocommit)
    connection.answer_s = limits.answer_s
    return connection


def connect_bounded(limits: StoreLimits) -> Callable[..., BoundedConnection]:
    """Return what SQLAlchemy calls to connect."""

    def connect(_dialect: object, _record: object, arguments: list[Any], given: dict[str, Any]) -> BoundedConnection:
        if arguments:
            raise psycopg.ProgrammingError("connection parameters must have names")
        return open_connection(given, limits)

    return connect


def prepare(limits: StoreLimits) -> Callable[[Any, object], None]:
    """Return what SQLAlchemy calls with each new connection: bounds of statements, and durable commits."""
    milliseconds = {
        "statement_timeout": limits.statement_s,
        "lock_timeout": limits.wait_s,
        "idle_in_transaction_session_timeout": limits.statement_s + limits.answer_s,
    }

    def prepare_connection(connection: Any, _record: object) -> None:
        with connection.cursor() as cursor:
            for name, seconds in milliseconds.items():
                cursor.execute("SELECT set_config(%s, %s, false)", (name, str(math.ceil(seconds * 1000))))
            # A server that acknowledges what it has not written would make the service do so.
            cursor.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        connection.commit()

    return prepare_connection
