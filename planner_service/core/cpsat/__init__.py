"""The one package that speaks to OR-Tools: linear programs by GLOP, integer programs by CP-SAT."""

from planner_service.core.cpsat.dispatch import MAX_DISPATCH_VARIABLES, dispatch_size, solve_dispatch
from planner_service.core.cpsat.joint import MAX_JOINT_VARIABLES, joint_size, solve_jointly
from planner_service.core.cpsat.linear import Fractional, FractionalPlacement, weights_by_lp
from planner_service.core.cpsat.published import MinMaxPacking, pack_min_max
from planner_service.core.cpsat.running import MAX_MODEL_MS, Improved, Limits

__all__ = [
    "MAX_DISPATCH_VARIABLES",
    "MAX_JOINT_VARIABLES",
    "MAX_MODEL_MS",
    "Fractional",
    "FractionalPlacement",
    "Improved",
    "Limits",
    "MinMaxPacking",
    "dispatch_size",
    "joint_size",
    "pack_min_max",
    "solve_dispatch",
    "solve_jointly",
    "weights_by_lp",
]
