"""Tokens and the audit record, on SQL."""

import json
from typing import Any

from sqlalchemy import Connection, Select, delete, func, insert, select

from planner_service.store.access_store import AccessStore, AuditRow, TokenRow
from planner_service.store.faults import TokenConflict
from planner_service.store.sql.database import Database, Transaction, is_storable, now_of
from planner_service.store.sql.tables import AUDIT, TOKENS

_AUDIT_LOCK = 0x48594452_41554454
"""Advisory lock of PostgreSQL that is the planner's by this number: "HYDRAUDT"."""


class SqlAccessStore(AccessStore):
    """Tokens and audit record in one table each; see `AccessStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put_token(self, row: TokenRow, *, lifetime_s: float | None = None) -> TokenRow:
        """Store a token; see `AccessStore.put_token`."""

        def work(transaction: Transaction) -> TokenRow:
            created_at = transaction.now()
            expires_at = None if lifetime_s is None else created_at + lifetime_s
            if not transaction.insert_unless_there(
                TOKENS,
                name=row.name,
                secret_hash=row.secret_hash,
                scope=row.scope,
                jobs=None if row.jobs is None else json.dumps(row.jobs),
                created_at=created_at,
                expires_at=expires_at,
            ):
                raise TokenConflict(row.name)
            return TokenRow(row.name, row.secret_hash, row.scope, row.jobs, created_at, expires_at, read_at=created_at)

        return self._database.write(work, repeatable=False)

    def token_with_hash(self, secret_hash: str) -> TokenRow | None:
        """Return the token whose secret has this hash, or None."""
        if not is_storable(secret_hash):
            return None
        found = self._database.read(
            lambda connection: connection.execute(
                _tokens_now(connection).where(TOKENS.c.secret_hash == secret_hash)
            ).first()
        )
        return None if found is None else _token_row(found)

    def tokens(self) -> list[TokenRow]:
        """Return all tokens, ascending by name."""
        rows = self._database.read(
            lambda connection: connection.execute(_tokens_now(connection).order_by(TOKENS.c.name)).all()
        )
        return [_token_row(row) for row in rows]

    def delete_token(self, name: str) -> bool:
        """Take a token back; return whether there was one."""

        def work(transaction: Transaction) -> bool:
            return transaction.connection.execute(delete(TOKENS).where(TOKENS.c.name == name)).rowcount > 0

        return is_storable(name) and self._database.write(work, repeatable=False)

    def record(self, row: AuditRow) -> None:
        """Add an entry to the audit record."""

        def work(transaction: Transaction) -> None:
            connection = transaction.connection
            if connection.dialect.name == "postgresql":
                # One at a time, so that numbers come in the order of commits and no reader goes past one to come.
                connection.execute(select(func.pg_advisory_xact_lock(_AUDIT_LOCK)))
            values = {"token": row.token, "action": row.action, "subject": row.subject, "outcome": row.outcome}
            connection.execute(insert(AUDIT).values(at=transaction.now(), **values))

        self._database.write(work, repeatable=False)

    def audit(self, *, after: int, limit: int) -> list[AuditRow]:
        """Return entries with larger numbers than ``after``, ascending, at most ``limit``."""
        rows = self._database.rows(select(AUDIT).where(AUDIT.c.number > after).order_by(AUDIT.c.number).limit(limit))
        return [AuditRow(row.token, row.action, row.subject, row.outcome, number=row.number, at=row.at) for row in rows]


def _tokens_now(connection: Connection) -> Select[Any]:
    return select(TOKENS, now_of(connection).label("read_at"))


def _token_row(row: Any) -> TokenRow:
    jobs = None if row.jobs is None else tuple(json.loads(row.jobs))
    return TokenRow(
        row.name, row.secret_hash, row.scope, jobs, row.created_at, row.expires_at, read_at=float(row.read_at)
    )
