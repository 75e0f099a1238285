"""A replay as JSON.

Fields of the document; fields may be added, not renamed:

* ``title``, ``profile``, ``gpus`` (as given), ``num_gpus``, ``switch_ms``, ``num_left_out`` (over-long sequences);
* ``iterations``, for each ``index``, ``num_sequences``, ``num_tokens``, ``longest``;
* ``planners``, for each ``planner``, the fields of `Totals` (of which the ``charged_`` ones hold ``switch_ms`` for each
  change of strategy, and are null where there is no plan), and ``iterations``, for each ``iteration`` and either
  ``failure`` (why there is no plan) and ``is_defect`` (whether the planner is at fault), or ``strategy``,
  ``makespan_ms``, ``simulated_ms``, ``sync_ms``, ``planning_ms``, ``lower_bound_ms``, ``gap``, ``bound_scope``,
  ``all_strategies_bound_ms``, ``all_strategies_gap``, ``cut_by_wall_clock``;
* ``static``, for each method and strategy tried ``method``, ``strategy``, ``makespans_ms`` by iteration and their
  ``total_makespan_ms`` (null where it failed).
"""

from dataclasses import asdict
from typing import Any

from planner_service.simulation.records import Outcome, Replay, StaticTrial
from planner_service.simulation.totals import totals_of


def document_of(replay: Replay) -> dict[str, Any]:
    """Write a replay as values that JSON knows."""
    return {
        "title": replay.title,
        "profile": replay.profile,
        "gpus": replay.gpus,
        "num_gpus": replay.num_gpus,
        "switch_ms": replay.switch_ms,
        "num_left_out": replay.num_left_out,
        "iterations": [asdict(iteration) for iteration in replay.iterations],
        "planners": [
            {**asdict(totals), "iterations": [_outcome(outcome) for outcome in replay.of(totals.planner)]}
            for totals in totals_of(replay)
        ],
        "static": [_trial(trial) for trial in replay.static],
    }


def _outcome(outcome: Outcome) -> dict[str, Any]:
    planned = outcome.planned
    if planned is None:
        return {"iteration": outcome.iteration, "failure": outcome.failure, "is_defect": outcome.is_defect}
    return {
        "iteration": outcome.iteration,
        "strategy": planned.strategy,
        "makespan_ms": planned.makespan_ms,
        "simulated_ms": planned.simulated_ms,
        "sync_ms": planned.sync_ms,
        "planning_ms": planned.planning_ms,
        "lower_bound_ms": planned.lower_bound_ms,
        "gap": planned.gap,
        "bound_scope": planned.bound_scope,
        "all_strategies_bound_ms": planned.all_strategies_bound_ms,
        "all_strategies_gap": planned.all_strategies_gap,
        "cut_by_wall_clock": planned.cut_by_wall_clock,
    }


def _trial(trial: StaticTrial) -> dict[str, Any]:
    total = trial.total_makespan_ms
    return {
        "method": trial.method,
        "strategy": trial.strategy,
        "makespans_ms": [outcome.planned and outcome.planned.makespan_ms for outcome in trial.outcomes],
        "total_makespan_ms": total if total != float("inf") else None,
    }
