"""Measurements to profiles."""

from planner_client.contract import Fit, LayoutCost, Profile, ProfileMeasurement
from planner_service.core.fit import fit_cost


def fit_profile(measurement: ProfileMeasurement) -> Profile:
    """Fit a profile to raw samples, keeping how good each layout's fit is."""
    layouts = []
    for measured in measurement.layouts:
        fitted = fit_cost([(sample.lengths, sample.time_ms) for sample in measured.samples])
        layouts.append(
            LayoutCost(
                tp=measured.tp,
                cp=measured.cp,
                pp=measured.pp,
                a_ms_per_token2=fitted.a,
                b_ms_per_token=fitted.b,
                c_ms=fitted.c,
                max_tokens=measured.max_tokens,
                fit=Fit(
                    num_samples=len(measured.samples),
                    r2=fitted.r2,
                    median_abs_pct_error=fitted.median_abs_pct_error,
                ),
            )
        )
    return Profile(
        name=measurement.name,
        source=measurement.source,
        model=measurement.model,
        device=measurement.device,
        sync_ms=measurement.sync_ms,
        layouts=layouts,
    )
