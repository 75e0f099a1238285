"""A job over its iterations: pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from planner_client.contract import JobSeries, StrategyCounts
from planner_service.dashboard.spread import Starts, numbered_starts, spread_of
from planner_service.store import IterationRow

MAX_STRATEGIES = 9
"""Strategies told apart; more have no colours that can be."""


@dataclass(frozen=True)
class Window:
    """Some consecutive iterations of a job.

    Attributes
    ----------
    rows
        Ascending by number.
    num_iterations
        Iterations of the job that are kept.
    has_older, has_newer
        Whether more are kept before and after these.
    """

    rows: Sequence[IterationRow]
    num_iterations: int
    has_older: bool
    has_newer: bool


def series_of(job: str, window: Window, max_points: int) -> JobSeries:
    """Put a window of iterations into at most ``max_points`` points."""
    rows = window.rows
    plans = [{} if row.summary is None else orjson.loads(row.summary) for row in rows]
    numbers = [row.iteration for row in rows]
    starts = numbered_starts(numbers, max_points)
    chosen = [plan.get("strategy") for plan in plans]

    def taken(name: str) -> list[float | None]:
        return [plan.get(name) for plan in plans]

    def counted(*states: str) -> list[int]:
        return _counts([row.state in states for row in rows], starts)

    lasts = [*(starts[1:] - 1), len(rows) - 1] if len(starts) else []
    return JobSeries(
        job=job,
        num_iterations=window.num_iterations,
        num_read=len(rows),
        has_older=window.has_older,
        has_newer=window.has_newer,
        first=[numbers[index] for index in starts],
        last=[numbers[index] for index in lasts],
        num_planned=counted("planned"),
        num_failed=counted("failed"),
        num_open=counted("collecting", "due", "solving"),
        makespan_ms=spread_of(taken("makespan_ms"), starts),
        measured_ms=spread_of([row.measured_ms for row in rows], starts),
        gap=spread_of(taken("gap"), starts),
        planning_ms=spread_of(taken("planning_ms"), starts),
        strategies=_strategies(chosen, starts),
        num_strategies=len({strategy for strategy in chosen if strategy is not None}),
    )


def _strategies(chosen: Sequence[Any], starts: Starts) -> list[StrategyCounts]:
    totals = Counter(strategy for strategy in chosen if strategy is not None)
    # Equally frequent ones in a fixed order, so that colours stay while iterations are added.
    frequent = [name for name, _ in sorted(totals.items(), key=lambda entry: (-entry[1], entry[0]))][:MAX_STRATEGIES]
    told = [
        StrategyCounts(strategy=name, counts=_counts([strategy == name for strategy in chosen], starts))
        for name in frequent
    ]
    if len(totals) > len(frequent):
        known = {None, *frequent}
        others = _counts([strategy not in known for strategy in chosen], starts)
        told.append(StrategyCounts(strategy=None, counts=others))
    return told


def _counts(is_counted: Sequence[bool], starts: Starts) -> list[int]:
    if not len(starts):
        return []
    return [int(count) for count in np.add.reduceat(np.asarray(is_counted, dtype=np.int64), starts)]
