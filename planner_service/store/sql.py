"""The store on SQLAlchemy: a SQLite file by default."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import (
    Column,
    Engine,
    Integer,
    LargeBinary,
    MetaData,
    RowMapping,
    String,
    Table,
    create_engine,
    event,
    insert,
    select,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from planner_service.store.interface import PlanRow, ProfileConflict, ProfileRow, Store, StoreUnavailable

BUSY_TIMEOUT_S = 10.0
"""Longest wait for another writer of the same SQLite file."""

POOL_TIMEOUT_S = 10.0
"""Longest wait for a free connection."""

_METADATA = MetaData()
_PROFILES = Table(
    "profiles",
    _METADATA,
    Column("name", String(128), primary_key=True),
    Column("content", LargeBinary, nullable=False),
    Column("submission", String(80), nullable=False),
)
_PLANS = Table(
    "plans",
    _METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("request_key", String(80), nullable=False, unique=True),
    Column("digest", String(80), nullable=False, index=True),
    Column("body", LargeBinary, nullable=False),
)


def database_url(database: str) -> URL:
    """Read a SQLAlchemy URL, or take the text as the path of a SQLite file.

    Raises
    ------
    StoreUnavailable
        If the text looks like a URL and is none.
    """
    if "://" not in database:
        return URL.create("sqlite", database=str(Path(database).expanduser()))
    try:
        return make_url(database)
    except ArgumentError as error:
        raise StoreUnavailable(
            "the database URL cannot be read; give a path, or a URL such as sqlite:////var/lib/hydraulis/planner.sqlite3"
        ) from error


class SqlStore(Store):
    """Profiles and plans in two tables.

    Parameters
    ----------
    database
        SQLAlchemy URL or path of a SQLite file; ``sqlite://`` keeps everything in memory, for tests.

    Raises
    ------
    StoreUnavailable
        If the database cannot be opened, is no database, or holds tables of another shape.
    """

    def __init__(self, database: str) -> None:
        url = database_url(database)
        self._shown = url.render_as_string(hide_password=True)
        try:
            self._engine = _engine(url)
        except (NoSuchModuleError, ModuleNotFoundError) as error:
            raise StoreUnavailable(
                f"database {self._shown} needs a driver that is not installed ({error}); install it or use SQLite"
            ) from error
        with self._explained():
            _METADATA.create_all(self._engine)
        self.check()

    def put_profile(self, row: ProfileRow) -> bool:
        """Store a profile under a new name; see `Store.put_profile`."""
        with self._explained():
            try:
                with self._engine.begin() as connection:
                    connection.execute(
                        insert(_PROFILES).values(name=row.name, content=row.content, submission=row.submission)
                    )
            except IntegrityError:
                stored = self.profile(row.name)
                if stored is not None and (stored.content == row.content or stored.submission == row.submission):
                    return False
                raise ProfileConflict(row.name) from None
        return True

    def profile(self, name: str) -> ProfileRow | None:
        """Return the profile of that name, or None."""
        found = self._one(select(_PROFILES).where(_PROFILES.c.name == name))
        return None if found is None else _profile_row(found)

    def profiles(self) -> list[ProfileRow]:
        """Return all profiles, ascending by name."""
        with self._explained(), self._engine.connect() as connection:
            rows = connection.execute(select(_PROFILES).order_by(_PROFILES.c.name)).mappings().all()
        return [_profile_row(row) for row in rows]

    def put_plan(self, row: PlanRow) -> PlanRow:
        """Store a plan unless its request already has one; see `Store.put_plan`."""
        with self._explained():
            try:
                with self._engine.begin() as connection:
                    connection.execute(
                        insert(_PLANS).values(request_key=row.request_key, digest=row.digest, body=row.body)
                    )
            except IntegrityError:
                stored = self.plan_of_request(row.request_key)
                if stored is None:
                    raise
                return stored
        return row

    def plan_of_request(self, request_key: str) -> PlanRow | None:
        """Return the plan of a request, or None."""
        found = self._one(select(_PLANS).where(_PLANS.c.request_key == request_key))
        return None if found is None else _plan_row(found)

    def plan_with_digest(self, digest: str) -> PlanRow | None:
        """Return the plan with this digest that was stored first, or None."""
        found = self._one(select(_PLANS).where(_PLANS.c.digest == digest).order_by(_PLANS.c.number).limit(1))
        return None if found is None else _plan_row(found)

    def check(self) -> None:
        """Raise `StoreUnavailable` unless both tables can be read now."""
        self._one(select(_PROFILES).limit(1))
        self._one(select(_PLANS).limit(1))

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _one(self, statement: Any) -> RowMapping | None:
        with self._explained(), self._engine.connect() as connection:
            return connection.execute(statement).mappings().first()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn a driver's error into one that names the database, the reason and the remedy."""
        try:
            yield
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).splitlines()[0]
            raise StoreUnavailable(
                f"database {self._shown} cannot be used: {reason}; check that the path exists, is writable and "
                "holds a planner database, or name another one"
            ) from error


def _engine(url: URL) -> Engine:
    if url.get_backend_name() != "sqlite":
        return create_engine(url, pool_pre_ping=True, pool_timeout=POOL_TIMEOUT_S)
    in_memory = url.database in (None, "", ":memory:")
    # An in-memory database lives as long as its only connection, so there is exactly one and threads take turns.
    sizes: dict[str, Any] = {"pool_size": 1, "max_overflow": 0} if in_memory else {}
    engine = create_engine(
        url,
        connect_args={"timeout": BUSY_TIMEOUT_S, "check_same_thread": False},
        poolclass=QueuePool,
        pool_timeout=POOL_TIMEOUT_S,
        **sizes,
    )
    event.listen(engine, "connect", _prepare_sqlite)
    return engine


def _prepare_sqlite(connection: Any, _record: object) -> None:
    """Let readers and one writer work at once; a commit survives the end of the process."""
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute("PRAGMA synchronous=NORMAL")
    finally:
        cursor.close()


def _profile_row(row: RowMapping) -> ProfileRow:
    return ProfileRow(name=row["name"], content=bytes(row["content"]), submission=row["submission"])


def _plan_row(row: RowMapping) -> PlanRow:
    return PlanRow(request_key=row["request_key"], digest=row["digest"], body=bytes(row["body"]))
