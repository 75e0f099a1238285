"""Run the cases of the bench, perhaps in several processes."""

import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace

from planner_client.contract import Method, format_strategy
from planner_service.core.faults import PlanningFault
from planner_service.profiles import builtin_profiles
from planner_service.simulation.batches import Batches, consecutive_batches
from planner_service.simulation.records import Candidates, Contender, Outcome, Replay, StaticTrial
from planner_service.simulation.replay import (
    Setting,
    groups_of,
    homogeneous_strategies,
    replay,
    try_plan,
    try_static,
)
from planner_service.simulation.suite import MAX_LENGTH, Case, heterogeneous_strategy
from planner_service.simulation.verdicts import FIXED, CaseResult
from planner_service.translate import problem_of
from planner_service.workloads import builtin_stream

STATIC_METHODS: tuple[Method, ...] = ("plain", "off", "next-fit", "karmarkar-karp-tokens", "karmarkar-karp-work")


@dataclass(frozen=True)
class Limits:
    """Deadlines in ms: of this planner on small and large clusters, of simple baselines, and of the published method.

    ``published_iterations`` of each case are planned by the published method, which takes long.
    """

    deadline_ms: int = 1000
    large_deadline_ms: int = 3000
    baseline_deadline_ms: int = 20_000
    published_deadline_ms: int = 10_000
    published_iterations: int = 1


def run_case(case: Case, limits: Limits) -> CaseResult:
    """Measure one case.

    Plans of other methods run first, so that this planner's are not the ones that load the libraries.
    """
    started = time.perf_counter()
    profile = builtin_profiles()[case.profile]
    setting = Setting(
        (profile,),
        {"profile": profile, "num_gpus": case.num_gpus},
        deadline_ms=limits.large_deadline_ms if case.is_large else limits.deadline_ms,
        baseline_deadline_ms=limits.baseline_deadline_ms,
    )
    try:
        batches = consecutive_batches(
            builtin_stream(case.stream), case.num_tokens, case.num_iterations, MAX_LENGTH, drops_over_long=True
        )
        longest = max(max(lengths) for lengths in batches.lengths)
        strategies = homogeneous_strategies(setting, longest)
    except (PlanningFault, ValueError) as reason:
        return CaseResult(case, None, str(reason), (), time.perf_counter() - started)
    trials = [trial for method in STATIC_METHODS for trial in try_static(setting, method, strategies, batches, _quiet)]
    contenders = _contenders(setting, batches, strategies, trials)
    published = _published(setting, contenders, batches, limits)
    names = (*STATIC_METHODS, "published", *(contender.name for contender in contenders))
    describe = Replay(str(case), case.profile, str(case.num_gpus), case.num_gpus, names, (), ())
    found = replay(setting, batches, trials, contenders, describe, _quiet)
    found = replace(found, outcomes=(*found.outcomes, *published))
    holding = _holding_max_length(setting)
    return CaseResult(case, _without_pipelines(found), None, holding, time.perf_counter() - started)


def _quiet(_: str) -> None:
    """Say nothing: a case is one step."""


def _contenders(
    setting: Setting, batches: Batches, strategies: Candidates, trials: Sequence[StaticTrial]
) -> list[Contender]:
    """List this planner's modes; each fixed strategy is planned alone."""
    bounds = {
        trial.strategy: sum(outcome.planned.lower_bound_ms or 0.0 for outcome in trial.outcomes if outcome.planned)
        for trial in trials
        if trial.method == "plain" and trial.total_makespan_ms < float("inf")
    }
    best = min(strategies, key=lambda groups: (bounds.get(format_strategy(groups), float("inf")), str(groups)))
    fixed = [Contender(FIXED[0], candidates=(best,))]
    longest = max(max(lengths) for lengths in batches.lengths)
    mixed = heterogeneous_strategy(problem_of(setting.request(batches.lengths[0]), setting.profiles), longest)
    if mixed is not None:
        fixed.append(Contender(FIXED[1], candidates=(groups_of(mixed, is_mixed=False),)))
    return [*fixed, Contender("homogeneous", homogeneous=True), Contender("free")]


def _published(setting: Setting, contenders: Sequence[Contender], batches: Batches, limits: Limits) -> list[Outcome]:
    """Let the published method plan the first iterations on the last of the fixed strategies."""
    fixed = [contender for contender in contenders if contender.name in FIXED][-1]
    patient = replace(setting, baseline_deadline_ms=limits.published_deadline_ms)
    contender = Contender("published", "published", fixed.candidates)
    return [
        try_plan(patient, contender, iteration, lengths)
        for iteration, lengths in enumerate(batches.lengths[: limits.published_iterations])
    ]


def _holding_max_length(setting: Setting) -> tuple[str, ...]:
    try:
        return tuple(format_strategy(groups) for groups in homogeneous_strategies(setting, MAX_LENGTH))
    except PlanningFault:
        return ()


def _without_pipelines(found: Replay) -> Replay:
    """Leave out what only charts show, which is large."""

    def bare(outcome: Outcome) -> Outcome:
        return outcome if outcome.planned is None else replace(outcome, planned=replace(outcome.planned, pipelines=()))

    return replace(
        found,
        outcomes=tuple(map(bare, found.outcomes)),
        static=tuple(replace(trial, outcomes=tuple(map(bare, trial.outcomes))) for trial in found.static),
    )


def run_cases(cases: Sequence[Case], limits: Limits, num_jobs: int) -> Iterator[CaseResult]:
    """Run cases in ``num_jobs`` processes and yield each as it is done.

    Raises
    ------
    concurrent.futures.process.BrokenProcessPool
        If a process dies.
    """
    if num_jobs == 1:
        for case in cases:
            yield run_case(case, limits)
        return
    # An interrupt from the terminal reaches every process: those that measure just end, this one reports it.
    context = multiprocessing.get_context("spawn")
    ends_silently = (signal.SIGINT, signal.SIG_DFL)
    with ProcessPoolExecutor(num_jobs, context, initializer=signal.signal, initargs=ends_silently) as pool:
        waiting = [pool.submit(run_case, case, limits) for case in cases]
        try:
            for done in as_completed(waiting):
                yield done.result()
        except BaseException:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
