"""A figure of many things as a few points: mean, lowest and highest of neighbours."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from planner_client.contract import Spread

DECIMALS = 6
"""More would tell nobody anything, and make answers twice as long."""

Starts = NDArray[np.intp]
"""Where each point begins in a row of values; ascending, the first at 0."""


def even_starts(num_values: int, max_points: int) -> Starts:
    """Share values out among points, neighbours together, as many for each as are needed.

    Parameters
    ----------
    num_values
        Values in the row.
    max_points
        Most points; at least 1.
    """
    size = max(1, -(-num_values // max_points))
    return np.arange(0, num_values, size, dtype=np.intp)


def numbered_starts(numbers: Sequence[int], max_points: int) -> Starts:
    """Share out what is numbered, in ascending order, so that points keep their bounds while numbers are added.

    Points hold the same round number of consecutive numbers each. Where numbers lie too far apart for that, they hold
    about equally many.
    """
    if not numbers:
        return np.arange(0, dtype=np.intp)
    span = numbers[-1] - numbers[0] + 1
    if span > 4 * len(numbers):
        return even_starts(len(numbers), max_points)
    # One less, for the first and the last point may both be cut short.
    width = _round_width(-(-span // max(1, max_points - 1)))
    points = np.asarray(numbers, dtype=np.int64) // width
    return np.concatenate([[0], np.flatnonzero(np.diff(points)) + 1]).astype(np.intp)


def _round_width(least: int) -> int:
    """Return the smallest of 1, 2, 5, 10, 20, 50, ... that is not below ``least``."""
    width = 1
    while width < least:
        width = width * 5 // 2 if str(width).startswith("2") else width * 2
    return width


def spread_of(values: Sequence[float | None], starts: Starts) -> Spread:
    """Return the figure point by point.

    Parameters
    ----------
    values
        One of each thing; None where it has none.
    starts
        Where each point begins.
    """
    if not len(starts):
        return Spread(mean=[], lowest=[], highest=[])
    known = np.asarray([np.nan if value is None else value for value in values], dtype=np.float64)
    is_known = ~np.isnan(known)
    num_known = np.add.reduceat(is_known.astype(np.int64), starts)
    totals = np.add.reduceat(np.where(is_known, known, 0.0), starts)
    means = np.divide(totals, num_known, out=np.full(len(starts), np.nan), where=num_known > 0)
    return Spread(
        mean=_listed(means),
        lowest=_listed(np.fmin.reduceat(known, starts)),
        highest=_listed(np.fmax.reduceat(known, starts)),
    )


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), DECIMALS) for value in values]
