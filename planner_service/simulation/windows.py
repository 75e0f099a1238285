"""Plan a stream window by window: several known batches at once, so that changes of strategy have to pay."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from planner_client.contract import Plan
from planner_service.core.effort import Effort
from planner_service.core.problem import Strategy
from planner_service.core.validate import check
from planner_service.core.window import plan_window
from planner_service.simulation.batches import Batches
from planner_service.simulation.in_time import run_in_time
from planner_service.simulation.records import Contender, Outcome, planned_of
from planner_service.simulation.replay import OnStep, Setting, reason_of
from planner_service.simulation.truth import untruths
from planner_service.translate import DETERMINISTIC_SHARE, problem_of
from planner_service.translate.plans import plan_of

NAME = "window"
SOLVES = 2
"""An iteration may be planned so often: on all strategies, and on the one chosen for it."""


def plan_windows(setting: Setting, batches: Batches, size: int, switch_ms: float, on_step: OnStep) -> list[Outcome]:
    """Plan windows of ``size`` iterations one after the other, each going on from the strategy that ran before.

    Parameters
    ----------
    setting
        What all plans share; each window has its deadline once for each solve.
    batches
        The stream's batches.
    size
        Iterations of a window; the last one may be shorter.
    switch_ms
        Cost of a change of strategy.
    on_step
        Told of every window.

    Returns
    -------
    list[Outcome]
        One for each iteration; the planning time of a window is divided evenly. If a window fails, each of its
        iterations has the reason.
    """
    outcomes: list[Outcome] = []
    running: Strategy | None = None
    for first in range(0, len(batches.lengths), size):
        window = batches.lengths[first : first + size]
        on_step(f"{NAME} of iterations {first} to {first + len(window) - 1}")
        limit_ms = setting.deadline_ms * SOLVES * len(window)
        work = partial(_plan, setting, first, window, switch_ms, running)
        try:
            found = run_in_time(work, limit_ms)
        except Exception as error:  # noqa: BLE001 - whatever a planner does wrong is what came of it
            reason, is_defect = reason_of(error)
            outcomes += _failed(first, window, reason, is_defect=is_defect)
            continue
        if found is None:
            outcomes += _failed(first, window, f"deadline-exceeded: no plans within {limit_ms} ms", is_defect=False)
            continue
        plans, running = found
        outcomes += [
            _outcome(setting, first + offset, lengths, plan)
            for offset, (lengths, plan) in enumerate(zip(window, plans, strict=True))
        ]
    return outcomes


def _plan(  # noqa: PLR0913, PLR0917 - the last is given by whoever keeps the deadline
    setting: Setting,
    first: int,
    window: Sequence[Sequence[int]],
    switch_ms: float,
    before: Strategy | None,
    remaining_ms: Callable[[], float],
) -> tuple[list[Plan], Strategy]:
    """Plan one window; return its plans and the strategy that it ends on."""
    started = time.perf_counter()
    requests = [setting.request(lengths, Contender(NAME), first + offset) for offset, lengths in enumerate(window)]
    problems = [problem_of(request, setting.profiles) for request in requests]
    effort = Effort(setting.deadline_ms / 1000 * DETERMINISTIC_SHARE, remaining_ms)
    found = plan_window(problems, switch_ms, effort, initial=before)
    planning_ms = (time.perf_counter() - started) * 1000 / len(window)
    plans = []
    for problem, request, solution in zip(problems, requests, found.solutions, strict=True):
        # A strategy that was chosen for the window's sake is planned, and bounded, as the only candidate.
        is_chosen = solution.bound_scope == "strategy"
        check(replace(problem, candidates=(solution.strategy,)) if is_chosen else problem, solution)
        plans.append(plan_of(solution, request, setting.profiles, planning_ms))
    return plans, found.strategies[-1]


def _outcome(setting: Setting, iteration: int, lengths: Sequence[int], plan: Plan) -> Outcome:
    wrong = untruths(plan, lengths, setting.profiles)
    if wrong:
        return Outcome(NAME, iteration, None, "untrue: " + "; ".join(wrong[:3]), is_defect=True)
    return Outcome(NAME, iteration, planned_of(plan))


def _failed(first: int, window: Sequence[Sequence[int]], reason: str, *, is_defect: bool) -> list[Outcome]:
    return [Outcome(NAME, first + offset, None, reason, is_defect) for offset in range(len(window))]
