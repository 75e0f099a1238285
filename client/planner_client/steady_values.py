"""What a steady planner is told, and what it tells."""

from dataclasses import dataclass, field
from typing import Literal

from planner_client.breaker import BreakerPolicy, BreakerState
from planner_client.contract import Plan
from planner_client.waits import positive

Origin = Literal["service", "fallback"]


@dataclass(frozen=True)
class SteadyPlan:
    """What an iteration runs by.

    Attributes
    ----------
    plan
        The plan.
    origin
        Who made it: the ``service``, or this client as a ``fallback``.
    waited_ms
        How long the caller that decided it was kept waiting.
    reason
        Why it is a fallback; None if it is not.
    """

    plan: Plan
    origin: Origin
    waited_ms: float
    reason: str | None = None


@dataclass(frozen=True)
class SteadyCounts:
    """What happened so far.

    Attributes
    ----------
    num_service, num_fallback
        Iterations decided by the service's plan, and by a fallback.
    num_late
        Plans of the service that came after their iteration was decided.
    num_timings_sent, num_timings_dropped
        Measured times that the service took, and that were given up.
    breaker
        Whether the service is waited for (``closed``) or not.
    """

    num_service: int
    num_fallback: int
    num_late: int
    num_timings_sent: int
    num_timings_dropped: int
    breaker: BreakerState


@dataclass(frozen=True)
class SteadySettings:
    """How patient a steady planner is.

    Attributes
    ----------
    deadline_s
        Most time that taking a plan keeps its caller waiting.
    window
        Iterations that may be announced and not yet taken.
    ask_timeout_s
        Time for one request to the planner, all tries together; its own deadline and 15 s if None. It may be longer
        than ``deadline_s``, since plans are asked for ahead of time.
    max_timings_waiting
        Measured times that wait for the planner to take them.
    breaker
        When the planner is waited for no longer, and tried again.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    deadline_s: float = 10.0
    window: int = 4
    ask_timeout_s: float | None = None
    max_timings_waiting: int = 256
    breaker: BreakerPolicy = field(default_factory=BreakerPolicy)

    def __post_init__(self) -> None:
        for name, seconds in {"deadline_s": self.deadline_s, "ask_timeout_s": self.ask_timeout_s}.items():
            if seconds is not None:
                positive(name, seconds)
        for name, number in {"window": self.window, "max_timings_waiting": self.max_timings_waiting}.items():
            if number < 1:
                raise ValueError(f"{name} is {number}; give 1 or more")
