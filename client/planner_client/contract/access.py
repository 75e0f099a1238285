"""Who may do what: tokens, and the record of what administrators did."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from planner_client.contract.scalars import (
    MAX_JOB_PATTERNS,
    MAX_TOKEN_LIFETIME_S,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Returned,
    Sent,
    TokenName,
)

Scope = Literal["read", "plan", "admin"]
"""``read`` looks at everything but tokens and the audit record; ``plan`` also plans, registers and reports; ``admin``
also deletes, and gives and takes tokens. Each holds the ones before it."""

JobPattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\*?$|^\*$")]
"""A job's name, or the beginning of names with ``*`` behind it."""


class TokenRequest(Sent):
    """A token to give.

    Attributes
    ----------
    name
        What it is called, in lists and in the audit record.
    scope
        What its holder may do.
    jobs
        Jobs that it is good for, by name or as the beginning of names with ``*`` behind it; all of them if not given.
    expires_in_s
        How long it is good for (seconds); for ever if null.
    """

    name: TokenName
    scope: Scope
    jobs: Annotated[list[JobPattern], Field(min_length=1, max_length=MAX_JOB_PATTERNS)] | None = None
    expires_in_s: Annotated[PositiveInt, Field(le=MAX_TOKEN_LIFETIME_S)] | None = None


class TokenSummary(Returned):
    """One token, without its secret.

    Attributes
    ----------
    name
        What it is called.
    scope
        What its holder may do.
    jobs
        Jobs that it is good for; null for all.
    created_at
        When it was given (seconds since 1970, UTC).
    expires_at
        From when it is good for nothing any more (seconds since 1970, UTC); null if never.
    is_expired
        Whether that is past.
    """

    name: str
    scope: Scope
    jobs: list[str] | None
    created_at: NonNegativeFloat
    expires_at: NonNegativeFloat | None = None
    is_expired: bool = False


class NewToken(TokenSummary):
    """A token just given. Its secret is shown this once; the planner keeps a hash of it.

    Attributes
    ----------
    token
        Send it as ``Authorization: Bearer ...``.
    """

    token: Annotated[str, Field(repr=False)]


class TokenList(Returned):
    """All tokens.

    Attributes
    ----------
    tokens
        Ascending by name.
    """

    tokens: list[TokenSummary]


class AuditEntry(Returned):
    """One thing that an administrator did, or tried to do without the right.

    Attributes
    ----------
    number
        Entries are numbered in the order they happened.
    at
        When (seconds since 1970, UTC).
    token
        Name of the token that was used; null without one.
    action
        What was done, such as ``delete-job``.
    subject
        To what, such as the job's name.
    outcome
        ``done`` or ``refused``.
    """

    number: NonNegativeInt
    at: NonNegativeFloat
    token: str | None
    action: str
    subject: str
    outcome: Literal["done", "refused"]


class AuditList(Returned):
    """Some entries of the audit record.

    Attributes
    ----------
    entries
        In the order they happened.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    entries: list[AuditEntry]
    next_after: NonNegativeInt | None
