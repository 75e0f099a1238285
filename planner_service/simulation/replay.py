"""Replay a stream: every planner plans every batch, within its deadline, whatever becomes of it."""

import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from planner_client.contract import Method, PlanRequest, Profile, ReplicaGroup, format_strategy
from planner_service.core.faults import PlanningFault
from planner_service.core.homogeneous import homogeneous
from planner_service.core.problem import Strategy
from planner_service.core.screen import screen
from planner_service.simulation.batches import Batches
from planner_service.simulation.in_time import plan_in_time
from planner_service.simulation.records import (
    Candidates,
    Contender,
    Iteration,
    Outcome,
    Replay,
    StaticTrial,
    planned_of,
)
from planner_service.simulation.truth import untruths
from planner_service.translate import problem_of

OnStep = Callable[[str], None]
"""Called before each plan with what is planned."""


@dataclass(frozen=True)
class Setting:
    """What all plans of a replay share.

    Attributes
    ----------
    profiles
        One for each pool of GPUs.
    request_fields
        The cluster, and perhaps the optimizer layout, as a request takes them.
    options
        Options of every request that all methods honour.
    deadline_ms, baseline_deadline_ms
        Of each plan of this planner, and of each of another method.
    """

    profiles: tuple[Profile, ...]
    request_fields: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    deadline_ms: int = 1000
    baseline_deadline_ms: int = 60_000

    def request(
        self, lengths: Sequence[int], contender: Contender | None = None, iteration: int | None = None
    ) -> PlanRequest:
        """Write the request of one batch by one planner."""
        wanted = contender or Contender("")
        is_ours = wanted.method == "hydraulis"
        return PlanRequest.model_validate(
            {
                **self.request_fields,
                "iteration": iteration,
                "strategies": [list(groups) for groups in wanted.candidates],
                "lengths": list(lengths),
                "options": {
                    **self.options,
                    "method": wanted.method,
                    "homogeneous": wanted.homogeneous,
                    "deadline_ms": self.deadline_ms if is_ours else self.baseline_deadline_ms,
                },
            }
        )


def longest_runnable(setting: Setting) -> int:
    """Longest sequence that some layout of the cluster can run, in tokens.

    Raises
    ------
    PlanningFault
        If no layout runs on the cluster.
    """
    return max(kind.max_tokens for kind in problem_of(setting.request([]), setting.profiles).kinds)


def homogeneous_strategies(setting: Setting, longest: int) -> Candidates:
    """Homogeneous strategies that hold a sequence of ``longest`` tokens, of as many replicas as fit.

    Raises
    ------
    PlanningFault
        If there are none.
    """
    problem = problem_of(setting.request([longest]), setting.profiles)
    is_mixed = len(setting.profiles) > 1
    return tuple(groups_of(strategy, is_mixed=is_mixed) for strategy in homogeneous(problem, screen(problem)))


def groups_of(strategy: Strategy, *, is_mixed: bool) -> tuple[ReplicaGroup, ...]:
    """Write a strategy as a request takes it; with devices where the cluster has several."""
    return tuple(
        ReplicaGroup(
            tp=kind.layout.tp,
            cp=kind.layout.cp,
            pp=kind.layout.pp,
            num_replicas=num_replicas,
            device=kind.device if is_mixed else None,
        )
        for kind, num_replicas in strategy.groups
    )


def reason_of(error: Exception) -> tuple[str, bool]:
    """Say why there is no plan, and whether that is a defect of the planner."""
    if isinstance(error, PlanningFault):
        return f"{error.code}: {error.detail}", False
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}", True


def try_plan(setting: Setting, contender: Contender, iteration: int, lengths: Sequence[int]) -> Outcome:
    """Plan one batch; what goes wrong becomes the outcome's reason.

    A plan that is not what it says counts as none.
    """

    def failed(reason: str, *, is_defect: bool = False) -> Outcome:
        return Outcome(contender.name, iteration, None, reason, is_defect)

    try:
        request = setting.request(lengths, contender, iteration)
        plan = plan_in_time(request, setting.profiles)
    except Exception as error:  # noqa: BLE001 - whatever a planner does wrong is what came of it, and the run goes on
        reason, is_defect = reason_of(error)
        return failed(reason, is_defect=is_defect)
    if plan is None:
        return failed(f"deadline-exceeded: no plan within {request.options.deadline_ms} ms")
    wrong = untruths(plan, lengths, setting.profiles)
    if wrong:
        return failed("untrue: " + "; ".join(wrong[:3]), is_defect=True)
    return Outcome(contender.name, iteration, planned_of(plan))


def try_static(
    setting: Setting, method: Method, strategies: Candidates, batches: Batches, on_step: OnStep
) -> tuple[StaticTrial, ...]:
    """Let a method keep each strategy for the whole stream; best first, by total makespan."""
    trials = []
    for groups in strategies:
        name = format_strategy(groups)
        outcomes = []
        for iteration, lengths in enumerate(batches.lengths):
            on_step(f"{method} on {name}, iteration {iteration}")
            outcomes.append(try_plan(setting, Contender(method, method, (groups,)), iteration, lengths))
        trials.append(StaticTrial(method, name, tuple(outcomes)))
    return tuple(sorted(trials, key=lambda trial: (trial.total_makespan_ms, trial.strategy)))


def replay(  # noqa: PLR0913, PLR0917 - what a replay is made of
    setting: Setting,
    batches: Batches,
    trials: Sequence[StaticTrial],
    contenders: Sequence[Contender],
    describe: Replay,
    on_step: OnStep,
) -> Replay:
    """Let every planner plan every batch.

    Parameters
    ----------
    setting
        What all plans share.
    batches
        The stream's batches.
    trials
        Methods that keep a strategy for the whole stream, as `try_static` tried them, each method's best first; the
        best stands for a planner of the method's name.
    contenders
        The other planners; names differ from the static methods'.
    describe
        Title and cluster of the replay to return; its ``planners`` set the order, speed-ups are over the first.
    on_step
        Told of every plan.

    Returns
    -------
    Replay
        With the outcome of every planner and iteration.
    """
    best: dict[Method, StaticTrial] = {}
    for trial in trials:
        best.setdefault(trial.method, trial)
    outcomes = [outcome for trial in best.values() for outcome in trial.outcomes]
    for contender in contenders:
        for iteration, lengths in enumerate(batches.lengths[: contender.most_iterations]):
            on_step(f"{contender.name}, iteration {iteration}")
            outcomes.append(try_plan(setting, contender, iteration, lengths))
    return Replay(
        title=describe.title,
        profile=describe.profile,
        gpus=describe.gpus,
        num_gpus=describe.num_gpus,
        planners=describe.planners,
        iterations=tuple(
            Iteration(index, len(lengths), sum(lengths), max(lengths)) for index, lengths in enumerate(batches.lengths)
        ),
        outcomes=tuple(outcomes),
        static=tuple(trials),
        switch_ms=describe.switch_ms,
        num_left_out=batches.num_left_out,
    )
