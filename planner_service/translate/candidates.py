"""What each candidate strategy of a request could do at best."""

from collections.abc import Sequence

from planner_client.contract import PlanRequest, Profile
from planner_service.core.bounds import quick_strategy_bound
from planner_service.core.length_table import RANKING_GROUPS, LengthTable
from planner_service.core.screen import screen
from planner_service.translate.problems import problem_of


def candidate_bounds(request: PlanRequest, profiles: Sequence[Profile]) -> dict[str, float]:
    """Return a proven bound on the makespan of every candidate that can be used (ms), by strategy as it is written.

    These are the bounds that candidates are ranked by, which take a few milliseconds each; that of the strategy that a
    plan was made on is tighter in the plan.

    Raises
    ------
    PlanningFault
        If no candidate can run the batch.
    """
    problem = problem_of(request, profiles)
    screened = screen(problem)
    table = LengthTable.of(problem.kinds, screened.batch, RANKING_GROUPS)
    return {str(strategy): quick_strategy_bound(strategy, table.rows(strategy)) for strategy in screened.usable}
