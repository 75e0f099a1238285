"""Faults: RFC 9457 problem documents with stable codes and the numbers that explain them."""

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict

from planner_client.contract.described import Described

PROBLEM_MEDIA_TYPE = "application/problem+json"


class FaultCode(StrEnum):
    """Stable names of what can go wrong; callers branch on these, never on the wording."""

    INVALID_REQUEST = "invalid-request"
    UNKNOWN_PROFILE = "unknown-profile"
    PROFILE_CONFLICT = "profile-conflict"
    PROFILE_UNUSABLE = "profile-unusable"
    UNKNOWN_LAYOUT = "unknown-layout"
    LAYOUT_WITHOUT_MEMORY = "layout-without-memory"
    STRATEGY_TOO_LARGE = "strategy-too-large"
    SEQUENCE_TOO_LONG = "sequence-too-long"
    BATCH_TOO_LARGE = "batch-too-large"
    OPTIMIZER_LAYOUT_MISMATCH = "optimizer-layout-mismatch"
    NO_USABLE_STRATEGY = "no-usable-strategy"
    CONSTRAINT_INFEASIBLE = "constraint-infeasible"
    BODY_TOO_LARGE = "body-too-large"
    NOT_FOUND = "not-found"
    METHOD_NOT_ALLOWED = "method-not-allowed"
    UNKNOWN_JOB = "unknown-job"
    JOB_CONFLICT = "job-conflict"
    UNKNOWN_SOURCE = "unknown-source"
    BATCH_CONFLICT = "batch-conflict"
    ITERATION_CLOSED = "iteration-closed"
    SOURCES_MISSING = "sources-missing"
    PLAN_TOO_LATE = "plan-too-late"
    PLAN_MISMATCH = "plan-mismatch"
    PROFILE_IN_USE = "profile-in-use"
    PLAN_IN_USE = "plan-in-use"
    TOKEN_CONFLICT = "token-conflict"  # noqa: S105 - a fault's name
    UNAUTHENTICATED = "unauthenticated"
    TOKEN_EXPIRED = "token-expired"  # noqa: S105 - a fault's name
    FORBIDDEN = "forbidden"
    OVERLOADED = "overloaded"
    DEADLINE_EXCEEDED = "deadline-exceeded"
    SHUTTING_DOWN = "shutting-down"
    NOT_READY = "not-ready"
    STORE_UNAVAILABLE = "store-unavailable"
    INTERNAL = "internal"


class Problem(Described):
    """A problem document. Extra members hold the numbers that explain the fault, such as ``length`` and ``limit``.

    Attributes
    ----------
    type
        ``urn:hydraulis:problem:`` and the code.
    title
        The HTTP status in words.
    status
        The HTTP status.
    detail
        What is wrong, in one sentence with the value and the limit.
    code
        Stable name of the fault; the one thing to branch on.
    remedy
        What to change.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str = ""

    @property
    def numbers(self) -> dict[str, Any]:
        """The extra members."""
        return dict(self.__pydantic_extra__ or {})
