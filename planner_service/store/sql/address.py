"""How a database is named."""

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from planner_service.store.faults import StoreUnavailable

_POSTGRESQL = frozenset({"postgresql", "postgres"})


def database_url(database: str) -> URL:
    """Read a SQLAlchemy URL, or take the text as the path of a SQLite file.

    PostgreSQL is spoken to by psycopg, also where the URL names no driver.

    Raises
    ------
    StoreUnavailable
        If the text looks like a URL and is none.
    """
    if "://" not in database:
        return URL.create("sqlite", database=str(Path(database).expanduser()))
    try:
        url = make_url(database)
    except ArgumentError as error:
        raise StoreUnavailable(
            "the database URL cannot be read; give a path, or a URL such as "
            "sqlite:////var/lib/hydraulis/planner.sqlite3 or postgresql://planner@host/hydraulis"
        ) from error
    return url.set(drivername="postgresql+psycopg") if url.drivername in _POSTGRESQL else url
