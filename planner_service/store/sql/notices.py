"""Who hears of changed iterations: listeners of this store, and those of others on the same PostgreSQL database."""

import json
import queue
import threading
import time
import uuid
from typing import Any

import structlog
from sqlalchemy import func, select

from planner_service.store.interface import IterationChanged, OnChange
from planner_service.store.sql.database import CHANNEL, Database, Transaction

CLOSE_S = 5.0
"""Longest wait for a thread to end."""

HEARTBEAT_S = 5.0
"""How often the connection that listens is tried while nothing is heard."""

LISTEN_S = 0.2
"""How often it is looked whether to stop."""

FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0


class NoticeBoard:
    """Listeners, and the thread that calls them.

    Parameters
    ----------
    database
        Whose commits to tell of.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._sender = uuid.uuid4().hex
        self._listeners: list[OnChange] = []
        self._changes: queue.SimpleQueue[IterationChanged | None] = queue.SimpleQueue()
        self._caller: threading.Thread | None = None
        self._ears: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._hears = threading.Event()
        self._log = structlog.get_logger("hydraulis.store")
        database.on_commit = self._tell
        if database.is_postgresql:
            database.announce = self._announce

    def listen(self, on_change: OnChange) -> None:
        """Add a listener; on PostgreSQL, wait a moment until other processes are heard."""
        with self._lock:
            if self._closing.is_set():
                return
            self._listeners.append(on_change)
            if self._caller is None:
                self._caller = threading.Thread(target=self._call, name="hydraulis-notices", daemon=True)
                self._caller.start()
                if self._database.is_postgresql:
                    self._ears = threading.Thread(target=self._hear_for_ever, name="hydraulis-listen", daemon=True)
                    self._ears.start()
        if self._ears is not None:
            self._hears.wait(self._database.limits.wait_s)

    def close(self) -> None:
        """Call nobody any more and end the threads."""
        with self._lock:
            self._closing.set()
            self._changes.put(None)
            threads = [thread for thread in (self._caller, self._ears) if thread is not None]
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CLOSE_S)

    def _tell(self, changes: list[IterationChanged]) -> None:
        if self._caller is not None:
            for change in changes:
                self._changes.put(change)

    def _announce(self, transaction: Transaction) -> None:
        """Let other processes hear of it when the transaction commits, and only then."""
        for change in transaction.changes:
            notice = json.dumps([self._sender, change.kind, change.job, change.iteration])
            transaction.connection.execute(select(func.pg_notify(CHANNEL, notice)))

    def _call(self) -> None:
        while (change := self._changes.get()) is not None:
            for listener in list(self._listeners):
                try:
                    listener(change)
                except Exception:  # noqa: BLE001 - the others must still be told
                    self._log.exception("listener_failed")

    def _hear_for_ever(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closing.is_set():
            began_at = time.monotonic()
            try:
                self._hear()
            except Exception as error:  # noqa: BLE001 - whatever it was, the next connection may be better
                if self._closing.is_set():
                    return
                self._log.warning("not_listening", database=self._database.shown, detail=str(error).split("\n")[0])
            self._hears.clear()
            lasted = time.monotonic() - began_at > LONGEST_PAUSE_S
            pause_s = FIRST_PAUSE_S if lasted else min(LONGEST_PAUSE_S, 2.0 * pause_s)
            self._closing.wait(pause_s)

    def _hear(self) -> None:
        from planner_service.store.sql.postgresql import open_connection  # noqa: PLC0415 - SQLite needs no driver

        _, given = self._database.engine.dialect.create_connect_args(self._database.url)
        with open_connection(given, self._database.limits, autocommit=True) as connection:
            connection.execute(f"LISTEN {CHANNEL}")
            self._hears.set()
            heard_at = time.monotonic()
            while not self._closing.is_set():
                for notice in connection.notifies(timeout=LISTEN_S):
                    self._heard(notice.payload)
                    heard_at = time.monotonic()
                if time.monotonic() - heard_at > HEARTBEAT_S:
                    connection.execute("SELECT 1")
                    heard_at = time.monotonic()

    def _heard(self, payload: str) -> None:
        change = _change_of(payload, own=self._sender)
        if change is not None:
            self._changes.put(change)


def _change_of(payload: str, *, own: str) -> IterationChanged | None:
    """Read a notice; one's own were told already, and others may use the channel for something else."""
    try:
        notice: Any = json.loads(payload)
    except ValueError:
        return None
    match notice:
        case [str() as sender, "due" | "finished" as kind, str() as job, int() as iteration] if sender != own:
            return IterationChanged(kind, job, iteration)
    return None
