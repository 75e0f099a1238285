"""Creates the tables of a new database and upgrades those of an older version, one service at a time."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, func, inspect, select

from planner_service.store.faults import StoreUnavailable
from planner_service.store.sql.address import database_url
from planner_service.store.sql.database import Database
from planner_service.store.sql.engine import WRITES
from planner_service.store.sql.limits import StoreLimits

_MIGRATIONS = Path(__file__).parent.parent / "migrations"

_FIRST = "0001"
_OF_FIRST = {
    "profiles": {"name", "content", "submission"},
    "plans": {"number", "request_key", "digest", "body"},
}
"""Tables and columns of version 0.1.0, which wrote no revision into its databases."""

_LOCK = 0x48594452_55504752
"""Advisory lock of PostgreSQL that is the planner's by this number: "HYDRUPGR"."""


def upgrade(database: Database) -> None:
    """Make the database what this version of the planner needs; does nothing where it is.

    Raises
    ------
    StoreUnavailable
        If it cannot be opened, is no database, holds other tables, or belongs to a newer version. Then it is what it
        was.
    """
    config = _config()
    scripts = ScriptDirectory.from_config(config)
    with database.explained():
        with database.engine.connect() as connection:
            if _revision(connection, scripts, database) == scripts.get_current_head():
                return
        writing = database.engine.execution_options(**{WRITES: True})
        with writing.connect() as connection, _patient(connection, database), connection.begin():
            _take_lock(connection, database)
            config.attributes["connection"] = connection
            if _revision(connection, scripts, database) is None and _is_first(connection, database):
                MigrationContext.configure(connection).stamp(scripts, _FIRST)
            command.upgrade(config, "head")


def look_into(address: str, limits: StoreLimits) -> tuple[str | None, str | None]:
    """Return the revision of a database, None if it has none, and the one that this version works with.

    Changes nothing, and creates no file.

    Raises
    ------
    StoreUnavailable
        If it cannot be opened, is no database, or belongs to a newer version.
    """
    database = Database(database_url(address), limits)
    scripts = ScriptDirectory.from_config(_config())
    newest = scripts.get_current_head()
    file = database.url.database
    try:
        if not database.is_postgresql and not (file and Path(file).exists()):
            return None, newest
        with database.explained(), database.engine.connect() as connection:
            return _revision(connection, scripts, database), newest
    finally:
        database.close()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS).replace("%", "%%"))
    return config


def _revision(connection: Connection, scripts: ScriptDirectory, database: Database) -> str | None:
    revision = MigrationContext.configure(connection).get_current_revision()
    known = {script.revision for script in scripts.walk_revisions()}
    if revision is not None and revision not in known:
        raise StoreUnavailable(
            f"database {database.shown} cannot be used: a newer version of the planner wrote it (revision {revision}; "
            f"this version knows up to {scripts.get_current_head()}); run that version, or restore a backup"
        )
    return revision


def _is_first(connection: Connection, database: Database) -> bool:
    """Return whether the tables are those of version 0.1.0; False if there are none.

    Raises
    ------
    StoreUnavailable
        If tables stand under these names that are not the planner's.
    """
    inspector = inspect(connection)
    found = {
        table: {column["name"] for column in inspector.get_columns(table)}
        for table in _OF_FIRST
        if inspector.has_table(table)
    }
    if found and found != _OF_FIRST:
        raise StoreUnavailable(
            f"database {database.shown} cannot be used: its tables {', '.join(sorted(found))} are not those of a "
            "planner; give the planner a database of its own, or name another one"
        )
    return bool(found)


@contextmanager
def _patient(connection: Connection, database: Database) -> Iterator[None]:
    """Set for a while what can be set outside of a transaction only."""
    driver: Any = connection.connection.driver_connection
    if database.is_postgresql:
        # Nobody else is to have a connection that waits so long.
        connection.detach()
        driver.answer_s = database.limits.upgrade_s + database.limits.answer_s
        yield
        return
    # SQLite changes many a table by making another one, and references to it must bear that.
    driver.execute("PRAGMA foreign_keys=OFF")
    driver.execute(f"PRAGMA busy_timeout={math.ceil(database.limits.open_s * 1000)}")
    try:
        yield
    finally:
        driver.execute(f"PRAGMA busy_timeout={math.ceil(database.limits.wait_s * 1000)}")
        driver.execute("PRAGMA foreign_keys=ON")


def _take_lock(connection: Connection, database: Database) -> None:
    """Wait for others who do the same; on SQLite the transaction itself did."""
    if not database.is_postgresql:
        return
    limits = database.limits
    for name, seconds in (
        ("lock_timeout", limits.open_s),
        ("statement_timeout", limits.upgrade_s),
        ("idle_in_transaction_session_timeout", limits.upgrade_s),
    ):
        connection.execute(select(func.set_config(name, str(math.ceil(seconds * 1000)), True)))  # noqa: FBT003 - SQL takes it by place
    connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
