"""A request through the core and back."""

import time
from collections.abc import Callable, Sequence

from planner_client.contract import Plan, PlanRequest, Profile
from planner_service.core.effort import Effort
from planner_service.core.solution import Solution
from planner_service.core.solve import solve
from planner_service.core.validate import check
from planner_service.translate.plans import plan_of
from planner_service.translate.problems import problem_of

DETERMINISTIC_SHARE = 0.15
"""CP-SAT's deterministic budget, in its own seconds for each second of deadline."""

RESERVE_SHARE = 0.08
"""Share of the deadline kept for ordering, placing and validating once the search has stopped; the search keeps more
where there are many micro-batches."""

EARLY_SHARE = 0.05
"""Share of the deadline in which plans are not reported: most requests are done by then, and reporting costs time."""


def plan_request(
    request: PlanRequest,
    profiles: Sequence[Profile],
    *,
    remaining_ms: Callable[[], float],
    on_incumbent: Callable[[Plan], None] | None = None,
) -> Plan:
    """Plan a request; every plan is validated before it leaves.

    Parameters
    ----------
    request
        What to plan.
    profiles
        The profiles that the request names or holds, one for each of its pools of GPUs.
    remaining_ms
        Wall-clock time left until the request's deadline.
    on_incumbent
        Called with each complete plan that the search has so far.

    Raises
    ------
    PlanningFault
        If the request cannot be planned as it is.
    """
    started = time.perf_counter()
    problem = problem_of(request, profiles)
    reserve_ms = request.options.deadline_ms * RESERVE_SHARE
    effort = Effort(
        deterministic_s=request.options.deadline_ms / 1000 * DETERMINISTIC_SHARE,
        remaining_ms=lambda: remaining_ms() - reserve_ms,
        is_early=lambda: (time.perf_counter() - started) * 1000 < EARLY_SHARE * request.options.deadline_ms,
    )

    def checked(solution: Solution) -> Plan:
        check(problem, solution)
        return plan_of(solution, request, profiles, (time.perf_counter() - started) * 1000)

    def report(solution: Solution) -> None:
        if on_incumbent is not None:
            on_incumbent(checked(solution))

    return checked(solve(problem, effort, report if on_incumbent is not None else None))
