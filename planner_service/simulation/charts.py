"""The charts of a replay: each as a name, an SVG and a caption."""

from collections.abc import Sequence

from planner_service.simulation.gantt import gantt_of
from planner_service.simulation.records import Planned, Replay
from planner_service.simulation.svg import Series, grouped_bars, lines, spans, strip
from planner_service.simulation.totals import Totals

Chart = tuple[str, str, str]

MOST_BARS = 160
"""Beyond this many bars the iterations are drawn as lines."""


def _series(replay: Replay, take: str) -> list[Series]:
    return [
        Series(
            name,
            by_iteration(replay, name, take),
        )
        for name in replay.planners
    ]


def by_iteration(replay: Replay, name: str, take: str) -> list[float | None]:
    """Take one figure of a planner's plans, iteration by iteration; None where there is no plan."""
    values: list[float | None] = [None] * len(replay.iterations)
    for outcome in replay.of(name):
        if outcome.planned is not None:
            values[outcome.iteration] = getattr(outcome.planned, take)
    return values


def charts_of(replay: Replay) -> list[Chart]:
    """Draw times, gaps, planning times and strategies over the iterations."""
    categories = [str(iteration.index) for iteration in replay.iterations]
    simulated = [
        Series(entry.name, [None if value is None else value / 1000 for value in entry.values])
        for entry in _series(replay, "simulated_ms")
    ]
    draw = grouped_bars if len(categories) * len(simulated) <= MOST_BARS else lines
    gaps = [
        Series(entry.name, [None if value is None else 100 * value for value in entry.values])
        for entry in _series(replay, "all_strategies_gap")
    ]
    held: list[tuple[str, list[str | None]]] = []
    for name in replay.planners:
        cells: list[str | None] = [None] * len(categories)
        for outcome in replay.of(name):
            if outcome.planned is not None:
                cells[outcome.iteration] = outcome.planned.strategy
        held.append((name, cells))
    return [
        ("times", draw("Simulated time of each iteration in seconds", categories, simulated),
         "Simulated time of each iteration in seconds, by planner."),
        ("gaps", lines("Gap to the bound over all strategies in percent", categories, gaps),
         "Gap of the makespan to the proven bound over all strategies that the planner may form, in percent."),
        ("planning", lines("Planning time in ms", categories, _series(replay, "planning_ms"), is_log=True),
         "Planning time in milliseconds; the axis is logarithmic. A baseline's includes proving its bounds."),
        ("strategies", strip("Strategy of each iteration", held),
         "Strategy of each iteration: equal colours are equal strategies; rarer ones than those named are grey."),
    ]  # fmt: skip


def gantts_of(replay: Replay, totals: Sequence[Totals]) -> list[Chart]:
    """Draw the iteration with the greatest gain, as the first planner and the best one run it."""
    rivals = [entry for entry in totals if entry.planner != replay.planners[0] and entry.simulated_speed_up]
    if not rivals:
        shown = [(name, 0, planned) for name in replay.planners[:1] if (planned := _planned(replay, name, 0))]
    else:
        best = max(rivals, key=lambda entry: (entry.planner == "free", entry.simulated_speed_up or 0.0)).planner
        pairs = [
            (one.simulated_ms / other.simulated_ms, iteration.index, one, other)
            for iteration in replay.iterations
            if (one := _planned(replay, replay.planners[0], iteration.index)) is not None
            and (other := _planned(replay, best, iteration.index)) is not None
            and other.simulated_ms > 0
        ]
        if not pairs:
            return []
        _, index, one, other = max(pairs, key=lambda pair: (pair[0], -pair[1]))
        shown = [(replay.planners[0], index, one), (best, index, other)]
    last = max((planned.simulated_ms for _, _, planned in shown), default=0.0) / 1000
    drawn = []
    for position, (name, index, planned) in enumerate(shown):
        gantt = gantt_of(planned)
        left_out = gantt.num_replicas - gantt.num_shown
        drawn.append(
            (
                f"gantt-{position}",
                spans(f"Pipelines of {name} in iteration {index}", gantt.rows, gantt.boxes, last),
                f"Iteration {index} by {name}: {planned.strategy}, {planned.simulated_ms / 1000:,.2f} s. "
                "One row for each pipeline stage; forward blue, backward green, micro-batches in turns strong and pale."
                + (f" The slowest {gantt.num_shown} of {gantt.num_replicas} replicas are shown." if left_out else ""),
            )
        )
    return drawn


def _planned(replay: Replay, name: str, index: int) -> Planned | None:
    return next((outcome.planned for outcome in replay.of(name) if outcome.iteration == index), None)
