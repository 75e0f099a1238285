"""A profile's fit as a picture: measured against predicted times, errors over tokens, and memory."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner_client.commands.figures import layout_name
from planner_client.commands.service import FAILED, Ending
from planner_client.commands.shown import plain
from planner_client.contract import Fit, FitPoint, LayoutCost, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENDINGS = (".svg", ".png", ".pdf")
MOST_LAYOUTS = 24
"""Layouts that one picture has room for."""

_STYLE: dict[Any, Any] = {"svg.hashsalt": "hydraulis", "svg.fonttype": "none", "font.size": 9.0, "axes.grid": True}
_INLIER, _OUTLIER, _LINE = "#1f6f8b", "#c8553d", "#555555"


def refuse_unusable_plot(path: Path) -> None:
    """Refuse a file that a picture cannot be written to, before anything is asked.

    Raises
    ------
    Ending
        If its ending names no format, its folder is missing, or matplotlib is.
    """
    if path.suffix.lower() not in ENDINGS:
        raise Ending(f"--plot {path} ends in none of {', '.join(ENDINGS)}; the ending says which format to write")
    if not path.parent.is_dir():
        raise Ending(f"--plot {path} lies in {path.parent}, which is no directory; create it or name another file")
    try:
        import matplotlib as mpl  # noqa: F401, PLC0415 - seconds to import, and only plots need it
    except ImportError:
        raise Ending("--plot needs matplotlib: pip install 'hydraulis-planner[agent]'", FAILED) from None


def plotted_layouts(profile: Profile) -> list[tuple[LayoutCost, Fit]]:
    """Return the layouts that samples are kept of, and their fits."""
    return [(cost, cost.fit) for cost in profile.layouts if cost.fit is not None and cost.fit.points]


def plot_fit(profile: Profile, path: Path) -> int:
    """Draw a row for each layout with samples; return how many layouts there was no room for.

    Raises
    ------
    Ending
        If no layout has samples.
    """
    import matplotlib as mpl  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    layouts = plotted_layouts(profile)
    if not layouts:
        raise Ending(f"profile {profile.name} keeps no samples to plot: it was registered as coefficients")
    shown = layouts[:MOST_LAYOUTS]
    has_memory = any(point.memory_bytes is not None for _, fit in shown for point in fit.points)
    num_columns = 3 if has_memory else 2
    with mpl.rc_context(_STYLE):
        figure: Figure = Figure(figsize=(4.2 * num_columns, 3.1 * len(shown) + 0.5), layout="constrained")
        figure.suptitle(_text(f"{profile.name}: {profile.model.name} on {profile.device.name}"))
        panels = figure.subplots(len(shown), num_columns, squeeze=False)
        for row, (cost, fit) in zip(panels, shown, strict=True):
            _draw_times(row[0], cost, fit)
            _draw_errors(row[1], cost, fit)
            if has_memory:
                _draw_memory(row[2], profile, cost, fit)
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    return len(layouts) - len(shown)


def predicted_ms(cost: LayoutCost, point: FitPoint) -> float:
    """Return the time (ms) that a layout's coefficients give one of its samples."""
    return cost.c_ms + cost.b_ms_per_token * point.num_tokens + cost.a_ms_per_token2 * point.sum_squares


def _text(text: str) -> str:
    """Keep what others named from being read as mathematics."""
    return plain(text)[:120].replace("$", r"\$")


def _parted(fit: Fit) -> list[tuple[str, str, list[FitPoint]]]:
    inliers = [point for point in fit.points if not point.is_outlier]
    outliers = [point for point in fit.points if point.is_outlier]
    return [("samples", _INLIER, inliers), ("left out", _OUTLIER, outliers)]


def _draw_times(axes: "Axes", cost: LayoutCost, fit: Fit) -> None:
    for name, colour, points in _parted(fit):
        if points:
            times = [point.time_ms for point in points]
            axes.scatter([predicted_ms(cost, point) for point in points], times, s=14, color=colour, label=name)
    ends = [min(point.time_ms for point in fit.points), max(point.time_ms for point in fit.points)]
    axes.plot(ends, ends, color=_LINE, linewidth=1, label="as predicted")
    axes.set(xscale="log", yscale="log", xlabel="predicted (ms)", ylabel="measured (ms)")
    axes.set_title(f"{layout_name(cost)}: R² {fit.r2:.4f}, median error {fit.median_abs_pct_error:.1f}%", loc="left")
    axes.legend()


def _draw_errors(axes: "Axes", cost: LayoutCost, fit: Fit) -> None:
    for _, colour, points in _parted(fit):
        errors = [100 * (point.time_ms / max(predicted_ms(cost, point), 1e-12) - 1) for point in points]
        axes.scatter([point.num_tokens for point in points], errors, s=14, color=colour)
    axes.axhline(0, color=_LINE, linewidth=1)
    axes.set(xscale="log", xlabel="tokens of the micro-batch", ylabel="measured over predicted (%)")
    axes.set_yscale("symlog", linthresh=20)
    held_out = fit.held_out
    if held_out is not None:
        axes.set_title(
            f"held out: median {held_out.median_abs_pct_error:.1f}%, worst {held_out.worst_abs_pct_error:.0f}%",
            loc="left",
        )


def _draw_memory(axes: "Axes", profile: Profile, cost: LayoutCost, fit: Fit) -> None:
    measured = [(point.num_tokens, point.memory_bytes / 2**30) for point in fit.points if point.memory_bytes]
    axes.scatter([tokens for tokens, _ in measured], [gib for _, gib in measured], s=14, color=_INLIER)
    line = fit.memory
    if line is not None:
        last = max(line.measured_tokens, cost.max_tokens or 0)
        ends = [line.base_bytes / 2**30, (line.base_bytes + line.bytes_per_token * last) / 2**30]
        axes.plot([0, last], ends, color=_LINE, linewidth=1)
        axes.axhline((1 - line.safety_share) * profile.device.memory_bytes / 2**30, color=_OUTLIER, linewidth=1)
    if cost.max_tokens is not None:
        axes.axvline(cost.max_tokens, color=_LINE, linewidth=1, linestyle="dotted")
        axes.set_title(f"limit {cost.max_tokens:,} tokens", loc="left")
    axes.set(xlabel="tokens of the micro-batch", ylabel="memory of the fullest GPU (GiB)")
