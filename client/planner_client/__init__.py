"""What a trainer installs: the wire contract, the client, and plans turned into packed sequences."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner_client.client import AsyncPlannerClient, PlannerClient
    from planner_client.errors import (
        BadAnswer,
        DeadlineExceeded,
        FallbackImpossible,
        HydraulisError,
        NoPlanPossible,
        PlannerUnavailable,
        RequestRefused,
    )
    from planner_client.fallback import FallbackBasis
    from planner_client.steady import ByJob, OneShot, SteadyPlan, SteadyPlanner, SteadySettings

__all__ = [
    "AsyncPlannerClient",
    "BadAnswer",
    "ByJob",
    "DeadlineExceeded",
    "FallbackBasis",
    "FallbackImpossible",
    "HydraulisError",
    "NoPlanPossible",
    "OneShot",
    "PlannerClient",
    "PlannerUnavailable",
    "RequestRefused",
    "SteadyPlan",
    "SteadyPlanner",
    "SteadySettings",
]

_MODULES = {
    "AsyncPlannerClient": "client",
    "PlannerClient": "client",
    "FallbackBasis": "fallback",
    "ByJob": "steady",
    "OneShot": "steady",
    "SteadyPlan": "steady",
    "SteadyPlanner": "steady",
    "SteadySettings": "steady",
}


def __getattr__(name: str) -> Any:
    """Import the client only for those who use it: the planner's solvers import the contract alone."""
    from importlib import import_module  # noqa: PLC0415 - only where a name is asked for

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
