"""Measurements to profiles."""

from dataclasses import asdict

from pydantic import ValidationError

from planner_client.contract import (
    Device,
    FaultCode,
    Fit,
    LayoutCost,
    MeasuredLayout,
    MemoryFit,
    Profile,
    ProfileMeasurement,
)
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import fit_cost
from planner_service.core.fit_memory import SAFETY_SHARE, MemoryLine, fit_memory
from planner_service.core.memory import LIMIT_MULTIPLE_TOKENS


def fit_profile(measurement: ProfileMeasurement) -> Profile:
    """Fit a profile to raw samples, keeping how good each layout's fit is.

    Raises
    ------
    PlanningFault
        Code ``profile-unusable`` if samples give a cost that no profile may have.
    """
    layouts = [_fit_layout(measured, measurement.device) for measured in measurement.layouts]
    return Profile(
        name=measurement.name,
        source=measurement.source,
        model=measurement.model,
        device=measurement.device,
        memory=measurement.memory,
        sync_ms=measurement.sync_ms,
        layouts=layouts,
    )


def _fit_layout(measured: MeasuredLayout, device: Device) -> LayoutCost:
    fitted = fit_cost([(sample.lengths, sample.time_ms) for sample in measured.samples if not sample.is_outlier])
    line = _memory_line(measured)
    try:
        return LayoutCost(
            tp=measured.tp,
            cp=measured.cp,
            pp=measured.pp,
            a_ms_per_token2=fitted.a,
            b_ms_per_token=fitted.b,
            c_ms=fitted.c,
            max_tokens=measured.max_tokens if line is None else _limit(measured, line, device),
            fit=Fit(
                num_samples=len(measured.samples),
                num_outliers=sum(sample.is_outlier for sample in measured.samples),
                r2=fitted.r2,
                median_abs_pct_error=fitted.median_abs_pct_error,
                memory=None if line is None else MemoryFit(**asdict(line), safety_share=SAFETY_SHARE),
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


def _memory_line(measured: MeasuredLayout) -> MemoryLine | None:
    """Fit memory where it gives the limit. Samples whose time is an outlier count: their peak has occurred."""
    if measured.max_tokens is not None or not measured.has_memory:
        return None
    return fit_memory(
        [(sum(sample.lengths), sample.memory_bytes) for sample in measured.samples if sample.memory_bytes is not None]
    )


def _limit(measured: MeasuredLayout, line: MemoryLine, device: Device) -> int:
    limit = line.limit_tokens(device.memory_bytes)
    if limit > 0:
        return limit
    raise PlanningFault(
        FaultCode.PROFILE_UNUSABLE,
        f"the measured memory of layout (tp={measured.tp}, cp={measured.cp}, pp={measured.pp}), "
        f"{line.base_bytes:,.0f} bytes and {line.bytes_per_token:,.0f} for each token, measured up to "
        f"{line.measured_tokens:,} tokens, leaves no room for {LIMIT_MULTIPLE_TOKENS} tokens in "
        f"{1 - SAFETY_SHARE:.0%} of the device's {device.memory_bytes:,} bytes",
        "give the layout a max_tokens, correct device.memory_bytes or leave the layout out",
        tp=measured.tp,
        cp=measured.cp,
        pp=measured.pp,
    )
