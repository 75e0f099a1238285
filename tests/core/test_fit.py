from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from planner_client.contract import Fit, ProfileMeasurement
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import fit_cost
from planner_service.profiles import builtin_profiles
from planner_service.translate import fit_profile


def _samples(a: float, b: float, c: float, noise: float = 0.0) -> list[tuple[list[int], float]]:
    generator = np.random.default_rng(0)
    samples = []
    for _ in range(60):
        lengths = [int(s) for s in generator.integers(16, 4096, size=generator.integers(1, 6))]
        exact = c + sum(a * s * s + b * s for s in lengths)
        samples.append((lengths, exact * float(np.exp(noise * generator.standard_normal()))))
    return samples


@pytest.mark.parametrize(("a", "b", "c"), [(2e-6, 0.14, 120.0), (0.0, 0.2, 33.0), (1e-5, 0.0, 5.0), (1e-6, 0.1, 0.0)])
def test_exact_samples_give_their_coefficients_back(a: float, b: float, c: float) -> None:
    fitted = fit_cost(_samples(a, b, c))
    assert (fitted.a, fitted.b, fitted.c) == pytest.approx((a, b, c), rel=1e-6, abs=1e-9)
    assert fitted.errors.r2 == pytest.approx(1.0)
    assert fitted.errors.median_abs_pct_error < 1e-6


def test_noisy_samples_give_coefficients_nearby_and_an_honest_error() -> None:
    fitted = fit_cost(_samples(2e-6, 0.14, 120.0, noise=0.1))
    assert fitted.b == pytest.approx(0.14, rel=0.2)
    assert 2.0 < fitted.errors.median_abs_pct_error < 12.0
    assert fitted.errors.r2 < 1.0


def test_no_coefficient_is_ever_negative() -> None:
    falling = [([100], 30.0), ([1000], 20.0), ([2000], 10.0), ([4000], 5.0)]
    fitted = fit_cost(falling)
    assert min(fitted.a, fitted.b, fitted.c) >= 0


def test_a_fitted_profile_keeps_how_good_the_fit_is() -> None:
    measurement = ProfileMeasurement.model_validate(
        {
            "name": "here",
            "source": "measured in a test",
            "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "CPU", "memory_bytes": 1 << 30, "gpus_per_node": 2},
            "layouts": [
                {
                    "tp": 1,
                    "pp": 1,
                    "max_tokens": 4096,
                    "samples": [{"lengths": lengths, "time_ms": time} for lengths, time in _samples(2e-6, 0.1, 5.0)],
                }
            ],
        }
    )
    layout = fit_profile(measurement).layouts[0]
    assert layout.fit is not None
    assert layout.fit.num_samples == 60
    assert layout.fit.r2 == pytest.approx(1.0)
    assert layout.b_ms_per_token == pytest.approx(0.1)
    assert layout.max_tokens == 4096


def _measurement(layout: dict[str, Any], **fields: Any) -> ProfileMeasurement:
    return ProfileMeasurement.model_validate(
        {
            "name": "here",
            "source": "measured in a test",
            "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "CPU", "memory_bytes": 10_000_000, "gpus_per_node": 2},
            "layouts": [{"tp": 1, "pp": 1, **layout}],
            **fields,
        }
    )


def _sent(samples: list[tuple[list[int], float]], **fields: Any) -> list[dict[str, Any]]:
    return [{"lengths": lengths, "time_ms": time, **fields} for lengths, time in samples]


def test_samples_marked_as_outliers_are_counted_and_not_fitted() -> None:
    exact = _sent(_samples(2e-6, 0.1, 5.0))
    marked = [*exact, *_sent(_samples(2e-6, 0.9, 70.0), is_outlier=True)]
    layout = fit_profile(_measurement({"max_tokens": 4096, "samples": marked})).layouts[0]
    assert layout.fit is not None
    assert (layout.fit.num_samples, layout.fit.num_outliers) == (120, 60)
    assert layout.b_ms_per_token == pytest.approx(0.1)
    with pytest.raises(ValidationError, match="has 2 samples that are not marked as outliers; three are needed"):
        _measurement({"max_tokens": 4096, "samples": [*exact[:2], *marked[-3:]]})


def test_without_max_tokens_the_limit_is_fitted_to_the_memory_of_the_samples() -> None:
    samples = [
        {**sample, "memory_bytes": 1_000_000 + 500 * sum(sample["lengths"])}
        for sample in _sent(_samples(2e-6, 0.1, 5.0))
    ]
    layout = fit_profile(_measurement({"samples": samples})).layouts[0]
    assert layout.max_tokens == (9_000_000 - 1_000_000) // 500 // 128 * 128
    assert layout.fit is not None
    assert layout.fit.memory is not None
    assert layout.fit.memory.bytes_per_token == pytest.approx(500)
    assert layout.fit.memory.safety_share == pytest.approx(0.1)
    measured = fit_profile(_measurement({"samples": samples, "max_tokens": 640})).layouts[0]
    assert measured.max_tokens == 640
    heavy = [{**sample, "memory_bytes": 1000 * sample["memory_bytes"]} for sample in samples]
    with pytest.raises(PlanningFault, match=r"leaves no room for 128 tokens in 90% of the device's 10,000,000 bytes"):
        fit_profile(_measurement({"samples": heavy}))


def test_a_layout_with_nothing_to_derive_its_limit_from_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"layout \(tp=1, cp=1, pp=1\) has no max_tokens, and there is nothing"):
        _measurement({"samples": _sent(_samples(2e-6, 0.1, 5.0), memory_bytes=None)})


def test_a_memory_model_of_the_measurement_becomes_that_of_the_profile() -> None:
    model = builtin_profiles()["llama-7b-a800-80g"].memory
    assert model is not None
    profile = fit_profile(_measurement({"samples": _sent(_samples(2e-6, 0.1, 5.0))}, memory=model.model_dump()))
    assert profile.memory == model
    assert profile.layouts[0].max_tokens is None


def test_what_says_nothing_new_is_written_as_it_was_before_it_could() -> None:
    measurement = _measurement({"max_tokens": 4096, "samples": _sent(_samples(2e-6, 0.1, 5.0))})
    assert set(measurement.model_dump()) == {"name", "source", "model", "device", "sync_ms", "layouts"}
    assert set(measurement.layouts[0].samples[0].model_dump()) == {"lengths", "time_ms"}
    for profile in builtin_profiles().values():
        assert "is_estimated" not in profile.layouts[0].model_dump()
    earlier = {"num_samples": 6, "r2": 0.9995970412927779, "median_abs_pct_error": 0.9755257494166947}
    assert Fit.model_validate(earlier).model_dump() == earlier
