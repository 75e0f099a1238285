"""Tokens, of which only hashes are kept, and the audit record."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class TokenRow:
    """A token that was given.

    Attributes
    ----------
    name
        Its name, unique in the store.
    secret_hash
        SHA-256 of the secret, hexadecimal; unique. Secrets are 256 random bits, which need no slow hash.
    scope
        ``read``, ``plan`` or ``admin``.
    jobs
        Patterns of the jobs that it is good for; None for all.
    created_at
        When it was given (seconds since 1970, UTC).
    expires_at
        From when it is good for nothing any more; None if never.
    read_at
        Given by the store: what the time was when it was read, so that whether it has expired is the store's to say.
    """

    name: str
    secret_hash: str
    scope: str
    jobs: tuple[str, ...] | None
    created_at: float = 0.0
    expires_at: float | None = None
    read_at: float = field(default=0.0, compare=False)

    @property
    def left_s(self) -> float | None:
        """How long it was still good for when it was read; None if it does not expire."""
        return None if self.expires_at is None else max(0.0, self.expires_at - self.read_at)

    @property
    def is_expired(self) -> bool:
        """Whether it had expired when it was read."""
        return self.left_s == 0.0


@dataclass(frozen=True)
class AuditRow:
    """One entry of the audit record.

    Attributes
    ----------
    token
        Name of the token that was used; None without one.
    action, subject
        What was done to what.
    outcome
        ``done`` or ``refused``.
    number, at
        Given by the store: its place in the record, and when it happened (seconds since 1970, UTC).
    """

    token: str | None
    action: str
    subject: str
    outcome: Literal["done", "refused"]
    number: int = 0
    at: float = 0.0


class AccessStore(ABC):
    """Tokens and the audit record; see `planner_service.store.interface.Store` for what every method owes."""

    @abstractmethod
    def put_token(self, row: TokenRow, *, lifetime_s: float | None = None) -> TokenRow:
        """Store a token; return it with its times.

        Parameters
        ----------
        lifetime_s
            How long it is good for from now on; None for ever. It stays stored when it has expired.

        Raises
        ------
        TokenConflict
            If one of this name was given before.
        """

    @abstractmethod
    def token_with_hash(self, secret_hash: str) -> TokenRow | None:
        """Return the token whose secret has this hash, expired or not, or None."""

    @abstractmethod
    def tokens(self) -> list[TokenRow]:
        """Return all tokens, expired ones included, ascending by name."""

    @abstractmethod
    def delete_token(self, name: str) -> bool:
        """Take a token back; return whether there was one."""

    @abstractmethod
    def record(self, row: AuditRow) -> None:
        """Add an entry to the audit record."""

    @abstractmethod
    def audit(self, *, after: int, limit: int) -> list[AuditRow]:
        """Return entries with larger numbers than ``after``, ascending, at most ``limit``."""
