"""Measurements to profiles."""

from dataclasses import asdict

import numpy as np

from planner_client.contract import (
    CollectiveCost,
    Device,
    FaultCode,
    Fit,
    FitPoint,
    HeldOut,
    LayoutCost,
    MeasuredLayout,
    MemoryFit,
    MicroBatchSample,
    Profile,
    ProfileMeasurement,
    StandardErrors,
)
from planner_client.contract.fit import MAX_FIT_POINTS
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import FittedCost, Samples, fit_samples
from planner_service.core.fit_collective import fit_collectives
from planner_service.core.fit_memory import SAFETY_SHARE, MemoryLine, fit_memory
from planner_service.core.fit_trust import Evidence, warnings_of
from planner_service.core.memory import LIMIT_MULTIPLE_TOKENS
from planner_service.core.problem import Layout
from planner_service.translate.estimates import estimated_layouts
from planner_service.translate.usable_costs import usable_cost


def fit_profile(measurement: ProfileMeasurement) -> Profile:
    """Fit a profile to raw samples, keeping how good each layout's fit is.

    Raises
    ------
    PlanningFault
        Code ``profile-unusable`` if samples give a cost that no profile may have, or no limit of a layout can be
        derived.
    """
    fitted = [_fit_layout(measured, measurement.device) for measured in measurement.layouts]
    collectives = fit_collectives(
        (sample.kind, sample.num_ranks, sample.num_bytes, sample.time_ms) for sample in measurement.collectives
    )
    return Profile(
        name=measurement.name,
        source=measurement.source,
        model=measurement.model,
        device=measurement.device,
        memory=measurement.memory,
        sync_ms=measurement.sync_ms,
        layouts=[cost for cost, _ in fitted] + estimated_layouts(measurement, fitted),
        collectives=[CollectiveCost.model_validate(asdict(collective)) for collective in collectives],
    )


def _fit_layout(measured: MeasuredLayout, device: Device) -> tuple[LayoutCost, Samples]:
    """Fit one layout; return its cost, and the samples that are no outliers."""
    kept = [sample for sample in measured.samples if not sample.is_outlier]
    samples = Samples.of([(sample.lengths, sample.time_ms) for sample in kept])
    fitted = fit_samples(samples)
    line = _memory_line(measured)
    max_tokens = measured.max_tokens if line is None else _limit(measured, line, device)
    num_marked = len(measured.samples) - len(kept)
    held_out = fitted.held_out
    fit = Fit(
        num_samples=len(measured.samples),
        r2=fitted.errors.r2,
        median_abs_pct_error=fitted.errors.median_abs_pct_error,
        num_outliers=num_marked + int(fitted.is_outlier.sum()),
        held_out=None if held_out is None else HeldOut.model_validate(asdict(held_out)),
        standard_errors=_standard_errors(fitted),
        memory=None if line is None else MemoryFit(**asdict(line), safety_share=SAFETY_SHARE),
        warnings=warnings_of(Evidence(fitted, samples, num_marked, max_tokens)),
        points=_points(measured, kept, fitted),
    )
    cost = usable_cost(_layout(measured), (fitted.a, fitted.b, fitted.c), max_tokens=max_tokens, fit=fit)
    inliers = ~fitted.is_outlier if fitted.is_outlier.sum() <= len(kept) - 3 else np.ones(len(kept), bool)
    return cost, samples.where(inliers)


def _standard_errors(fitted: FittedCost) -> StandardErrors:
    a, b, c = (float(error) for error in fitted.robust.standard_errors)
    return StandardErrors(a_ms_per_token2=a, b_ms_per_token=b, c_ms=c)


def _points(measured: MeasuredLayout, kept: list[MicroBatchSample], fitted: FittedCost) -> list[FitPoint]:
    """Choose samples to draw, evenly in the order of their tokens, outliers among them."""
    far_off = {id(sample) for sample, is_outlier in zip(kept, fitted.is_outlier, strict=True) if is_outlier}
    ordered = sorted(measured.samples, key=lambda sample: (sum(sample.lengths), sample.time_ms))
    chosen = np.unique(np.linspace(0, len(ordered) - 1, MAX_FIT_POINTS).round().astype(int))
    return [
        FitPoint(
            num_sequences=len(sample.lengths),
            num_tokens=sum(sample.lengths),
            sum_squares=float(sum(length * length for length in sample.lengths)),
            time_ms=sample.time_ms,
            is_outlier=sample.is_outlier or id(sample) in far_off,
            memory_bytes=sample.memory_bytes,
        )
        for sample in (ordered[index] for index in chosen)
    ]


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
        f"the measured memory of layout {_layout(measured)}, "
        f"{line.base_bytes:,.0f} bytes and {line.bytes_per_token:,.0f} for each token, measured up to "
        f"{line.measured_tokens:,} tokens, leaves no room for {LIMIT_MULTIPLE_TOKENS} tokens in "
        f"{1 - SAFETY_SHARE:.0%} of the device's {device.memory_bytes:,} bytes",
        "give the layout a max_tokens, correct device.memory_bytes or leave the layout out",
        tp=measured.tp,
        cp=measured.cp,
        pp=measured.pp,
    )


def _layout(measured: MeasuredLayout) -> Layout:
    return Layout(measured.tp, measured.cp, measured.pp)
