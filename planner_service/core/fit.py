"""Fit the cost model ``t = c + sum (a s^2 + b s)`` to measured micro-batches, and judge it on samples it never saw."""

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from planner_service.core.fit_robust import Flags, RobustFit, fit_robustly
from planner_service.core.problem import Floats, Ints

NUM_FOLDS = 4
"""The samples are divided into so many folds, each of which is predicted from a fit to the others."""

FEWEST_PACKINGS = 2 * NUM_FOLDS
"""Different micro-batches that are needed, two for each fold; with fewer, nothing is held out."""


@dataclass(frozen=True)
class Samples:
    """Measured micro-batches of one layout.

    Attributes
    ----------
    squares, tokens
        Sums of squared lengths and of lengths of each micro-batch. Shape (N,).
    longest, shortest
        Longest and shortest sequence of each (tokens). Shape (N,).
    times
        Measured times (ms), positive. Shape (N,).
    """

    squares: Floats
    tokens: Floats
    longest: Floats
    shortest: Floats
    times: Floats

    @classmethod
    def of(cls, samples: Sequence[tuple[Sequence[int], float]]) -> "Samples":
        """Take (lengths in tokens, time in ms) samples."""
        return cls(
            squares=np.array([float(sum(length * length for length in lengths)) for lengths, _ in samples]),
            tokens=np.array([float(sum(lengths)) for lengths, _ in samples]),
            longest=np.array([float(max(lengths)) for lengths, _ in samples]),
            shortest=np.array([float(min(lengths)) for lengths, _ in samples]),
            times=np.array([time for _, time in samples], float),
        )

    def where(self, chosen: Flags) -> "Samples":
        """Return the chosen samples. Shape of ``chosen``: (N,)."""
        return Samples(*(getattr(self, field.name)[chosen] for field in fields(self)))

    @property
    def design(self) -> Floats:
        """What ``a``, ``b`` and ``c`` are multiplied with. Shape (N, 3)."""
        return np.column_stack([self.squares, self.tokens, np.ones(len(self.times))])

    @property
    def packing(self) -> Ints:
        """Number of each sample's packing: samples that the model cannot tell apart share one. Shape (N,)."""
        _, numbers = np.unique(np.column_stack([self.tokens, self.squares]), axis=0, return_inverse=True)
        return np.asarray(numbers, np.int64).reshape(-1)


@dataclass(frozen=True)
class Errors:
    """Errors of predictions: ``r2`` is of the times in ms, the others are absolute and in percent of the measured."""

    num_samples: int
    r2: float
    median_abs_pct_error: float
    worst_abs_pct_error: float

    @classmethod
    def of(cls, predicted: Floats, times: Floats) -> "Errors":
        """Compare predicted with measured times (ms). Shape (N,) each, N at least 1."""
        spread = float(((times - times.mean()) ** 2).sum())
        residual = float(((times - predicted) ** 2).sum())
        percent = np.abs(predicted / times - 1.0) * 100.0
        return cls(
            num_samples=len(times),
            r2=1.0 - residual / spread if spread > 0 else (1.0 if residual <= 0 else 0.0),
            median_abs_pct_error=float(np.median(percent)),
            worst_abs_pct_error=float(percent.max()),
        )


@dataclass(frozen=True)
class FittedCost:
    """Coefficients ``a`` (ms per token squared), ``b`` (ms per token) and ``c`` (ms), and how well they explain.

    Attributes
    ----------
    a, b, c
        The coefficients, not negative.
    errors
        On the samples fitted to, without outliers.
    held_out
        On samples not fitted to, without outliers; None if there are too few.
    robust
        The fit itself: standard errors, scatter, and which samples are outliers.
    """

    a: float
    b: float
    c: float
    errors: Errors
    held_out: Errors | None
    robust: RobustFit

    @property
    def is_outlier(self) -> Flags:
        """Which of the samples are far off what the others say. Shape (N,)."""
        return self.robust.is_outlier


def fit_cost(samples: Sequence[tuple[Sequence[int], float]]) -> FittedCost:
    """Fit ``t = c + sum (a s^2 + b s)`` to (lengths in tokens, time in ms) samples.

    Errors count relative to the time, so that short micro-batches weigh as much as long ones, and outliers do not count
    (see `planner_service.core.fit_robust`). Coefficients are not allowed below zero: a cost that falls with length
    would break the bounds.

    Parameters
    ----------
    samples
        Measured micro-batches of one layout; at least three.
    """
    return fit_samples(Samples.of(samples))


def fit_samples(samples: Samples) -> FittedCost:
    """Fit the cost model to samples; see `fit_cost`."""
    design, times = samples.design, samples.times
    robust = fit_robustly(design, times)
    kept = ~robust.is_outlier
    if not kept.any():  # a handful of samples that contradict one another
        kept = np.ones(len(times), bool)
    a, b, c = (float(value) for value in robust.coefficients)
    return FittedCost(
        a=a,
        b=b,
        c=c,
        errors=Errors.of((design @ robust.coefficients)[kept], times[kept]),
        held_out=_held_out(design, times, samples.packing, kept),
        robust=robust,
    )


def _held_out(design: Floats, times: Floats, packing: Ints, kept: Flags) -> Errors | None:
    """Predict each fold from a fit to the others.

    Folds take packings by turns in the order of their tokens, so that each spans the measured sizes; repeats of one
    packing share a fold, so that no sample is predicted from a twin.
    """
    if packing.max() + 1 < FEWEST_PACKINGS:
        return None
    predicted = np.empty(len(times))
    for fold in range(NUM_FOLDS):
        is_held = packing % NUM_FOLDS == fold
        found = fit_robustly(design[~is_held], times[~is_held])
        predicted[is_held] = design[is_held] @ found.coefficients
    return Errors.of(predicted[kept], times[kept])
