"""How hard to search: a repeatable budget, and the wall clock as its guard."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """How hard to search.

    Attributes
    ----------
    deterministic_s
        CP-SAT's deterministic budget for the whole solve.
    remaining_ms
        Wall-clock time left; the search stops at 0.
    is_early
        Whether so little time has passed that plans need not be reported yet.
    """

    deterministic_s: float
    remaining_ms: Callable[[], float]
    is_early: Callable[[], bool] = lambda: False
