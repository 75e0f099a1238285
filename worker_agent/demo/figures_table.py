"""The figures of a run as rows of text, for the terminal and for the report. Pure."""

from collections.abc import Callable

from worker_agent.demo.outcome import MODES, ModeFigures, Outcome, figures

FigureRow = tuple[str, str, str]
"""What it is, with its unit; plain; planned."""

_ROWS: tuple[tuple[str, Callable[[ModeFigures], str]], ...] = (
    ("iteration time (s)", lambda row: f"{row.iteration_ms / 1000:.2f}"),
    ("slowest rank: compute time (s)", lambda row: f"{row.slowest_compute_ms / 1000:.2f}"),
    ("slowest rank: CPU time (s)", lambda row: f"{row.slowest_cpu_ms / 1000:.2f}"),
    ("balance: slowest / mean rank, compute time", lambda row: f"{row.balance:.3f}"),
    ("balance: slowest / mean rank, CPU time", lambda row: f"{row.cpu_balance:.3f}"),
    ("balance: slowest / mean rank, predicted", lambda row: f"{row.predicted_balance:.3f}"),
    ("slowest rank: predicted compute time (s)", lambda row: f"{row.predicted_ms / 1000:.2f}"),
    ("predicted against wall time: median error (%)", lambda row: f"{row.median_abs_error_pct:.1f}"),
    ("predicted against CPU time: median error (%)", lambda row: f"{row.median_abs_cpu_error_pct:.1f}"),
    ("gap to the proven bound (%)", lambda row: "none proven" if row.gap is None else f"{100 * row.gap:.2f}"),
    ("planner's own time (ms)", lambda row: f"{row.planning_ms:.1f}"),
    ("time to fetch the plan (ms)", lambda row: f"{row.fetch_ms:.1f}"),
    ("waited for the plan (ms)", lambda row: f"{row.waited_ms:.1f}"),
    ("planning time hidden (%)", lambda row: "-" if row.hidden_share is None else f"{100 * row.hidden_share:.0f}"),
    ("final loss (nats per token)", lambda row: f"{row.final_loss:.5f}"),
)


def figure_rows(outcome: Outcome) -> list[FigureRow]:
    """Return one row a figure: what it is, the plain loader's value, the planned one's."""
    plain, planned = (figures(outcome.of_mode(mode)) for mode in MODES)
    return [(name, text(plain), text(planned)) for name, text in _ROWS]


def verdict(outcome: Outcome) -> list[str]:
    """Return sentences on wall time, on the slowest rank's CPU time and, where it matters, on other load."""
    sentences = [
        f"iteration time: {_compared(outcome.speed_up)} when planned, waits for plans included",
        f"CPU time of the slowest rank: {_compared(outcome.cpu_speed_up)} when planned",
    ]
    if not outcome.was_quiet:
        sentences.append(
            f"the ranks had a core for only {100 * outcome.cpu_share:.0f} % of their compute time: other work ran on "
            "this machine, so that wall times follow the total work more than the slowest rank; go by the CPU time"
        )
    return sentences


def _compared(ratio: float) -> str:
    return f"{ratio:.2f}x shorter" if ratio >= 1 else f"{1 / ratio:.2f}x longer"
