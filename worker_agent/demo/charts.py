"""The report's charts as SVG whose colours are CSS variables, so that one drawing suits light and dark pages."""

import io
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from worker_agent.demo.outcome import MODES, IterationRecord, Mode, Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CSS_COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--grid)",
    "#030303": "var(--plain)",
    "#040404": "var(--plain-soft)",
    "#050505": "var(--planned)",
    "#060606": "var(--planned-soft)",
    "#070707": "var(--muted)",
}
"""matplotlib knows no CSS variables: it draws with these stand-ins, which are replaced in the finished SVG."""

_INK, _GRID, _PLAIN, _PLAIN_SOFT, _PLANNED, _PLANNED_SOFT, _MUTED = _CSS_COLOURS
_STRONG: dict[Mode, str] = {"plain": _PLAIN, "planned": _PLANNED}
_SOFT: dict[Mode, str] = {"plain": _PLAIN_SOFT, "planned": _PLANNED_SOFT}
_NAMES: dict[Mode, str] = {"plain": "plain loader", "planned": "planned"}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hydraulis",
    "font.family": "sans-serif",
    "font.size": 10,
    "text.color": _INK,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "axes.titlecolor": _INK,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": _GRID,
    "grid.linewidth": 0.8,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


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
    }
    heights = {"loads": 4.6}
    return {
        name: _as_svg(name, partial(draw, outcome=outcome), heights.get(name, 3.6)) for name, draw in drawings.items()
    }


def _as_svg(name: str, draw: Callable[[Any], None], height: float) -> str:
    import matplotlib as mpl  # noqa: PLC0415 - slow to import, and only a report needs it
    from matplotlib.figure import Figure  # noqa: PLC0415

    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(7.2, height), layout="constrained")
        draw(figure)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    return _embeddable(written.getvalue(), name)


def _embeddable(svg: str, name: str) -> str:
    """Keep the ``<svg>`` element alone and make it live in an HTML page: own ids, CSS colours, no outside names."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style type=\"text/css\">.*?</style>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href=", "href=")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    for stand_in, variable in _CSS_COLOURS.items():
        svg = svg.replace(stand_in, variable)
    return svg


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
    axes.hist(lengths, bins=edges, color=_PLANNED, rwidth=0.92)
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
    axes.axline((0, 0), slope=1, color=_MUTED, linewidth=1.2, linestyle="--", label="predicted = measured")
    axes.set_xlim(0, top * 1.05)
    axes.set_ylim(0, top * 1.05)
    axes.set_title("Predicted against measured CPU time, each rank of each iteration", loc="left")
    axes.set_xlabel("predicted time (s)")
    axes.set_ylabel("measured CPU time (s)")
    axes.legend(loc="upper left")


def _draw_losses(figure: "Figure", outcome: Outcome) -> None:
    axes = figure.subplots()
    plain, planned = (outcome.of_mode(mode) for mode in MODES)
    axes.plot(_iterations(plain), [record.loss for record in plain], color=_PLAIN, linewidth=5, label=_NAMES["plain"])
    axes.plot(
        _iterations(planned),
        [record.loss for record in planned],
        color=_PLANNED,
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
        ("iteration", _INK, "s", lambda record: record.wall_ms),
        ("plan fetched (planner and transport)", _PLANNED, "D", lambda record: record.fetch_ms),
        ("planner's own time", _PLANNED_SOFT, "o", lambda record: record.planning_ms),
    )
    for label, colour, marker, value in series:
        axes.plot(steps, [value(record) for record in planned], color=colour, marker=marker, markersize=5, label=label)
    waits = [(record.iteration, record.waited_ms) for record in planned if record.waited_ms >= 1]
    axes.scatter(
        [step for step, _ in waits],
        [waited for _, waited in waits],
        marker="x",
        s=60,
        color=_PLAIN,
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
