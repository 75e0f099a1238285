"""What a case of the bench shows: losses, gaps, planning times and the headline, and whether they meet the bars."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from planner_service.simulation.records import Outcome, Replay
from planner_service.simulation.suite import Case
from planner_service.simulation.totals import Totals, totals_of

FIXED = ("fixed-homogeneous", "fixed-heterogeneous")
"""Planners of one strategy each."""

OURS = (*FIXED, "homogeneous", "free")
"""Planners that always have to find a plan."""

TOLERANCE = 1e-9
"""Relative difference of makespans below which none is the slower."""


@dataclass(frozen=True)
class CaseResult:
    """A case as it was measured.

    Attributes
    ----------
    replay
        What every planner made of it; None if the case is infeasible.
    infeasible
        Why no homogeneous strategy runs the stream, so that there is nothing to compare with.
    holding_max_length
        Strategies tried for static methods that hold the suite's longest length, seen in the stream or not.
    seconds
        Wall clock of the whole case.
    """

    case: Case
    replay: Replay | None
    infeasible: str | None = None
    holding_max_length: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Against:
    """One iteration of ours beside the published method's, on the same strategy.

    Ratios are its figure over ours. Where it did not end by its deadline, ``makespan_ratio`` is None and
    ``planning_ratio`` what that deadline alone makes.
    """

    case: str
    iteration: int
    planning_ratio: float
    makespan_ratio: float | None


@dataclass(frozen=True)
class Bar:
    """What is asked for and what was measured; None if nothing was measured that it speaks of."""

    name: str
    limit: str
    measured: str
    is_met: bool | None


@dataclass(frozen=True)
class Headline:
    """Simulated speed-up of free strategies over the best static homogeneous one with the plain loader."""

    case: Case
    static: str
    speed_up: float
    speed_up_holding_max_length: float | None


def broken_invariants(result: CaseResult) -> list[str]:
    """Say where a case breaks what must hold: no loss, no false plan, no failure of this planner.

    A loss is a free strategy slower than any homogeneous strategy or other method. Mixed strategies that are given are
    no rivals: within the target gap either may be the faster.
    """
    replay = result.replay
    if replay is None:
        return []
    every = [*replay.outcomes, *(outcome for trial in replay.static for outcome in trial.outcomes)]
    found = [
        f"{outcome.planner}, iteration {outcome.iteration}: {outcome.failure}"
        for outcome in dict.fromkeys(every)
        if outcome.planned is None and (outcome.planner in OURS or outcome.is_defect)
    ]
    found += [
        f"homogeneous, iteration {outcome.iteration}: {outcome.planned.strategy} has replicas of several kinds"
        for outcome in replay.of("homogeneous")
        if outcome.planned is not None and outcome.planned.strategy.count(")x") > 1
    ]
    return [f"{result.case}: {text}" for text in [*found, *_losses(replay)]]


def _losses(replay: Replay) -> Iterable[str]:
    rivals: list[tuple[str, Outcome]] = [(outcome.planner, outcome) for outcome in replay.outcomes]
    rivals += [
        (f"{trial.method} on {trial.strategy}", outcome) for trial in replay.static for outcome in trial.outcomes
    ]
    for own in replay.of("free"):
        if own.planned is None:
            continue
        better = [
            (other.planned.makespan_ms, name)
            for name, other in rivals
            if other.planned is not None and other.iteration == own.iteration and name not in {"free", FIXED[1]}
        ]
        if better and (least := min(better))[0] < own.planned.makespan_ms * (1 - TOLERANCE):
            yield (
                f"free loses iteration {own.iteration} to {least[1]} by {own.planned.makespan_ms / least[0] - 1:.3%}: "
                f"{own.planned.makespan_ms:.1f} ms by {own.planned.strategy} against {least[0]:.1f} ms"
            )


def comparisons(result: CaseResult, published_deadline_ms: float | None = None) -> list[Against]:
    """Set the published method's plans beside ours on the same strategy.

    Parameters
    ----------
    result
        A case.
    published_deadline_ms
        Include the plans that were not found by this deadline, with what that says of the ratio of planning times.
    """
    if result.replay is None:
        return []
    name = next((fixed for fixed in reversed(FIXED) if result.replay.of(fixed)), FIXED[0])
    own = {outcome.iteration: outcome.planned for outcome in result.replay.of(name)}
    found = []
    for outcome in result.replay.of("published"):
        ours = own.get(outcome.iteration)
        if ours is None:
            continue
        planning_ms = max(ours.planning_ms, 1e-3)
        if outcome.planned is not None:
            ratio = outcome.planned.makespan_ms / ours.makespan_ms if ours.makespan_ms else 1.0
            found.append(Against(str(result.case), outcome.iteration, outcome.planned.planning_ms / planning_ms, ratio))
        elif published_deadline_ms is not None and (outcome.failure or "").startswith("deadline-exceeded"):
            found.append(Against(str(result.case), outcome.iteration, published_deadline_ms / planning_ms, None))
    return found


def headline(result: CaseResult) -> Headline | None:
    """Compare free strategies with the best static ones under the plain loader, by total simulated time."""
    replay = result.replay
    if replay is None:
        return None
    free: Totals | None = next((totals for totals in totals_of(replay) if totals.planner == "free"), None)
    plain = [trial for trial in replay.static if trial.method == "plain" and trial.total_makespan_ms < float("inf")]
    if free is None or free.num_failed or not free.simulated_ms or not plain:
        return None

    def speed_up(outcomes: Sequence[Outcome]) -> float:
        return sum(outcome.planned.simulated_ms for outcome in outcomes if outcome.planned) / free.simulated_ms

    holding = [trial for trial in plain if trial.strategy in result.holding_max_length]
    return Headline(
        result.case,
        plain[0].strategy,
        speed_up(plain[0].outcomes),
        speed_up(holding[0].outcomes) if holding else None,
    )


def bars_of(results: Sequence[CaseResult]) -> tuple[Bar, ...]:
    """Judge all cases together."""
    small = [result for result in results if not result.case.is_large]
    large = [result for result in results if result.case.is_large]
    at_64 = [result for result in small if result.case.num_gpus == 64]
    gaps = _figures(results, FIXED, "gap")
    broken = [text for result in results for text in broken_invariants(result)]
    bars = [
        _at_most("fixed strategy: mean gap", 0.01, _mean(gaps), "{:.2%}"),
        _at_most("fixed strategy: 95th percentile of the gap", 0.04, _percentile(gaps, 0.95), "{:.2%}"),
    ]
    for gpus, limit, some in (("64", 50, at_64), ("1024", 500, large)):
        planning = _median(_figures(some, FIXED, "planning_ms"))
        bars.append(_at_most(f"fixed strategy: median planning, {gpus} GPUs", limit, planning, "{:.0f} ms"))
    for gpus, most_gap, most_ms, some in (("16-64", 0.05, 1000, small), ("1024", 0.03, 3000, large)):
        wide = _mean(_figures(some, ("free",), "all_strategies_gap"))
        bars.append(_at_most(f"free: mean gap to all strategies, {gpus} GPUs", most_gap, wide, "{:.2%}"))
        slowest = max(_figures(some, ("free",), "planning_ms"), default=None)
        bars.append(_at_most(f"free: worst planning, {gpus} GPUs", most_ms, slowest, "{:.0f} ms"))
    published = [entry for result in results for entry in comparisons(result)]
    ratios = [entry.planning_ratio for entry in published]
    makespans = [entry.makespan_ratio for entry in published if entry.makespan_ratio is not None]
    return (
        *bars,
        _at_most("broken invariants (losses, caps, false plans)", 0, float(len(broken)), "{:.0f}"),
        _at_least("published: least ratio of planning times", 100, min(ratios, default=None), "{:.0f}x"),
        _at_least("published: median ratio of planning times", 100, _median(ratios), "{:.0f}x"),
        _at_least("published: least ratio of makespans", 1, min(makespans, default=None), "{:.4f}"),
    )


def _figures(results: Sequence[CaseResult], planners: Sequence[str], take: str) -> list[float]:
    return [
        value
        for result in results
        if result.replay is not None
        for name in planners
        for outcome in result.replay.of(name)
        if outcome.planned is not None and (value := getattr(outcome.planned, take)) is not None
    ]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.mean(values) if values else None


def _median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def _percentile(values: Sequence[float], share: float) -> float | None:
    """Value that this share of the values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)] if values else None


def _at_most(name: str, limit: float, measured: float | None, form: str) -> Bar:
    shown = "-" if measured is None else form.format(measured)
    return Bar(name, "at most " + form.format(limit), shown, None if measured is None else measured <= limit)


def _at_least(name: str, limit: float, measured: float | None, form: str) -> Bar:
    shown = "-" if measured is None else form.format(measured)
    met = None if measured is None else measured >= limit * (1 - TOLERANCE)
    return Bar(name, "at least " + form.format(limit), shown, met)
