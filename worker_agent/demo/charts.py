"""The report's charts, each drawn from the outcome of a run."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from worker_agent.demo.changing_charts import draw_strategies
from worker_agent.demo.chart_style import INK, MUTED, PLAIN, PLAIN_SOFT, PLANNED, PLANNED_SOFT, as_svg
from worker_agent.demo.outcome import MODES, IterationRecord, Mode, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_STRONG: dict[Mode, str] = {"plain": PLAIN, "planned": PLANNED}
_SOFT: dict[Mode, str] = {"plain": PLAIN_SOFT, "planned": PLANNED_SOFT}
_NAMES: dict[Mode, str] = {"plain": "plain loader", "planned": "planned"}


def draw_charts(outcome: Outcome) -> dict[str, str]:
    """Draw every chart of the report.

    Returns
    -------
    dict
        Name of the chart -> ``<svg>`` element, ready to stand inside an HTML page: text stays text, ids carry the
        chart's name, and nothing refers to anything outside.
    """
    drawings: dict[str, Callable[..., None]] = {
        "loads": _draw_loads,
        "lengths": _draw_lengths,
        "predictions": _draw_predictions,
        "losses": _draw_losses,
        "planning": _draw_planning,
        "strategies": draw_strategies,
    }
    heights = {"loads": 4.6, "strategies": 5.4}
    return {
        name: as_svg(name, partial(draw, outcome=outcome), heights.get(name, 3.6)) for name, draw in drawings.items()
    }


def _draw_loads(figure: "Figure", outcome: Outcome) -> None:
    panels = figure.subplots(2, 1, sharex=True, sharey=True)
    for axes, mode in zip(panels, MODES, strict=True):
        records = outcome.of_mode(mode)
        num_ranks = len(records[0].cpu_ms)
        width = 0.8 / num_ranks
        for rank in range(num_ranks):
            axes.bar(
                [record.iteration + (rank - (num_ranks - 1) / 2) * width for record in records],
                [record.cpu_ms[rank] / 1000 for record in records],
                width=width * 0.92,
                color=_STRONG[mode] if rank % 2 == 0 else _SOFT[mode],
                label=f"rank {rank}",
            )
        axes.set_title(f"{_NAMES[mode]}: CPU time of each rank", loc="left")
        axes.set_ylabel("CPU time (s)")
        axes.grid(visible=False, axis="x")
        axes.legend(loc="upper right", ncols=num_ranks, bbox_to_anchor=(1, 1.22))
    _whole_iterations(panels[-1], outcome)


def _draw_lengths(figure: "Figure", outcome: Outcome) -> None:
    axes = figure.subplots()
    lengths = outcome.corpus.lengths
    edges = _log_edges(min(lengths), max(lengths), num_bins=24)
    axes.hist(lengths, bins=edges, color=PLANNED, rwidth=0.92)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(bottom=0.7)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_minor_formatter(lambda _value, _: "")
    axes.set_title("Sequence lengths of the corpus", loc="left")
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("sequences")


def _draw_predictions(figure: "Figure", outcome: Outcome) -> None:
    axes = figure.subplots()
    top = 0.0
    for mode, marker in zip(MODES, ("o", "D"), strict=True):
        pairs = [
            (predicted / 1000, measured / 1000)
            for record in outcome.of_mode(mode)
            for predicted, measured in zip(record.predicted_ms, record.cpu_ms, strict=True)
        ]
        axes.scatter(
            [predicted for predicted, _ in pairs],
            [measured for _, measured in pairs],
            s=26,
            marker=marker,
            facecolor=_STRONG[mode],
            edgecolor="none",
            label=_NAMES[mode],
        )
        top = max(top, *(max(pair) for pair in pairs))
    axes.axline((0, 0), slope=1, color=MUTED, linewidth=1.2, linestyle="--", label="predicted = measured")
    axes.set_xlim(0, top * 1.05)
    axes.set_ylim(0, top * 1.05)
    axes.set_title("Predicted against measured CPU time, each rank of each iteration", loc="left")
    axes.set_xlabel("predicted time (s)")
    axes.set_ylabel("measured CPU time (s)")
    axes.legend(loc="upper left")


def _draw_losses(figure: "Figure", outcome: Outcome) -> None:
    axes = figure.subplots()
    plain, planned = (outcome.of_mode(mode) for mode in MODES)
    axes.plot(_iterations(plain), [record.loss for record in plain], color=PLAIN, linewidth=5, label=_NAMES["plain"])
    axes.plot(
        _iterations(planned),
        [record.loss for record in planned],
        color=PLANNED,
        linewidth=1.6,
        marker="D",
        markersize=4,
        label=_NAMES["planned"],
    )
    axes.set_title("Training loss: the same curve twice, since the loss does not depend on the plan", loc="left")
    axes.set_ylabel("loss (nats per token)")
    axes.legend(loc="upper right")
    _whole_iterations(axes, outcome)


def _draw_planning(figure: "Figure", outcome: Outcome) -> None:
    axes = figure.subplots()
    planned = outcome.of_mode("planned")
    steps = _iterations(planned)
    series: Sequence[tuple[str, str, str, Callable[[IterationRecord], float]]] = (
        ("iteration", INK, "s", lambda record: record.wall_ms),
        ("plan fetched (planner and transport)", PLANNED, "D", lambda record: record.fetch_ms),
        ("planner's own time", PLANNED_SOFT, "o", lambda record: record.planning_ms),
    )
    for label, colour, marker, value in series:
        axes.plot(steps, [value(record) for record in planned], color=colour, marker=marker, markersize=5, label=label)
    waits = [(record.iteration, record.waited_ms) for record in planned if record.waited_ms >= 1]
    axes.scatter(
        [step for step, _ in waits],
        [waited for _, waited in waits],
        marker="x",
        s=60,
        color=PLAIN,
        label="waited for a plan (1 ms or more)",
        zorder=3,
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.set_title("Planning time against iteration time", loc="left")
    axes.set_ylabel("time (ms)")
    _whole_iterations(axes, outcome)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)


def _iterations(records: Sequence[IterationRecord]) -> list[int]:
    return [record.iteration for record in records]


def _whole_iterations(axes: "Axes", outcome: Outcome) -> None:
    from matplotlib.ticker import MaxNLocator  # noqa: PLC0415

    axes.set_xlabel("iteration")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    axes.set_xlim(-0.6, len(outcome.of_mode("planned")) - 0.4)


def _log_edges(low: int, high: int, num_bins: int) -> list[float]:
    ratio = (high + 1) / low
    return [low * ratio ** (step / num_bins) for step in range(num_bins + 1)]
