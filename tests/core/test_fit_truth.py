"""The fit against known truth: costs of the published profiles, 5 % noise, 1 % outliers of ten times the time.

1. No coefficient is ever negative, whatever is measured.
2. The same samples give the same coefficients, bit for bit, and in another order the same to rounding.
3. From 200 samples that span short, full and long micro-batches, each coefficient is within 3 % of the truth.
4. From 200 samples of short sequences, which do not tell ``a``, the times of such micro-batches are within 3 %.
5. The outliers, and only they, are found; up to a third of the samples may be outliers of one direction.
"""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.fit import NUM_FOLDS, Samples, fit_cost
from planner_service.core.fit_robust import RobustFit, fit_robustly
from planner_service.core.problem import Floats
from planner_service.profiles import builtin_profiles

NOISE = 0.05
NUM_SAMPLES = 200
LONGEST_TOKENS = 524_288
"""With it attention is a fair share of the time for each published cost, so that ``a`` can be told."""

TRUTHS = [
    (layout.a_ms_per_token2, layout.b_ms_per_token, layout.c_ms)
    for profile in builtin_profiles().values()
    for layout in profile.layouts
]


def telling(generator: np.random.Generator) -> list[list[int]]:
    """A quarter tiny for c, a quarter full of short sequences for b, half long single ones for a."""
    packings = []
    for number in range(NUM_SAMPLES):
        if number % 4 == 0:
            packings.append([int(generator.integers(1, 17))])
        elif number % 4 == 1:
            packings.append([int(generator.integers(256, 1024))] * int(generator.integers(32, 64)))
        else:
            packings.append([int(generator.integers(LONGEST_TOKENS // 2, LONGEST_TOKENS + 1))])
    return packings


def of_short_sequences(generator: np.random.Generator) -> list[list[int]]:
    """A third tiny, a third single ones of about 4096 tokens, a third of several of up to 4096."""
    packings = []
    for number in range(NUM_SAMPLES):
        several = np.exp(generator.uniform(np.log(16), np.log(4096), size=generator.integers(2, 7)))
        tiny, single = int(generator.integers(1, 65)), int(generator.integers(3500, 4097))
        packings.append(([tiny], [single], [int(length) for length in several])[number % 3])
    return packings


def measure(
    packings: Sequence[Sequence[int]],
    truth: tuple[float, float, float],
    generator: np.random.Generator,
    share: float = 0.01,
    factor: float = 10.0,
) -> tuple[Samples, Floats, Floats]:
    """Return samples, their true times, and which are outliers."""
    exact = Samples.of([(lengths, 1.0) for lengths in packings]).design @ np.array(truth)
    is_outlier = generator.random(len(exact)) < share
    times = exact * np.exp(NOISE * generator.standard_normal(len(exact))) * np.where(is_outlier, factor, 1.0)
    samples = Samples.of([(lengths, float(time)) for lengths, time in zip(packings, times, strict=True)])
    return samples, exact, is_outlier


def fitted(samples: Samples) -> RobustFit:
    return fit_robustly(samples.design, samples.times)


@pytest.mark.parametrize("seed", range(6))
def test_coefficients_of_every_published_layout_come_back_within_3_percent(seed: int) -> None:
    for number, truth in enumerate(TRUTHS):
        generator = np.random.default_rng([seed, number])
        samples, exact, is_outlier = measure(telling(generator), truth, generator)
        found = fitted(samples)
        assert (found.is_outlier == is_outlier).all()
        assert (found.coefficients >= 0).all()
        for value, true in zip(found.coefficients, truth, strict=True):
            if true > 0:
                assert value == pytest.approx(true, rel=0.03), (truth, found.coefficients)
        assert samples.design @ found.coefficients == pytest.approx(exact, rel=0.03)
        assert found.scatter == pytest.approx(NOISE, rel=0.3)


@pytest.mark.parametrize("seed", range(3))
def test_times_come_back_within_3_percent_where_coefficients_cannot_be_told(seed: int) -> None:
    num_open = 0
    for number, truth in enumerate(TRUTHS):
        generator = np.random.default_rng([seed, number])
        samples, exact, _ = measure(of_short_sequences(generator), truth, generator)
        found = fitted(samples)
        assert samples.design @ found.coefficients == pytest.approx(exact, rel=0.03)
        num_open += bool(found.standard_errors[0] > 0.1 * truth[0])
    assert num_open > len(TRUTHS) / 2  # a is the coefficient that short sequences do not tell


@pytest.mark.parametrize(("share", "factor"), [(0.2, 10.0), (0.3, 10.0), (0.2, 0.1), (0.3, 0.1), (0.3, 3.0)])
def test_up_to_a_third_of_the_samples_may_be_outliers(share: float, factor: float) -> None:
    for number, truth in enumerate(TRUTHS[::6]):
        generator = np.random.default_rng(number)
        samples, _, is_outlier = measure(telling(generator), truth, generator, share, factor)
        found = fitted(samples)
        assert (found.is_outlier == is_outlier).all()
        assert found.coefficients[1:] == pytest.approx(truth[1:], rel=0.06)


@settings(max_examples=12, deadline=None)
@given(
    samples=st.lists(
        st.tuples(st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=5), st.floats(1e-9, 1e15)),
        min_size=3,
        max_size=12,
    )
)
def test_whatever_is_measured_gives_finite_coefficients_that_are_not_negative(
    samples: list[tuple[list[int], float]],
) -> None:
    first, again = fit_cost(samples), fit_cost(samples)
    found = first.robust
    for values in (found.coefficients, found.standard_errors, found.unconstrained):
        assert np.isfinite(values).all()
    assert min(first.a, first.b, first.c) >= 0
    assert (first.a, first.b, first.c) == (again.a, again.b, again.c)
    assert np.isfinite(first.errors.r2)
    assert first.errors.worst_abs_pct_error >= first.errors.median_abs_pct_error >= 0


def test_the_order_of_samples_does_not_matter() -> None:
    generator = np.random.default_rng(5)
    samples, *_ = measure(telling(generator), TRUTHS[3], generator)
    shuffled = generator.permutation(NUM_SAMPLES)
    assert fitted(samples.where(shuffled)).coefficients == pytest.approx(fitted(samples).coefficients, rel=1e-6)


def test_held_out_errors_are_those_of_fits_that_never_saw_the_samples_nor_their_twins() -> None:
    generator = np.random.default_rng(1)
    lengths = [64 * 2**step + repeat for step in range(8) for repeat in (0, 0, 1)]
    samples = [
        ([length], (5 + 0.1 * length) * float(np.exp(NOISE * generator.standard_normal()))) for length in lengths
    ]
    distinct = sorted(set(lengths))
    percent = []
    for fold in range(NUM_FOLDS):
        held = [sample for sample in samples if distinct.index(sample[0][0]) % NUM_FOLDS == fold]
        others = fit_cost([sample for sample in samples if sample not in held])
        percent += [abs(others.a * s * s + others.b * s + others.c - time) / time * 100 for (s,), time in held]
    held_out = fit_cost(samples).held_out
    assert held_out is not None
    assert held_out.num_samples == len(samples)
    assert held_out.worst_abs_pct_error == pytest.approx(max(percent))
    assert held_out.median_abs_pct_error == pytest.approx(float(np.median(percent)))


def test_nothing_is_held_out_of_fewer_than_eight_different_micro_batches() -> None:
    assert fit_cost([([100 * (number % 7 + 1)], 1.0) for number in range(70)]).held_out is None
    assert fit_cost([([100 * (number % 8 + 1)], 1.0) for number in range(70)]).held_out is not None
