"""Between the wire and the core: requests to problems, solutions to plans, measurements to profiles."""

from planner_service.translate.clusters import refuse_unusable, replica_kinds
from planner_service.translate.measurements import fit_profile
from planner_service.translate.planning import DETERMINISTIC_SHARE, plan_request
from planner_service.translate.problems import problem_of

__all__ = ["DETERMINISTIC_SHARE", "fit_profile", "plan_request", "problem_of", "refuse_unusable", "replica_kinds"]
