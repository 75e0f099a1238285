import numpy as np
import pytest

from planner_client.contract import ProfileMeasurement
from planner_service.core.fit import fit_cost
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
    assert fitted.r2 == pytest.approx(1.0)
    assert fitted.median_abs_pct_error < 1e-6


def test_noisy_samples_give_coefficients_nearby_and_an_honest_error() -> None:
    fitted = fit_cost(_samples(2e-6, 0.14, 120.0, noise=0.1))
    assert fitted.b == pytest.approx(0.14, rel=0.2)
    assert 2.0 < fitted.median_abs_pct_error < 12.0
    assert fitted.r2 < 1.0


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
