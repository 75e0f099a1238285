"""Solver processes: the deadline is enforced from outside, and a solver that dies or sticks is replaced."""

from planner_service.pool.messages import FoundPlan
from planner_service.pool.solver_pool import PoolLimits, Solved, SolverPool

__all__ = ["FoundPlan", "PoolLimits", "Solved", "SolverPool"]
