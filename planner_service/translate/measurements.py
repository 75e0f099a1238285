"""Measurements to profiles."""

from pydantic import ValidationError

from planner_client.contract import FaultCode, Fit, LayoutCost, MeasuredLayout, Profile, ProfileMeasurement
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import fit_cost


def fit_profile(measurement: ProfileMeasurement) -> Profile:
    """Fit a profile to raw samples, keeping how good each layout's fit is.

    Raises
    ------
    PlanningFault
        Code ``profile-unusable`` if samples give a cost that no profile may have.
    """
    layouts = [_fit_layout(measured) for measured in measurement.layouts]
    return Profile(
        name=measurement.name,
        source=measurement.source,
        model=measurement.model,
        device=measurement.device,
        sync_ms=measurement.sync_ms,
        layouts=layouts,
    )


def _fit_layout(measured: MeasuredLayout) -> LayoutCost:
    fitted = fit_cost([(sample.lengths, sample.time_ms) for sample in measured.samples])
    try:
        return LayoutCost(
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
    except ValidationError as refused:
        first = refused.errors(include_url=False, include_context=False)[0]
        raise PlanningFault(
            FaultCode.PROFILE_UNUSABLE,
            f"the samples of layout (tp={measured.tp}, cp={measured.cp}, pp={measured.pp}) give "
            f"{first['loc'][-1]} {first['input']:.4g}, which no profile may have: {first['msg']}",
            "correct the samples' lengths (tokens) and time_ms",
            tp=measured.tp,
            cp=measured.cp,
            pp=measured.pp,
        ) from None
