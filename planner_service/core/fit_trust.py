"""When a fit should not be trusted: each reason as a sentence that says what to measure."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner_service.core.fit import FEWEST_PACKINGS, FittedCost, Samples
from planner_service.core.problem import Floats

FEWEST_LENGTHS = 4
"""Different lengths that should be measured: three coefficients, and one more to see whether they explain it."""

MOST_HELD_OUT_MEDIAN_PCT = 10.0
MOST_HELD_OUT_WORST_PCT = 30.0

MOST_COEFFICIENT_ERROR = 0.1
"""A coefficient whose standard error is a larger share of it is not told from the others ..."""

LEAST_EFFECT = 0.03
"""... which matters if that error is at least this share of the time of some micro-batch that may be planned."""

MOST_OUTLIERS = 0.05
MOST_BEYOND_TOKENS = 1.25
MOST_BEYOND_LENGTH = 2.0
"""A limit over so many times the largest micro-batch, or the longest sequence, measured is worth a warning."""

AT_BOUND_EFFECT = 0.01
"""A coefficient held at 0 matters if without that rule some measured time would change by more than this share."""

_COEFFICIENTS = ("a (ms per token squared)", "b (ms per token)", "c (ms)")
_MEASURE = (
    "single sequences from short to long",
    "micro-batches filled with many short sequences",
    "micro-batches of very few tokens",
)


@dataclass(frozen=True)
class Evidence:
    """What a fit of one layout rests on.

    Attributes
    ----------
    fitted
        The fit.
    samples
        The samples fitted to.
    num_marked
        Samples that were marked as outliers beforehand.
    max_tokens
        The limit of a micro-batch; None if a memory model gives it later.
    """

    fitted: FittedCost
    samples: Samples
    num_marked: int
    max_tokens: int | None


def warnings_of(evidence: Evidence) -> list[str]:
    """Say why a fit should not be trusted; nothing if no reason is seen."""
    reasons = (_too_few, _not_told_apart, _at_bound, _wrong_where_held_out, _outliers, _extrapolated)
    return [sentence for reason in reasons for sentence in reason(evidence)]


def _too_few(evidence: Evidence) -> Iterator[str]:
    samples = evidence.samples
    num_lengths = len(np.unique(np.concatenate([samples.longest, samples.shortest])))
    if num_lengths < FEWEST_LENGTHS:
        yield (
            f"the samples are of {num_lengths} different sequence lengths; measure {FEWEST_LENGTHS} or more, from the "
            "shortest to the longest that is to be planned"
        )
    if evidence.fitted.held_out is None:
        num_packings = int(samples.packing.max()) + 1
        yield f"{num_packings} different micro-batches are too few to hold some out; measure {FEWEST_PACKINGS} or more"


def _corners(evidence: Evidence) -> Floats:
    """Return the micro-batches at the ends of what may be planned, as rows (sum of squares, tokens, 1)."""
    samples = evidence.samples
    shortest, longest = float(samples.shortest.min()), float(samples.longest.max())
    most = float(samples.tokens.max())
    rows = [(shortest**2, shortest), (longest**2, longest), (most * shortest, most), (most * longest, most)]
    if evidence.max_tokens is not None:  # one sequence may fill it
        rows.append((float(evidence.max_tokens) ** 2, float(evidence.max_tokens)))
    return np.array([(squares, tokens, 1.0) for squares, tokens in rows])


def _not_told_apart(evidence: Evidence) -> Iterator[str]:
    fitted, corners = evidence.fitted, _corners(evidence)
    predicted = np.maximum(corners @ fitted.robust.coefficients, 1e-300)
    errors = fitted.robust.standard_errors
    effects = (corners * errors / predicted[:, None]).max(axis=0)
    for index, (value, error) in enumerate(zip(fitted.robust.coefficients, errors, strict=True)):
        if error > MOST_COEFFICIENT_ERROR * value and effects[index] > LEAST_EFFECT:
            yield (
                f"the samples leave {_COEFFICIENTS[index]} open: {value:.3g} with a standard error of {error:.2g}, "
                f"which is {min(9.99, effects[index]):.0%} of the time of micro-batches that may be planned; "
                f"measure more {_MEASURE[index]}"
            )


def _at_bound(evidence: Evidence) -> Iterator[str]:
    robust, design = evidence.fitted.robust, evidence.samples.design
    for index, value in enumerate(robust.coefficients):
        free = robust.unconstrained[index]
        effect = float((design[:, index] * -free / evidence.samples.times).max())
        if value <= 0 and free < 0 and effect > AT_BOUND_EFFECT:
            yield (
                f"{_COEFFICIENTS[index]} is held at 0, its bound: the samples would have {free:.3g}, so they do not "
                f"follow the cost model; measure more {_MEASURE[index]}, on a quiet machine"
            )


def _wrong_where_held_out(evidence: Evidence) -> Iterator[str]:
    held_out = evidence.fitted.held_out
    if held_out is None:
        return
    if held_out.median_abs_pct_error > MOST_HELD_OUT_MEDIAN_PCT:
        yield (
            f"times of samples that were held out are off by {held_out.median_abs_pct_error:.1f}% in the median, over "
            f"{MOST_HELD_OUT_MEDIAN_PCT:.0f}%; measure on a quiet machine and with more repeats"
        )
    if held_out.worst_abs_pct_error > MOST_HELD_OUT_WORST_PCT:
        yield (
            f"the time of one sample that was held out is off by {held_out.worst_abs_pct_error:.0f}%, over "
            f"{MOST_HELD_OUT_WORST_PCT:.0f}%; look at the plot for where the cost model does not hold"
        )


def _outliers(evidence: Evidence) -> Iterator[str]:
    num_found = int(evidence.fitted.is_outlier.sum())
    num_samples = len(evidence.samples.times) + evidence.num_marked
    num_outliers = num_found + evidence.num_marked
    if num_outliers > max(1.0, MOST_OUTLIERS * num_samples):
        yield (
            f"{num_outliers} of {num_samples} samples are outliers ({evidence.num_marked} marked by who measured, "
            f"{num_found} far off the fit), over {MOST_OUTLIERS:.0%}; measure on a quiet machine"
        )


def _extrapolated(evidence: Evidence) -> Iterator[str]:
    limit = evidence.max_tokens
    if limit is None:
        return
    largest, longest = int(evidence.samples.tokens.max()), int(evidence.samples.longest.max())
    if limit > MOST_BEYOND_TOKENS * largest:
        yield (
            f"micro-batches may hold {limit:,} tokens but were measured up to {largest:,}; times beyond are "
            "extrapolated, so measure larger ones"
        )
    if limit > MOST_BEYOND_LENGTH * longest:
        yield (
            f"sequences may have {limit:,} tokens but were measured up to {longest:,}; times of longer ones are "
            "extrapolated, so measure longer ones"
        )
