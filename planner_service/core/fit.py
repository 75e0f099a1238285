"""Fit the cost model to measured micro-batches: non-negative least squares of relative errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from planner_service.core.problem import Floats


@dataclass(frozen=True)
class FittedCost:
    """Coefficients ``a`` (ms per token squared), ``b`` (ms per token) and ``c`` (ms), and how well they explain.

    ``r2`` is of the times in ms; ``median_abs_pct_error`` is in percent.
    """

    a: float
    b: float
    c: float
    r2: float
    median_abs_pct_error: float


def _non_negative_least_squares(design: Floats, target: Floats) -> Floats:
    """Solve over every set of coefficients held at zero; with three of them that is exact and cheap."""
    columns = design.shape[1]
    best, best_error = np.zeros(columns), float(target @ target)
    for size in range(1, columns + 1):
        for free in combinations(range(columns), size):
            part, *_ = np.linalg.lstsq(design[:, free], target, rcond=None)
            if (part < 0).any():
                continue
            error = float(((design[:, free] @ part - target) ** 2).sum())
            if error < best_error * (1 - 1e-12):
                best_error = error
                best = np.zeros(columns)
                best[list(free)] = part
    return best


def fit_cost(samples: Sequence[tuple[Sequence[int], float]]) -> FittedCost:
    """Fit ``t = c + sum (a s^2 + b s)`` to (lengths in tokens, time in ms) samples.

    Errors count relative to the measured time, so that short micro-batches weigh as much as long ones. Coefficients are
    not allowed below zero: a cost that falls with length would break the bounds.

    Parameters
    ----------
    samples
        Measured micro-batches of one layout; at least three.
    """
    times = np.array([time for _, time in samples], float)
    design = np.array([[sum(s * s for s in lengths), sum(lengths), 1.0] for lengths, _ in samples], float)
    scale = np.maximum(design.max(axis=0), 1e-300)
    relative = design / scale / times[:, None]
    coefficients = _non_negative_least_squares(relative, np.ones(len(times))) / scale
    predicted = design @ coefficients
    spread = float(((times - times.mean()) ** 2).sum())
    residual = float(((times - predicted) ** 2).sum())
    return FittedCost(
        a=float(coefficients[0]),
        b=float(coefficients[1]),
        c=float(coefficients[2]),
        r2=1.0 - residual / spread if spread > 0 else (1.0 if residual <= 0 else 0.0),
        median_abs_pct_error=float(np.median(np.abs(predicted / times - 1.0)) * 100.0),
    )
