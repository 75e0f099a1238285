"""Fitted coefficients as entries of a profile, or a fault where no profile may have them."""

from pydantic import ValidationError

from planner_client.contract import FaultCode, Fit, LayoutCost
from planner_service.core.faults import PlanningFault
from planner_service.core.problem import Layout


def usable_cost(
    layout: Layout,
    coefficients: tuple[float, float, float],
    *,
    max_tokens: int | None,
    fit: Fit,
    is_estimated: bool = False,
) -> LayoutCost:
    """Write a fitted or estimated layout for a profile.

    Parameters
    ----------
    layout
        Its degrees.
    coefficients
        ``a`` (ms per token squared), ``b`` (ms per token) and ``c`` (ms).
    max_tokens
        Its limit; None if the memory model gives it.
    fit
        How good the coefficients are.
    is_estimated
        Whether it was not measured.

    Raises
    ------
    PlanningFault
        Code ``profile-unusable`` if a coefficient is out of the range that profiles may have.
    """
    a, b, c = coefficients
    try:
        return LayoutCost(
            tp=layout.tp,
            cp=layout.cp,
            pp=layout.pp,
            a_ms_per_token2=a,
            b_ms_per_token=b,
            c_ms=c,
            max_tokens=max_tokens,
            fit=fit,
            is_estimated=is_estimated,
        )
    except ValidationError as refused:
        first = refused.errors(include_url=False, include_context=False)[0]
        raise PlanningFault(
            FaultCode.PROFILE_UNUSABLE,
            f"the samples of layout (tp={layout.tp}, cp={layout.cp}, pp={layout.pp}) give {first['loc'][-1]} "
            f"{first['input']:.4g}, which no profile may have: {first['msg']}",
            "correct the samples' lengths (tokens) and time_ms",
            tp=layout.tp,
            cp=layout.cp,
            pp=layout.pp,
        ) from None
