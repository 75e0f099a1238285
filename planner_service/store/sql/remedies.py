"""What a driver's error means to whoever runs the planner, and what to do about it."""

import shutil
from pathlib import Path

from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoFreeConnection

from planner_service.store.sql.limits import StoreLimits

_PRIMARY = 0xFF
"""SQLite tells more of an error in the bits above."""

_SQLITE = {
    5: "another process has held the file's lock for more than {wait_s:g} s; end it (a backup or a shell that has a "
    "transaction open), let one service alone use the file, or use PostgreSQL",
    6: "another connection has held a table's lock for more than {wait_s:g} s; let one service alone use the file",
    8: "the user that the planner runs as must be able to write the file and its directory, where SQLite keeps two "
    "more files (-wal, -shm): mend owner, permissions or mount, or name another one",
    10: "the file system reports a fault: make room on it ({room}), see the system's log, and keep the file on a disk "
    "of this machine rather than on a network share",
    11: "it is damaged; restore a backup, or name another one",
    13: "its file system has {room}: make room there, a quota included; nothing is lost, and no restart is needed",
    26: "it is no SQLite database; restore a backup, or name another one",
}
"""By SQLite's primary result codes: https://www.sqlite.org/rescode.html."""

_SQLITE_OTHER = "check that the path exists, is writable and holds a planner database, or name another one"

_POSTGRESQL = {
    "25006": "it takes no writes: name the primary server, or end its recovery",
    "28000": "the server does not let this user in: correct the URL or the server's pg_hba.conf",
    "28P01": "the password is wrong: correct the URL, ~/.pgpass or PGPASSWORD",
    "3D000": "create the database (createdb), or name another one",
    "42501": "the user must own the tables of the database; grant it that, or name another user",
    "53100": "the server's disk is full: make room there; nothing is lost, and no restart is needed",
    "53200": "the server is out of memory: give it more, or let fewer connections use it",
    "53300": "the server takes no more connections: raise its max_connections; each service needs up to {num}",
    "55P03": "another transaction has held a lock for more than {wait_s:g} s: end it (see pg_stat_activity)",
    "57014": "one statement took more than {statement_s:g} s: give the server more resources, or ask less at once",
    "57P01": "the server is being stopped; wait until it is there again, no restart is needed",
    "57P02": "the server has crashed; wait until it is there again, no restart is needed",
    "57P03": "the server is starting or stopping; wait until it is there again, no restart is needed",
}
"""By SQLSTATE: PostgreSQL's manual, appendix A."""

_SAID_WHEN_CONNECTING = {
    "password authentication failed": "28P01",
    "no pg_hba.conf entry": "28000",
    "does not exist": "3D000",
    "too many clients": "53300",
    "too many connections": "53300",
    "connection slots": "53300",
    "session is read-only": "25006",
    "starting up": "57P03",
    "shutting down": "57P03",
    "recovery mode": "57P03",
}
"""Who is not let in is told no SQLSTATE, only a sentence; of a server that speaks English at least it is understood."""

_POSTGRESQL_OTHER = "check that the server runs, lets the planner in and may be written to, or name another one"


def explanation(error: SQLAlchemyError, url: URL, limits: StoreLimits) -> str:
    """Say which database cannot be used, why, and what to do.

    Parameters
    ----------
    error
        What SQLAlchemy raised.
    url, limits
        The database, and how long it was waited for.

    Returns
    -------
    str
        One line, without a password.
    """
    shown = url.render_as_string(hide_password=True)
    original = getattr(error, "orig", None)
    reason = (str(original or error).splitlines() or [type(error).__name__])[0]
    is_postgresql = url.get_backend_name() == "postgresql"
    if isinstance(error, NoFreeConnection):
        reason = f"all its connections have been in use for more than {limits.wait_s:g} s"
        remedy = "it answers more slowly than the service is asked: give it more resources, or ask less at once"
    elif is_postgresql:
        remedy = _POSTGRESQL.get(_state(original, reason), _POSTGRESQL_OTHER)
    else:
        code = getattr(original, "sqlite_errorcode", None)
        remedy = _SQLITE_OTHER if code is None else _SQLITE.get(code & _PRIMARY, _SQLITE_OTHER)
    remedy = remedy.format(
        room=_room(url), wait_s=limits.wait_s, statement_s=limits.statement_s, num=limits.num_connections + 1
    )
    return f"database {shown} cannot be used: {reason}; {remedy}"


def _state(original: object, reason: str) -> str:
    state = getattr(original, "sqlstate", None)
    if isinstance(state, str):
        return state
    return next((state for said, state in _SAID_WHEN_CONNECTING.items() if said in reason), "")


def _room(url: URL) -> str:
    """Say how much room the file system of a SQLite file has."""
    if url.get_backend_name() != "sqlite" or not url.database:
        return "an unknown number of bytes free"
    try:
        free_bytes = shutil.disk_usage(Path(url.database).absolute().parent).free
    except OSError:
        return "an unknown number of bytes free"
    return f"{free_bytes} bytes free"
