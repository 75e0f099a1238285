"""How good a fit is: errors, uncertainty, what was left out, and when not to trust it."""

from typing import Annotated

from pydantic import Field, StringConstraints

from planner_client.contract.scalars import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, Sent

MAX_FIT_POINTS = 40
"""Most samples that a fit keeps of one layout, for its plot."""

MAX_FIT_WARNINGS = 32

RSquared = Annotated[float, Field(le=1, allow_inf_nan=False)]
Sentence = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


def is_absent(value: object) -> bool:
    """Whether a field that came later says nothing, so that what was written before it keeps its bytes and digest."""
    return value is None or value is False or value == [] or (isinstance(value, int) and value == 0)


class HeldOut(Sent):
    """Errors on samples that the coefficients were not fitted to.

    The samples are divided into folds; each fold is predicted from a fit to the others. Outliers do not count.

    Attributes
    ----------
    num_samples
        Number of samples predicted.
    r2
        Coefficient of determination of the times in ms.
    median_abs_pct_error, worst_abs_pct_error
        Median and largest absolute error, in percent of the measured time.
    """

    num_samples: PositiveInt
    r2: RSquared
    median_abs_pct_error: NonNegativeFloat
    worst_abs_pct_error: NonNegativeFloat


class MemoryFit(Sent):
    """Memory of the fullest GPU, as an upper line through the samples: ``base_bytes + bytes_per_token * tokens``.

    Attributes
    ----------
    num_samples
        Number of samples with ``memory_bytes``.
    base_bytes
        Memory without any token.
    bytes_per_token
        Memory that each token of a micro-batch adds.
    measured_tokens
        Tokens of the largest micro-batch whose memory was measured.
    safety_share
        Share of the device's memory that the limit leaves free.
    """

    num_samples: PositiveInt
    base_bytes: NonNegativeFloat
    bytes_per_token: NonNegativeFloat
    measured_tokens: PositiveInt
    safety_share: Annotated[float, Field(ge=0, lt=1)]


class FitPoint(Sent):
    """One of the samples, kept to draw the fit beside it.

    Attributes
    ----------
    num_sequences
        Sequences of the micro-batch.
    num_tokens
        Their tokens in all.
    sum_squares
        Sum of their squared lengths.
    time_ms
        Measured time.
    is_outlier
        Whether it was left out of the fit, by who measured or by the fit.
    memory_bytes
        Measured memory of the fullest GPU.
    """

    num_sequences: PositiveInt
    num_tokens: PositiveInt
    sum_squares: NonNegativeFloat
    time_ms: PositiveFloat
    is_outlier: bool = Field(default=False, exclude_if=is_absent)
    memory_bytes: NonNegativeInt | None = Field(default=None, exclude_if=is_absent)


class StandardErrors(Sent):
    """How far the samples leave each coefficient open: standard errors, in the coefficient's own unit.

    Attributes
    ----------
    a_ms_per_token2, b_ms_per_token, c_ms
        Standard error of the coefficient of that name.
    """

    a_ms_per_token2: NonNegativeFloat
    b_ms_per_token: NonNegativeFloat
    c_ms: NonNegativeFloat


class Fit(Sent):
    """How well fitted coefficients explain the samples they were fitted on.

    Attributes
    ----------
    num_samples
        Number of samples, outliers included.
    r2
        Coefficient of determination, over the samples without outliers.
    median_abs_pct_error
        Median absolute error in percent of the measured time, over the samples without outliers.
    num_outliers
        Samples left out: those marked by who measured, and those the fit found to be far off.
    held_out
        Errors on samples that were not fitted to; absent where there are too few to set some aside.
    standard_errors
        How far the samples leave the coefficients open.
    memory
        The line that the limit comes from, where it was fitted to measured memory.
    warnings
        Why the fit should not be trusted, a sentence each; empty if nothing speaks against it.
    points
        Some of the samples, spread over all of them, to draw the fit beside.
    """

    num_samples: PositiveInt
    r2: RSquared
    median_abs_pct_error: NonNegativeFloat
    num_outliers: NonNegativeInt = Field(default=0, exclude_if=is_absent)
    held_out: HeldOut | None = Field(default=None, exclude_if=is_absent)
    standard_errors: StandardErrors | None = Field(default=None, exclude_if=is_absent)
    memory: MemoryFit | None = Field(default=None, exclude_if=is_absent)
    warnings: Annotated[list[Sentence], Field(max_length=MAX_FIT_WARNINGS)] = Field(
        default_factory=list, exclude_if=is_absent
    )
    points: Annotated[list[FitPoint], Field(max_length=MAX_FIT_POINTS)] = Field(
        default_factory=list, exclude_if=is_absent
    )
