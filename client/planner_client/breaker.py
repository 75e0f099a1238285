"""When a planner that does not answer is waited for no longer, and when it is tried again: pure.

::

    closed --(max_failures in a row)--> open --(its pause is over)--> half-open
       ^                                 ^ '-(pauses double)-------------'  |
       '-----------------(the probe succeeds)-------------------------------'

While it is *closed* every answer is waited for. While it is *open* nothing is asked. Once its pause is over, one
request goes out as a *probe*, which nobody waits for, and until that is settled nothing else is asked.

Every request gets a ticket, and its outcome comes back with it. Failures of requests that went out before the last
change of state say nothing new and are ignored.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Literal

BreakerState = Literal["closed", "open", "half-open"]


class Permission(StrEnum):
    """What becomes of a request: it goes out and is waited for, goes out as a probe, or does not go out."""

    ASK = "ask"
    PROBE = "probe"
    NO = "no"


@dataclass(frozen=True)
class BreakerPolicy:
    """When to stop waiting and when to try again.

    Attributes
    ----------
    max_failures
        Failures in a row that open it.
    first_pause_s, max_pause_s
        Time from opening to the first probe; it doubles with each probe that fails, up to the limit.

    Raises
    ------
    ValueError
        If a number is below its least, or the limit below the first pause.
    """

    max_failures: int = 3
    first_pause_s: float = 1.0
    max_pause_s: float = 30.0

    def __post_init__(self) -> None:
        if self.max_failures < 1:
            raise ValueError(f"max_failures is {self.max_failures}; give 1 or more")
        if not 0 < self.first_pause_s <= self.max_pause_s:
            raise ValueError(
                f"first_pause_s is {self.first_pause_s} and max_pause_s {self.max_pause_s}; give 0 < first <= max"
            )


@dataclass(frozen=True)
class Ticket:
    """What a request may do, and in which period of the breaker it went out."""

    permission: Permission
    period: int


@dataclass(frozen=True)
class Breaker:
    """The state of a circuit breaker; every method returns the next one. Times are monotonic seconds.

    Attributes
    ----------
    policy
        When it opens and how long its pauses are.
    state
        ``closed``, ``open`` or ``half-open``.
    num_failures
        Failures in a row while closed.
    pause_s
        Length of the last pause; 0 while closed.
    probe_at
        When a probe may go out, while open.
    period
        Counts the changes of state.
    """

    policy: BreakerPolicy = field(default_factory=BreakerPolicy)
    state: BreakerState = "closed"
    num_failures: int = 0
    pause_s: float = 0.0
    probe_at: float = 0.0
    period: int = 0

    def admit(self, now: float) -> tuple["Breaker", Ticket]:
        """Decide about the next request."""
        if self.state == "closed":
            return self, Ticket(Permission.ASK, self.period)
        if self.state == "open" and now >= self.probe_at:
            probing = replace(self, state="half-open", period=self.period + 1)
            return probing, Ticket(Permission.PROBE, probing.period)
        return self, Ticket(Permission.NO, self.period)

    def succeeded(self, ticket: Ticket) -> "Breaker":
        """Take in that a request was answered in time."""
        if self.state == "closed":
            return replace(self, num_failures=0) if ticket.period == self.period else self
        if ticket.permission is Permission.NO:
            return self
        return replace(self, state="closed", num_failures=0, pause_s=0.0, probe_at=0.0, period=self.period + 1)

    def failed(self, ticket: Ticket, now: float, retry_after_s: float | None = None) -> "Breaker":
        """Take in that a request was not answered in time; ``retry_after_s`` is when the planner asked to come again.

        However long the planner asks for, a pause stays within the policy's limit.
        """
        if ticket.period != self.period or ticket.permission is Permission.NO or self.state == "open":
            return self
        if self.state == "closed" and self.num_failures + 1 < self.policy.max_failures:
            return replace(self, num_failures=self.num_failures + 1)
        doubled = self.policy.first_pause_s if self.state == "closed" else 2 * self.pause_s
        pause_s = min(self.policy.max_pause_s, max(doubled, retry_after_s or 0.0))
        return replace(
            self, state="open", num_failures=0, pause_s=pause_s, probe_at=now + pause_s, period=self.period + 1
        )

    def abandoned(self, ticket: Ticket, now: float) -> "Breaker":
        """Take in that a probe did not go out after all, so that another one may."""
        if self.state != "half-open" or ticket.period != self.period:
            return self
        return replace(self, state="open", probe_at=now, period=self.period + 1)
