"""The audit record: in the store and in the log."""

import threading
import time
from collections.abc import Callable

import structlog

from planner_service.access.secret import without_secrets
from planner_service.store import AccessStore, AuditRow, StoreUnavailable

MAX_SUBJECT_CHARACTERS = 200
REFUSALS_AT_ONCE = 100
REFUSALS_A_SECOND = 1.0
"""Anybody can be refused: how many entries refusals may fill is bounded, and those over it are counted in one entry."""


class AuditRecord:
    """Writes down what administrators did and what was refused; callable from any thread. Blocks.

    Parameters
    ----------
    store
        Where entries are kept.
    clock
        Seconds, never going back.
    """

    def __init__(self, store: AccessStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._log = structlog.get_logger("hydraulis.audit")
        self._lock = threading.Lock()
        self._allowance = float(REFUSALS_AT_ONCE)
        self._counted_at = clock()
        self._num_left_out = 0

    def done(self, *, token: str | None, action: str, subject: str) -> None:
        """Record what was done."""
        self._write(AuditRow(token, action, _plain(subject), "done"))

    def refused(self, *, token: str | None, action: str, subject: str) -> None:
        """Record what was refused; in the store only as far as the bound allows, in the log always."""
        row = AuditRow(token, action, _plain(subject), "refused")
        with self._lock:
            now = self._clock()
            gained = (now - self._counted_at) * REFUSALS_A_SECOND
            self._allowance = min(float(REFUSALS_AT_ONCE), self._allowance + gained)
            self._counted_at = now
            is_within = self._allowance >= 1.0
            if is_within:
                self._allowance -= 1.0
                num_left_out, self._num_left_out = self._num_left_out, 0
            else:
                self._num_left_out += 1
        if not is_within:
            self._tell(row)
            return
        if num_left_out:
            self._write(AuditRow(None, "left-out", f"{num_left_out} more", "refused"))
        self._write(row)

    def _write(self, row: AuditRow) -> None:
        self._tell(row)
        try:
            self._store.record(row)
        except StoreUnavailable as failure:
            # What was done stays done; the line above has the whole entry.
            self._log.error("audit_not_stored", action=row.action, subject=row.subject, detail=str(failure))

    def _tell(self, row: AuditRow) -> None:
        self._log.info("audit", token=row.token, action=row.action, subject=row.subject, outcome=row.outcome)


def _plain(subject: str) -> str:
    """Shorten what a caller wrote, and keep out of it what a database or a terminal cannot take."""
    shown = without_secrets(subject)[:MAX_SUBJECT_CHARACTERS]
    return "".join(sign if sign.isprintable() else "?" for sign in shown)
