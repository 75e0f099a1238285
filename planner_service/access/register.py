"""Tokens: given, listed, taken back; and the audit record, read."""

from typing import Any

from planner_client.contract import AuditEntry, AuditList, FaultCode, NewToken, TokenList, TokenRequest, TokenSummary
from planner_service.access.secret import hash_of, new_secret
from planner_service.core.faults import PlanningFault
from planner_service.store import AccessStore, TokenConflict, TokenRow


class TokenRegister:
    """What administrators do with tokens. All methods block.

    Parameters
    ----------
    store
        Where tokens are kept.
    """

    def __init__(self, store: AccessStore) -> None:
        self._store = store

    def give(self, request: TokenRequest) -> NewToken:
        """Make a token; its secret is in the answer and nowhere else.

        Raises
        ------
        PlanningFault
            Code ``token-conflict`` if a token has the name.
        """
        secret = new_secret()
        jobs = None if request.jobs is None else tuple(dict.fromkeys(request.jobs))
        try:
            row = self._store.put_token(
                TokenRow(request.name, hash_of(secret), request.scope, jobs), lifetime_s=request.expires_in_s
            )
        except TokenConflict:
            raise PlanningFault(
                FaultCode.TOKEN_CONFLICT,
                f"there is a token named {request.name} already",
                "give yours another name, or revoke that one first",
                name=request.name,
            ) from None
        return NewToken(**_fields(row), token=secret)

    def all(self) -> TokenList:
        """Return all tokens, without their secrets."""
        return TokenList(tokens=[TokenSummary(**_fields(row)) for row in self._store.tokens()])

    def revoke(self, name: str) -> None:
        """Take a token back.

        Raises
        ------
        PlanningFault
            Code ``not-found``.
        """
        if not self._store.delete_token(name):
            raise PlanningFault(
                FaultCode.NOT_FOUND,
                f"there is no token named {name[:128]!r}",
                "GET /v1/tokens or `hydraulis tokens list` tells which there are",
                name=name[:128],
            )

    def audit(self, *, after: int, limit: int) -> AuditList:
        """Return some entries of the audit record, in the order they happened."""
        rows = self._store.audit(after=after, limit=limit)
        entries = [
            AuditEntry(
                number=row.number,
                at=row.at,
                token=row.token,
                action=row.action,
                subject=row.subject,
                outcome=row.outcome,
            )
            for row in rows
        ]
        return AuditList(entries=entries, next_after=rows[-1].number if len(rows) == limit else None)


def _fields(row: TokenRow) -> dict[str, Any]:
    jobs = None if row.jobs is None else list(row.jobs)
    return {
        "name": row.name,
        "scope": row.scope,
        "jobs": jobs,
        "created_at": row.created_at,
        "expires_at": row.expires_at,
        "is_expired": row.is_expired,
    }
