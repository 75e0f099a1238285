"""What planners cost over a whole replay, and how they compare."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from planner_service.simulation.records import Outcome, Planned, Replay


@dataclass(frozen=True)
class Totals:
    """One planner over a replay.

    Attributes
    ----------
    num_planned, num_failed
        Iterations with and without a plan.
    makespan_ms, simulated_ms
        Sums over its planned iterations, switches left out.
    num_switches
        Times that its strategy differs from the iteration before.
    charged_makespan_ms, charged_simulated_ms
        The same sums with what its switches are charged; None if it has no plan.
    speed_up, simulated_speed_up
        Time of the first planner over this one's, switches included, over the iterations that both planned; None if
        there are none.
    planning_ms_median, planning_ms_worst
        Planning time of an iteration.
    mean_gap, worst_gap
        Gap to the bound each plan proves; None if no plan has one.
    mean_all_strategies_gap
        Mean gap to the bound over all strategies; None if no plan has one.
    """

    planner: str
    num_planned: int
    num_failed: int
    makespan_ms: float
    simulated_ms: float
    num_switches: int
    charged_makespan_ms: float | None
    charged_simulated_ms: float | None
    speed_up: float | None
    simulated_speed_up: float | None
    planning_ms_median: float | None
    planning_ms_worst: float | None
    mean_gap: float | None
    worst_gap: float | None
    mean_all_strategies_gap: float | None


def totals_of(replay: Replay) -> tuple[Totals, ...]:
    """Sum up each planner; speed-ups are over the first."""
    first = replay.of(replay.planners[0]) if replay.planners else ()
    return tuple(_totals(name, replay.of(name), first, replay.switch_ms) for name in replay.planners)


def _totals(name: str, outcomes: Sequence[Outcome], first: Sequence[Outcome], switch_ms: float) -> Totals:
    planned = [outcome.planned for outcome in outcomes if outcome.planned is not None]
    gaps = [entry.gap for entry in planned if entry.gap is not None]
    wide = [entry.all_strategies_gap for entry in planned if entry.all_strategies_gap is not None]
    times = [entry.planning_ms for entry in planned]
    makespan_ms = sum(entry.makespan_ms for entry in planned)
    simulated_ms = sum(entry.simulated_ms for entry in planned)
    num_switches = _num_switches(planned)
    speed_up, simulated_speed_up = _speed_ups(outcomes, first, switch_ms)
    return Totals(
        planner=name,
        num_planned=len(planned),
        num_failed=len(outcomes) - len(planned),
        makespan_ms=makespan_ms,
        simulated_ms=simulated_ms,
        num_switches=num_switches,
        charged_makespan_ms=makespan_ms + switch_ms * num_switches if planned else None,
        charged_simulated_ms=simulated_ms + switch_ms * num_switches if planned else None,
        speed_up=speed_up,
        simulated_speed_up=simulated_speed_up,
        planning_ms_median=statistics.median(times) if times else None,
        planning_ms_worst=max(times, default=None),
        mean_gap=statistics.mean(gaps) if gaps else None,
        worst_gap=max(gaps, default=None),
        mean_all_strategies_gap=statistics.mean(wide) if wide else None,
    )


def _num_switches(planned: Sequence[Planned]) -> int:
    return sum(one.strategy != other.strategy for one, other in pairwise(planned))


def _speed_ups(
    outcomes: Sequence[Outcome], first: Sequence[Outcome], switch_ms: float
) -> tuple[float | None, float | None]:
    theirs = {outcome.iteration: outcome.planned for outcome in first}
    pairs = [
        (other, outcome.planned)
        for outcome in outcomes
        if outcome.planned is not None and (other := theirs.get(outcome.iteration)) is not None
    ]
    if not pairs:
        return None, None
    switched = [switch_ms * _num_switches([pair[side] for pair in pairs]) for side in (0, 1)]
    makespans = [sum(pair[side].makespan_ms for pair in pairs) + switched[side] for side in (0, 1)]
    simulated = [sum(pair[side].simulated_ms for pair in pairs) + switched[side] for side in (0, 1)]
    return _ratio(makespans), _ratio(simulated)


def _ratio(pair: Sequence[float]) -> float | None:
    return pair[0] / pair[1] if pair[1] else None
