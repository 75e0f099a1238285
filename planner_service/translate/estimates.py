"""Layouts that were not measured, as entries of a profile that say so."""

from collections.abc import Sequence
from dataclasses import asdict

from planner_client.contract import (
    EstimatedLayout,
    FaultCode,
    Fit,
    HeldOut,
    LayoutCost,
    MemoryModel,
    ProfileMeasurement,
)
from planner_service.core.faults import PlanningFault
from planner_service.core.fit import Samples
from planner_service.core.fit_estimate import Measured, fit_scaling, limit_of, warnings_of_estimate
from planner_service.core.problem import Layout
from planner_service.translate.usable_costs import usable_cost


def estimated_layouts(
    measurement: ProfileMeasurement, fitted: Sequence[tuple[LayoutCost, Samples]]
) -> list[LayoutCost]:
    """Estimate the layouts that a measurement asks for.

    Parameters
    ----------
    measurement
        What was measured, and what is to be estimated.
    fitted
        Cost of each measured layout, and its samples without outliers.

    Raises
    ------
    PlanningFault
        Code ``profile-unusable`` if there is nothing to derive a layout's limit from.
    """
    if not measurement.estimate:
        return []
    measured = [Measured(Layout(cost.tp, cost.cp, cost.pp), samples, cost.max_tokens) for cost, samples in fitted]
    scaling = fit_scaling(measured)
    fit = Fit(
        num_samples=scaling.errors.num_samples,
        r2=scaling.errors.r2,
        median_abs_pct_error=scaling.errors.median_abs_pct_error,
        held_out=None if scaling.held_out is None else HeldOut.model_validate(asdict(scaling.held_out)),
    )
    estimated = []
    for wanted in measurement.estimate:
        layout = Layout(wanted.tp, wanted.cp, wanted.pp)
        warnings = warnings_of_estimate(layout, measured, scaling, measurement.device.gpus_per_node)
        estimated.append(
            usable_cost(
                layout,
                scaling.cost_of(layout),
                max_tokens=_limit(wanted, measured, measurement.memory),
                fit=fit.model_copy(update={"warnings": warnings}),
                is_estimated=True,
            )
        )
    return estimated


def _limit(wanted: EstimatedLayout, measured: Sequence[Measured], memory: MemoryModel | None) -> int | None:
    """Return the limit of a layout (tokens), or None where the memory model gives it."""
    if wanted.max_tokens is not None:
        return wanted.max_tokens
    if memory and wanted.cp == 1 and str(wanted.tp) in memory.activation_bytes_per_layer_token_hidden_by_tp:
        return None
    layout = Layout(wanted.tp, wanted.cp, wanted.pp)
    limit = limit_of(layout, measured)
    if limit is None:
        raise PlanningFault(
            FaultCode.PROFILE_UNUSABLE,
            f"there is nothing to derive the limit of the estimated layout {layout} from: every measured layout has a "
            "higher tp, cp or pp, or no max_tokens",
            "give it a max_tokens, or measure a layout with lower degrees",
            tp=wanted.tp,
            cp=wanted.cp,
            pp=wanted.pp,
        )
    return limit
