"""Connections to either kind of database, none of which blocks for ever."""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool

from planner_service.store.faults import StoreUnavailable
from planner_service.store.sql.limits import StoreLimits

WRITES = "hydraulis_writes"
"""Execution option of connections whose transactions write."""

SQLITE_CONNECTIONS = 32


def open_engine(url: URL, limits: StoreLimits) -> Engine:
    """Make the engine of a SQLite or PostgreSQL database; connects to nothing yet.

    Raises
    ------
    StoreUnavailable
        If the planner does not know this kind of database.
    """
    backend = url.get_backend_name()
    if backend == "sqlite":
        return _sqlite(url, limits)
    if backend == "postgresql":
        return _postgresql(url, limits)
    raise StoreUnavailable(
        f"database {url.render_as_string(hide_password=True)} is of a kind that needs a driver that is not installed "
        f"({backend}): the planner keeps its data in SQLite or PostgreSQL; name one of these"
    )


def is_in_memory(url: URL) -> bool:
    """Return whether a SQLite database has no file."""
    return url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")


def _sqlite(url: URL, limits: StoreLimits) -> Engine:
    # An in-memory database lives as long as its only connection, so there is exactly one and threads take turns.
    engine = create_engine(
        url,
        connect_args={"timeout": limits.wait_s, "check_same_thread": False},
        poolclass=QueuePool,
        pool_timeout=limits.wait_s,
        pool_size=1 if is_in_memory(url) else SQLITE_CONNECTIONS,
        max_overflow=0,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    event.listen(engine, "begin", _begin_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Let readers and one writer work at once; a commit survives the end of the process and of the machine."""
    # The driver begins no transactions by itself: `_begin_sqlite` says of each what it is for.
    connection.isolation_level = None
    cursor = connection.cursor()
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
            cursor.execute(f"PRAGMA {pragma}")
    finally:
        cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # One that begins by reading and writes later can fail in the middle, because another wrote in between.
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _postgresql(url: URL, limits: StoreLimits) -> Engine:
    from planner_service.store.sql.postgresql import connect_bounded, prepare  # noqa: PLC0415 - SQLite needs no driver

    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_size=limits.num_connections,
        max_overflow=0,
        pool_timeout=limits.wait_s,
    )
    connect: Callable[..., Any] = connect_bounded(limits)
    event.listen(engine, "do_connect", connect)
    event.listen(engine, "connect", prepare(limits))
    return engine
