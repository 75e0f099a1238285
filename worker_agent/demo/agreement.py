"""How far two losses that ought to be equal lie apart, and how far they may. Pure."""

import math

MODES_TOLERANCE = 1e-3
"""Largest relative difference of the two modes' losses: fp32 sums in another order, fed through an optimizer."""

CHANGING_TOLERANCE = 1e-5
"""Largest relative difference of the loss of changing strategies to that of one process alone.

The same causes over a few iterations only: up to 2e-9 has been seen.
"""


def relative_difference(one: float, other: float) -> float:
    """Return ``|one - other|`` over the larger magnitude; infinite where either is not a number."""
    if not (math.isfinite(one) and math.isfinite(other)):
        return math.inf
    scale = max(abs(one), abs(other))
    return abs(one - other) / scale if scale else 0.0
