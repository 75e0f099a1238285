"""May this token do that? A pure decision."""

from dataclasses import dataclass, field
from typing import Literal, get_args

from planner_client.contract import FaultCode, Scope
from planner_client.contract.wording import first_few
from planner_service.store.access_store import TokenRow

Reach = Literal["job", "any", "all"]
"""What a request touches: one ``job``; what is offered to ``any`` token of the right scope, whatever its jobs; or what
belongs to ``all``, which a token for some jobs alone must not touch."""

_RANK: dict[str, int] = {scope: rank for rank, scope in enumerate(get_args(Scope))}
_HOLDERS = {
    "read": "a token with scope read, plan or admin",
    "plan": "a token with scope plan or admin",
    "admin": "a token with scope admin",
}


@dataclass(frozen=True)
class Need:
    """What a request asks of its token.

    Attributes
    ----------
    scope
        The least scope that will do.
    reach
        See `Reach`.
    job
        The job's name where the reach is ``job``; None otherwise.
    """

    scope: Scope
    reach: Reach = "all"
    job: str | None = None

    def __post_init__(self) -> None:
        if (self.reach == "job") != (self.job is not None):
            raise ValueError(f"reach {self.reach!r} with job {self.job!r}; a job goes with reach 'job' and no other")


@dataclass(frozen=True)
class Caller:
    """On whose behalf a request is served.

    Attributes
    ----------
    name
        The token's name; None where no token was asked for.
    scope
        What the caller may do.
    jobs
        Patterns of the jobs it is good for; None for all.
    """

    name: str | None
    scope: str
    jobs: tuple[str, ...] | None = field(default=None)

    def reaches(self, job: str) -> bool:
        """Tell whether the caller may touch a job of this name."""
        return self.jobs is None or any(matches(pattern, job) for pattern in self.jobs)


ANYBODY = Caller(None, "admin")
"""Whoever calls a service that asks for no tokens."""

NOBODY = Caller(None, "none", ())
"""Whoever calls what is open without a token, on a service that asks for them."""


@dataclass(frozen=True)
class Allowed:
    """Go ahead."""

    caller: Caller


@dataclass(frozen=True)
class Refused:
    """Answer this instead.

    Attributes
    ----------
    code
        ``unauthenticated``, ``token-expired`` or ``forbidden``.
    detail, remedy
        What is wrong and what to change; neither holds anything secret.
    token
        Name of the token that was refused; None without a valid one.
    """

    code: FaultCode
    detail: str
    remedy: str
    token: str | None = None


def matches(pattern: str, job: str) -> bool:
    """Tell whether a job's name is the pattern, or begins with what stands before the pattern's ``*``."""
    return job.startswith(pattern[:-1]) if pattern.endswith("*") else job == pattern


def decide(token: TokenRow | None, need: Need) -> Allowed | Refused:
    """Decide whether the holder of a token may have what it asks for.

    Parameters
    ----------
    token
        The token as it is stored; None if what was sent is none.
    need
        What is asked for.
    """
    if token is None:
        return Refused(
            FaultCode.UNAUTHENTICATED,
            "the token sent is not known here; it may have been revoked",
            "send a token that is valid as 'Authorization: Bearer ...'",
        )
    if token.is_expired:
        return Refused(
            FaultCode.TOKEN_EXPIRED,
            f"token {token.name} has expired",
            "send one that is valid; an administrator gives another one under a new name",
            token.name,
        )
    # A scope this version does not know holds nothing: what it was meant to allow cannot be told.
    if _RANK.get(token.scope, -1) < _RANK[need.scope]:
        return Refused(
            FaultCode.FORBIDDEN,
            f"token {token.name} has scope {token.scope}, and this needs {need.scope}",
            f"use {_HOLDERS[need.scope]}",
            token.name,
        )
    caller = Caller(token.name, token.scope, token.jobs)
    if need.reach == "all" and caller.jobs is not None:
        return Refused(
            FaultCode.FORBIDDEN,
            f"token {token.name} is good for some jobs only, and this concerns all of them",
            "use a token that is good for all jobs",
            token.name,
        )
    if need.job is not None and not caller.reaches(need.job):
        return Refused(
            FaultCode.FORBIDDEN,
            f"token {token.name} is not good for job {need.job[:128]!r}",
            f"use a token for this job; this one is good for {first_few(caller.jobs or ())}",
            token.name,
        )
    return Allowed(caller)
