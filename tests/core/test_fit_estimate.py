"""Layouts that were not measured.

The published profiles are the truth here: each layout is estimated from others of its profile.
"""

import numpy as np
import pytest

from planner_client.contract import Profile, ProfileMeasurement
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import Samples
from planner_service.core.fit_collective import fit_collectives
from planner_service.core.fit_estimate import Measured, Scaling, fit_scaling, limit_of, warnings_of_estimate
from planner_service.core.problem import Layout
from planner_service.profiles import builtin_profiles
from planner_service.translate import fit_profile

PACKINGS = [[256], [8192], [16_384], [512] * 16, [2048] * 4, [4096, 4096, 512, 512, 100], [1024] * 16, [128] * 20]
PROFILES = builtin_profiles()


def measured_of(profile: Profile) -> list[Measured]:
    """Micro-batches of each layout with the times that the profile gives them."""
    found = []
    for cost in profile.layouts:
        samples = Samples.of([(lengths, 1.0) for lengths in PACKINGS])
        times = samples.design @ np.array([cost.a_ms_per_token2, cost.b_ms_per_token, cost.c_ms])
        timed = Samples(samples.squares, samples.tokens, samples.longest, samples.shortest, times)
        found.append(Measured(Layout(cost.tp, cost.cp, cost.pp), timed, cost.max_tokens))
    return found


def error_pct(scaling: Scaling, target: Measured) -> float:
    predicted = target.samples.design @ np.array(scaling.cost_of(target.layout))
    return float(np.median(np.abs(predicted / target.samples.times - 1)) * 100)


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_published_layouts_are_estimated_from_the_others_of_their_profile(name: str) -> None:
    held_out = fit_scaling(measured_of(PROFILES[name])).held_out
    assert held_out is not None
    assert held_out.num_samples == len(PACKINGS) * len(PROFILES[name].layouts)
    assert held_out.median_abs_pct_error < 4


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_three_measured_layouts_are_enough_for_the_others_inside_a_node(name: str) -> None:
    measured = measured_of(PROFILES[name])
    three = [one for one in measured if one.layout in {Layout(2, 1, 1), Layout(4, 1, 1), Layout(2, 1, 2)}]
    assert len(three) == 3
    inside = [one for one in measured if one.layout.tp <= 8 and one not in three]
    scaling = fit_scaling(three)
    assert np.median([error_pct(scaling, one) for one in inside]) < 4
    assert max(error_pct(scaling, one) for one in inside) < 15


def test_a_true_scaling_is_found_and_extends_to_any_layout() -> None:
    def exact(layout: Layout) -> Measured:
        share = 1 / layout.num_ranks
        cost = (8e-6 * share, (0.4 + 0.03 * (layout.tp - 1)) * share, 60 / layout.pp)
        samples = Samples.of([(lengths, 1.0) for lengths in PACKINGS])
        times = samples.design @ np.array(cost)
        return Measured(
            layout, Samples(*(getattr(samples, f) for f in ("squares", "tokens", "longest", "shortest")), times), 1
        )

    scaling = fit_scaling([exact(Layout(1, 1, 1)), exact(Layout(2, 1, 1)), exact(Layout(2, 1, 2))])
    assert (scaling.alpha, scaling.beta, scaling.gamma, scaling.kappa) == pytest.approx((8e-6, 0.4, 0.03, 60))
    target = exact(Layout(8, 2, 4))
    assert target.samples.design @ np.array(scaling.cost_of(target.layout)) == pytest.approx(target.samples.times)


def test_limits_are_only_taken_from_layouts_that_spread_no_further() -> None:
    some = measured_of(PROFILES["llama-7b-a800-80g"])[0].samples
    measured = [
        Measured(Layout(1, 1, 2), some, 1024),
        Measured(Layout(2, 1, 1), some, 4096),
        Measured(Layout(8, 1, 1), some, 9999),
    ]
    assert limit_of(Layout(4, 1, 1), measured) == 4096
    assert limit_of(Layout(1, 1, 4), measured) == 1024
    assert limit_of(Layout(2, 1, 2), measured) == 4096
    assert limit_of(Layout(1, 1, 1), measured) is None


def test_warnings_of_an_estimate_say_what_it_rests_on_and_lacks() -> None:
    measured = measured_of(PROFILES["llama-7b-a800-80g"])
    one_degree = [one for one in measured if one.layout.tp == 2]
    said = warnings_of_estimate(Layout(4, 1, 2), one_degree, fit_scaling(one_degree), 8)
    assert said[0] == "not measured: scaled from (2,2), (2,1), (2,4), (2,8); measure (4,2) before you rely on it"
    assert "all measured layouts have tp=2, so what tensor-parallel ranks of tp=4 send" in said[1]
    inside = [one for one in measured if one.layout.tp <= 8]
    said = warnings_of_estimate(Layout(16, 2, 1), inside, fit_scaling(inside), 8)
    assert "and 8 more; measure (16,2,1) before" in said[0]
    assert said[1] == "tp=16 is beyond the measured tp=8"
    assert "tp=16 spans nodes of 8 GPUs" in said[2]
    assert "cp=2 is beyond what was measured" in said[3]


def _measurement(**fields: object) -> ProfileMeasurement:
    samples = [{"lengths": lengths, "time_ms": 5 + 0.01 * sum(lengths)} for lengths in PACKINGS]
    return ProfileMeasurement.model_validate(
        {
            "name": "here",
            "source": "measured in a test",
            "model": {"name": "tiny", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "CPU", "memory_bytes": 10_000_000, "gpus_per_node": 2},
            "layouts": [
                {"tp": 1, "pp": 1, "max_tokens": 16_384, "samples": samples},
                {"tp": 1, "pp": 2, "max_tokens": 20_480, "samples": samples},
            ],
            **fields,
        }
    )


def test_estimated_layouts_stand_in_the_profile_and_say_so() -> None:
    wanted = [{"tp": 2, "pp": 1}, {"tp": 1, "pp": 4, "max_tokens": 512}, {"tp": 1, "pp": 3}]
    profile = fit_profile(_measurement(estimate=wanted))
    assert [layout.is_estimated for layout in profile.layouts] == [False, False, True, True, True]
    assert [layout.max_tokens for layout in profile.layouts[2:]] == [16_384, 512, 20_480]
    for layout in profile.layouts[2:]:
        assert layout.fit is not None
        assert layout.fit.warnings[0].startswith("not measured: scaled from ")
    assert Profile.model_validate_json(profile.model_dump_json()) == profile


def test_an_estimate_without_anything_to_derive_its_limit_from_is_refused() -> None:
    samples = _measurement().layouts[0].model_copy(update={"tp": 2})
    measurement = _measurement().model_copy(update={"layouts": [samples]})
    asked = ProfileMeasurement.model_validate({**measurement.model_dump(), "estimate": [{"tp": 1, "pp": 1}]})
    with pytest.raises(PlanningFault, match=r"derive the limit of the estimated layout \(1,1\) from"):
        fit_profile(asked)


def test_a_layout_is_measured_or_estimated_and_not_both() -> None:
    with pytest.raises(ValueError, match=r"layout \(tp=1, cp=1, pp=2\) appears twice"):
        _measurement(estimate=[{"tp": 1, "pp": 2}])


def test_collectives_are_fitted_by_kind_and_ranks_without_their_outliers() -> None:
    sizes = [1000 * 2**step for step in range(12)]
    samples = [("all-reduce", 4, size, 0.2 + 3e-6 * size) for size in sizes]
    samples += [("send", 2, size, (0.05 + 1e-6 * size) * (20 if size == 8000 else 1)) for size in sizes]
    reduce, send = fit_collectives(samples)
    assert (reduce.kind, reduce.num_ranks, reduce.num_samples) == ("all-reduce", 4, 12)
    assert (reduce.latency_ms, reduce.ms_per_byte) == pytest.approx((0.2, 3e-6))
    assert (send.latency_ms, send.ms_per_byte) == pytest.approx((0.05, 1e-6))
    sent = [
        {"kind": kind, "num_ranks": ranks, "num_bytes": size, "time_ms": time} for kind, ranks, size, time in samples
    ]
    kept = fit_profile(_measurement(collectives=sent)).collectives
    assert [(one.kind, one.ms_per_byte) for one in kept] == [
        ("all-reduce", pytest.approx(3e-6)),
        ("send", pytest.approx(1e-6)),
    ]
