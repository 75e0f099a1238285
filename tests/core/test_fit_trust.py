"""Warnings: a good measurement gets none, and each fault of a measurement its own."""

from collections.abc import Sequence

import numpy as np
import pytest

from planner_service.core.fit import Samples, fit_samples
from planner_service.core.fit_trust import Evidence, warnings_of

Lengths = Sequence[int]

SPREAD: list[Lengths] = [
    *([length] for length in (16, 24, 64, 256, 1024, 4096, 8192, 16_384, 32_768)),
    *([256] * count for count in (16, 32, 64, 128)),
    *([1024, 2048, 16] * count for count in (1, 2, 3, 8)),
]


def warned(
    packings: Sequence[Lengths],
    cost: tuple[float, float, float] = (4e-6, 0.05, 10.0),
    noise: float = 0.02,
    max_tokens: int | None = 32_768,
    num_marked: int = 0,
) -> list[str]:
    exact = Samples.of([(lengths, 1.0) for lengths in packings]).design @ np.array(cost)
    times = exact * np.exp(noise * np.random.default_rng(0).standard_normal(len(exact)))
    return of_times(packings, times.tolist(), max_tokens, num_marked)


def of_times(
    packings: Sequence[Lengths], times: Sequence[float], max_tokens: int | None = None, num_marked: int = 0
) -> list[str]:
    samples = Samples.of(list(zip(packings, times, strict=True)))
    return warnings_of(Evidence(fit_samples(samples), samples, num_marked, max_tokens))


def only(warnings: list[str], fragment: str) -> None:
    assert [fragment in warning for warning in warnings] == [True], warnings


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.05])
def test_a_good_measurement_gets_no_warning(noise: float) -> None:
    assert warned(SPREAD * 3, noise=noise) == []


def test_too_few_lengths_are_told() -> None:
    packings = [[length] * count for length in (16, 32_768) for count in (1, 2, 3, 4)]
    assert "the samples are of 2 different sequence lengths; measure 4 or more" in warned(packings, noise=0)[0]


def test_too_few_micro_batches_to_hold_some_out_are_told() -> None:
    only(warned(SPREAD[2:9] * 9, noise=0.0, max_tokens=None), "7 different micro-batches are too few to hold some out")


def test_coefficients_that_samples_do_not_tell_apart_are_named() -> None:
    one_length = [[2048] * count for count in range(1, 13)]
    said = warned(one_length, max_tokens=None)
    assert any("leave a (ms per token squared) open" in warning for warning in said)
    assert any("leave b (ms per token) open" in warning for warning in said)
    no_tiny_ones = [lengths for lengths in SPREAD if sum(lengths) >= 4096] * 3
    assert not any("leave a " in warning for warning in warned(no_tiny_ones))
    short = [lengths for lengths in SPREAD * 3 if max(lengths) < 300]
    assert "leave a (ms per token squared) open" in warned(short, max_tokens=32_768)[0]


def test_a_limit_beyond_what_was_measured_is_told() -> None:
    only(warned(SPREAD * 3, max_tokens=65_536), "may hold 65,536 tokens but were measured up to 32,768")
    filled = [*SPREAD * 3, [4096] * 32]
    only(warned(filled, max_tokens=131_072), "sequences may have 131,072 tokens but were measured up to 32,768")


def test_times_that_fall_with_length_hold_a_coefficient_at_its_bound_and_are_told() -> None:
    lengths = [[64 * number] for number in range(1, 17)]
    said = of_times(lengths, [100.0 - 3 * number for number in range(16)])
    assert any("is held at 0, its bound: the samples would have -" in warning for warning in said)


def test_high_errors_on_what_was_held_out_are_told() -> None:
    assert any(
        "are off by" in warning and "in the median, over 10%" in warning for warning in warned(SPREAD * 3, noise=0.3)
    )
    packings = SPREAD * 3
    exact = Samples.of([(lengths, 1.0) for lengths in packings]).design @ np.array((4e-6, 0.05, 10.0))
    stepped = [time * (1.45 if sum(lengths) > 16_384 else 1.0) for lengths, time in zip(packings, exact, strict=True)]
    only(of_times(packings, stepped), "the time of one sample that was held out is off by")


def test_many_outliers_are_told_and_a_few_are_not() -> None:
    packings = SPREAD * 3
    exact = Samples.of([(lengths, 1.0) for lengths in packings]).design @ np.array((4e-6, 0.05, 10.0))

    def with_outliers(count: int) -> list[float]:
        return [time * (10 if number < count else 1) for number, time in enumerate(exact)]

    assert of_times(packings, with_outliers(2)) == []
    only(
        of_times(packings, with_outliers(5)),
        "5 of 51 samples are outliers (0 marked by who measured, 5 far off the fit)",
    )
    only(of_times(packings, with_outliers(1), num_marked=9), "10 of 60 samples are outliers (9 marked")
