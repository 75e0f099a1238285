"""What a trainer installs: the wire contract, the client, and plans turned into packed sequences."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner_client.client import AsyncPlannerClient, PlannerClient
    from planner_client.errors import (
        BadAnswer,
        DeadlineExceeded,
        HydraulisError,
        PlannerUnavailable,
        RequestRefused,
    )

__all__ = [
    "AsyncPlannerClient",
    "BadAnswer",
    "DeadlineExceeded",
    "HydraulisError",
    "PlannerClient",
    "PlannerUnavailable",
    "RequestRefused",
]


def __getattr__(name: str) -> Any:
    """Import the client only for those who use it: the planner's solvers import the contract alone."""
    from importlib import import_module  # noqa: PLC0415 - only where a name is asked for

    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "client" if name.endswith("Client") else "errors"
    return getattr(import_module(f"{__name__}.{module}"), name)
