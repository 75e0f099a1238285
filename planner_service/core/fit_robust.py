"""Non-negative least squares of relative errors that outliers do not pull: exact in each round, deterministic.

A time's error counts relative to the predicted time, so that short micro-batches weigh as much as long ones. From a
fit of least absolute errors, rounds of reweighted least squares follow: errors beyond ``HUBER`` times the scatter lose
weight (Huber, 1964), gross ones have none. The scatter is the median absolute error over 0.6745, as of normal noise.
Each round's problem has at most four unknowns and is solved over every set of them held at zero, which is exact.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from planner_service.core.problem import Floats

Flags = npt.NDArray[np.bool_]

HUBER = 1.345
"""Errors of so many times the scatter begin to lose weight; 95 % efficient under normal noise (Huber, 1964)."""

GROSS_SCATTERS = 6.0
GROSS_RATIO = 1.5
"""A gross outlier is off by both: ``GROSS_SCATTERS`` times the scatter, and this factor up or down."""

LEAST_SCATTER = 0.005
"""Scatter is never taken to be less (relative): clocks and machines are not more even than that."""

ROUNDS = 40
_SETTLED = 1e-7
_LEAST_SHARE = 1e-12


@dataclass(frozen=True)
class RobustFit:
    """A fit of ``design @ coefficients`` to times.

    Attributes
    ----------
    coefficients, unconstrained
        Non-negative ones, and those that the same weights give without that rule. Shape (K,).
    covariance
        Of the unconstrained coefficients, from scatter and weights. Shape (K, K).
    scatter
        Relative scatter of the times that are not gross outliers.
    is_outlier
        Gross outliers, which have no weight. Shape (N,).
    """

    coefficients: Floats
    unconstrained: Floats
    covariance: Floats
    scatter: float
    is_outlier: Flags

    @property
    def standard_errors(self) -> Floats:
        """Standard errors of the unconstrained coefficients. Shape (K,)."""
        errors: Floats = np.sqrt(np.diag(self.covariance))
        return errors


def fit_robustly(design: Floats, times: Floats, weights: Floats | None = None) -> RobustFit:
    """Fit non-negative coefficients to positive times.

    Parameters
    ----------
    design
        What each coefficient is multiplied with, not negative. Shape (N, K) with K up to 4.
    times
        Measured times (ms). Shape (N,).
    weights
        How much each sample counts; all the same if not given. Shape (N,).
    """
    own = np.ones(len(times)) if weights is None else weights
    scale = np.maximum(design.max(axis=0), 1e-300)
    scaled = design / scale
    found = _least_absolute(scaled, times, own)
    scatter, is_outlier, factors = 0.0, np.zeros(len(times), bool), own
    for _ in range(ROUNDS):
        predicted = _predicted(scaled, found, times)
        errors = times / predicted - 1.0
        scatter, is_outlier, factors = _weigh(errors, own, scaled.shape[1])
        before, found = found, _non_negative(scaled / predicted[:, None], times / predicted, factors)
        if np.allclose(found, before, rtol=_SETTLED, atol=0):
            break
    predicted = _predicted(scaled, found, times)
    rows = scaled / predicted[:, None] * np.sqrt(factors)[:, None]
    free = np.linalg.lstsq(rows, times / predicted * np.sqrt(factors), rcond=None)[0]
    covariance = scatter**2 * _inverse(rows.T @ rows)
    return RobustFit(found / scale, free / scale, covariance / np.outer(scale, scale), scatter, is_outlier)


def _least_absolute(scaled: Floats, times: Floats, own: Floats) -> Floats:
    """Come near the fit of least absolute relative errors, by reweighting; gross outliers hardly count in it."""
    found = _non_negative(scaled / times[:, None], np.ones(len(times)), own)
    for step in range(ROUNDS):
        # Relative to the larger of the two times, an error is below 1 in whichever direction a sample is off.
        predicted = np.maximum(_predicted(scaled, found, times), times if step < ROUNDS // 4 else 0.0)
        errors = np.abs(times - scaled @ found) / predicted
        weights = own / np.maximum(errors, LEAST_SCATTER)
        before, found = found, _non_negative(scaled / predicted[:, None], times / predicted, weights)
        if step > ROUNDS // 4 and np.allclose(found, before, rtol=1e-3, atol=0):
            break
    return found


def _predicted(scaled: Floats, coefficients: Floats, times: Floats) -> Floats:
    """Predict times, kept from zero where coefficients are."""
    return np.asarray(np.maximum(scaled @ coefficients, 1e-6 * times))


def _weigh(errors: Floats, own: Floats, num_unknown: int) -> tuple[float, Flags, Floats]:
    """Return the scatter, which samples are gross outliers, and what each sample counts."""
    sizes = np.abs(errors)
    freedom = len(sizes) / max(1.0, len(sizes) - num_unknown)
    scatter = max(LEAST_SCATTER, float(np.median(sizes)) / 0.6745 * np.sqrt(freedom))
    ratios = np.abs(np.log(np.maximum(1.0 + errors, 1e-300)))
    is_outlier: Flags = ratios > max(np.log(GROSS_RATIO), GROSS_SCATTERS * scatter)
    return scatter, is_outlier, own * np.minimum(1.0, HUBER * scatter / np.maximum(sizes, 1e-300)) * ~is_outlier


def _non_negative(rows: Floats, target: Floats, weights: Floats) -> Floats:
    """Solve weighted least squares over every set of coefficients held at zero."""
    roots = np.sqrt(weights)
    # The triangle has all that the rows say, in as many rows as there are columns.
    triangle = np.asarray(np.linalg.qr(np.column_stack([rows, target]) * roots[:, None], mode="r"), float)
    design, aim = triangle[:, :-1], triangle[:, -1]
    columns = design.shape[1]
    everything: Floats = np.linalg.lstsq(design, aim, rcond=None)[0]
    if (everything >= 0).all():
        return everything
    best, best_error = np.zeros(columns), float(aim @ aim)
    for size in range(1, columns):
        for free in map(list, combinations(range(columns), size)):
            part = np.linalg.lstsq(design[:, free], aim, rcond=None)[0]
            if (part < 0).any():
                continue
            error = float(((design[:, free] @ part - aim) ** 2).sum())
            if error < best_error * (1 - 1e-12):
                best_error = error
                best = np.zeros(columns)
                best[free] = part
    return best


def _inverse(gram: Floats) -> Floats:
    """Invert a matrix of normal equations; directions that no sample tells anything about get a huge variance."""
    scale = np.sqrt(np.maximum(np.diag(gram), 1e-300))
    values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
    inverse: Floats = (vectors / np.maximum(values, _LEAST_SHARE)) @ vectors.T / np.outer(scale, scale)
    return inverse
