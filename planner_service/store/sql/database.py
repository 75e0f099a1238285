"""Transactions on either kind of database: bounded, repeated where that is safe, and with errors that explain."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

from sqlalchemy import ColumnElement, Connection, Engine, Float, Select, Table, cast, extract, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from planner_service.store.faults import StoreUnavailable
from planner_service.store.interface import IterationChanged, OnUse, StoreUse
from planner_service.store.sql.engine import WRITES, open_engine
from planner_service.store.sql.limits import StoreLimits
from planner_service.store.sql.remedies import explanation
from planner_service.tracing import note, span

_Value = TypeVar("_Value")

MAX_ATTEMPTS = 4
"""Times a transaction is begun, where others got in its way or its connection was lost."""

PAUSE_S = 0.05

_UNDONE = frozenset({"40001", "40P01"})
"""PostgreSQL gave the transaction up in favour of others, and it may be tried again: serialization, deadlock."""

_READ_ONLY = "25006"
"""A server that was the primary one when the connection was made."""

_CLOCK = cast(extract("epoch", func.clock_timestamp()), Float(53))
_NOW = select(_CLOCK)

CHANNEL = "hydraulis_iterations"


class Transaction:
    """A transaction that writes.

    Attributes
    ----------
    connection
        What it runs on.
    changes
        What listeners hear when it is done.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.changes: list[IterationChanged] = []

    def now(self) -> float:
        """Return the database's time, read now (seconds since 1970, UTC)."""
        if self.connection.dialect.name == "postgresql":
            return float(self.connection.execute(_NOW).scalar_one())
        return time.time()

    def insert_unless_there(self, table: Table, **values: object) -> bool:
        """Insert a row unless one has its name or key already; return whether it was inserted."""
        if self.connection.dialect.name == "postgresql":
            statement: Any = postgresql.insert(table).values(**values).on_conflict_do_nothing()
        else:
            statement = sqlite.insert(table).values(**values).on_conflict_do_nothing()
        # An INSERT that returns no rows keeps no count of them either, unless it is asked to.
        return self.connection.execute(statement.execution_options(preserve_rowcount=True)).rowcount == 1

    def tell(self, change: IterationChanged) -> None:
        """Let listeners hear of a change if the transaction succeeds."""
        self.changes.append(change)


def now_of(connection: Connection) -> ColumnElement[float]:
    """Return what reads the database's time; that of SQLite is the host's, which all its users share."""
    if connection.dialect.name == "postgresql":
        return _CLOCK
    return literal(time.time(), Float(53))


def _file_at(url: URL) -> tuple[int, int] | None:
    """Return which file a SQLite database is in, whatever it is called; None if there is none."""
    try:
        found = Path(url.database or "").stat()
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino


def is_storable(text: str) -> bool:
    """Return whether a text can be in a database at all; one that cannot is looked for in vain, without asking."""
    if "\x00" in text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


class Database:
    """One database.

    Parameters
    ----------
    url
        Which one.
    limits
        Bounds.

    Raises
    ------
    StoreUnavailable
        If it is of a kind that the planner does not know, or its driver is missing.

    Attributes
    ----------
    engine
        Connections; for migrations.
    shown
        Its name, without a password.
    """

    def __init__(self, url: URL, limits: StoreLimits) -> None:
        self.url = url
        self.limits = limits
        self.shown = url.render_as_string(hide_password=True)
        self.is_postgresql = url.get_backend_name() == "postgresql"
        try:
            self.engine: Engine = open_engine(url, limits)
        except (SQLAlchemyError, ImportError) as error:
            raise StoreUnavailable(
                f"database {self.shown} needs a driver that is not installed ({error}); install it or use SQLite"
            ) from error
        reading = {"isolation_level": "AUTOCOMMIT"} if self.is_postgresql else {}
        self._reading = self.engine.execution_options(**reading)
        self._writing = self.engine.execution_options(**{WRITES: True})
        # Threads of one process wait for each other here, in order, rather than by polling SQLite's lock.
        self._turn = threading.Lock()
        self.on_commit: Callable[[list[IterationChanged]], None] | None = None
        self.announce: Callable[[Transaction], None] | None = None
        self.on_use: OnUse | None = None
        self._file: tuple[int, int] | None = None

    def hold_file(self) -> None:
        """Take the file at the database's path, now that it is open, for the one that every later use means."""
        self._file = None if self.is_postgresql else _file_at(self.url)

    def read(self, work: Callable[[Connection], _Value]) -> _Value:
        """Run what only reads.

        Raises
        ------
        StoreUnavailable
            If the database cannot be used.
        """

        def attempt() -> _Value:
            with self._reading.connect() as connection:
                return work(connection)

        return self._used("read", attempt, is_safe=lambda: True)

    def rows(self, statement: Select[Any]) -> list[Any]:
        """Return all rows of a query; raises as `read`."""
        return list(self.read(lambda connection: connection.execute(statement).all()))

    def first(self, statement: Select[Any], values: Mapping[str, object] | None = None) -> Any:
        """Return the first row of a query with these values, or None; raises as `read`."""
        return self.read(lambda connection: connection.execute(statement, values).first())

    def write(self, work: Callable[[Transaction], _Value], *, repeatable: bool = True) -> _Value:
        """Run a transaction that writes, again if need be.

        Parameters
        ----------
        work
            Does it; called several times if a transaction was undone or its connection lost.
        repeatable
            Whether it does no harm to run it once more where it is unknown if it was committed.

        Raises
        ------
        StoreUnavailable
            If the database cannot be used. Then nothing was done, or, if the connection was lost at the very end, all.
        """
        is_committing = False

        def attempt() -> tuple[_Value, list[IterationChanged]]:
            nonlocal is_committing
            is_committing = False
            with self._own_turn(), self._writing.connect() as connection, connection.begin() as begun:
                transaction = Transaction(connection)
                value = work(transaction)
                if transaction.changes and self.announce is not None:
                    self.announce(transaction)
                is_committing = True
                begun.commit()
            return value, transaction.changes

        value, changes = self._used("write", attempt, is_safe=lambda: repeatable or not is_committing)
        if changes and self.on_commit is not None:
            self.on_commit(changes)
        return value

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Turn a driver's error into one that names the database, the reason and the remedy."""
        try:
            yield
        except SQLAlchemyError as error:
            raise self._unavailable(error) from error

    def _used(
        self, operation: Literal["read", "write"], attempt: Callable[[], _Value], is_safe: Callable[[], bool]
    ) -> _Value:
        """Run attempts, and tell whoever counts and traces of it."""
        began_at = time.perf_counter()
        num_attempts = 0
        has_failed = False

        def counted() -> _Value:
            nonlocal num_attempts
            num_attempts += 1
            return attempt()

        try:
            self._refuse_other_file()
            with span(f"store {operation}", database="postgresql" if self.is_postgresql else "sqlite"):
                try:
                    return self._repeated(counted, is_safe)
                finally:
                    note(num_attempts=num_attempts)
        except StoreUnavailable:
            has_failed = True
            raise
        finally:
            if self.on_use is not None:
                self.on_use(StoreUse(operation, time.perf_counter() - began_at, num_attempts, has_failed))

    def _repeated(self, attempt: Callable[[], _Value], is_safe: Callable[[], bool]) -> _Value:
        ends_at = time.monotonic() + self.limits.wait_s
        for num_left in reversed(range(MAX_ATTEMPTS)):
            try:
                return attempt()
            except SQLAlchemyError as error:
                if num_left == 0 or time.monotonic() > ends_at or not self._may_pass(error, is_safe=is_safe()):
                    raise self._unavailable(error) from error
            time.sleep(PAUSE_S * (MAX_ATTEMPTS - num_left))
        raise AssertionError("the last attempt returns or raises")

    def _may_pass(self, error: SQLAlchemyError, *, is_safe: bool) -> bool:
        if not isinstance(error, DBAPIError):
            return False
        state = getattr(error.orig, "sqlstate", None)
        if state == _READ_ONLY:
            self.engine.dispose()
        return state in _UNDONE or state == _READ_ONLY or (error.connection_invalidated and is_safe)

    def _refuse_other_file(self) -> None:
        """Refuse to go on with a file that nobody can find any more: SQLite itself reads and writes it as before."""
        if self._file is not None and _file_at(self.url) != self._file:
            raise StoreUnavailable(
                f"database {self.shown} cannot be used: its file was deleted, moved or replaced while it was open; put "
                "it back where it was, or restore a backup there and restart the service"
            )

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        if self.is_postgresql:
            yield
            return
        if not self._turn.acquire(timeout=self.limits.wait_s):
            raise StoreUnavailable(
                f"database {self.shown} cannot be used: others have been writing for {self.limits.wait_s:g} s; "
                "let fewer services share the file, or use PostgreSQL"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _unavailable(self, error: SQLAlchemyError) -> StoreUnavailable:
        return StoreUnavailable(explanation(error, self.url, self.limits))
