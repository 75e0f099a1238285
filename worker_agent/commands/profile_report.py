"""What `hydraulis profile` tells people: how far it is, what was measured, what the planner made of it."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.table import Table

from planner_client.contract import LayoutCost, MeasuredLayout, Profile, ProfileMeasurement
from worker_agent.profiler.measure import MeasuringProgress
from worker_agent.step_bar import step_bar

_LINE_EVERY_S = 30.0
_MINUTE_S = 60


@contextmanager
def shown_progress(console: Console) -> Iterator[Callable[[MeasuringProgress], None]]:
    """Show a bar while the block runs; where there is no terminal, a line now and then."""
    with step_bar(console, "micro-batches measured", 1) as bar:
        told_s = time.monotonic()

        def show(progress: MeasuringProgress) -> None:
            nonlocal told_s
            note = _note(progress)
            bar.move_to(progress.done, progress.total, note)
            if not console.is_terminal and time.monotonic() - told_s >= _LINE_EVERY_S:
                told_s = time.monotonic()
                say(console, f"{progress.done} of {progress.total} micro-batches measured; {note}")

        yield show


def show_measurement(console: Console, measurement: ProfileMeasurement) -> None:
    """Write a row for each layout, and where its figures come from."""
    table = Table(title=f"measured for profile {measurement.name}", title_justify="left")
    for heading in ("layout", "samples", "outliers", "micro-batch", "time", "peak memory"):
        table.add_column(heading, justify="left" if heading == "layout" else "right")
    for layout in measurement.layouts:
        table.add_row(*_measured_row(layout))
    console.print(table)
    say(console, f"{measurement.source}; synchronisation {measurement.sync_ms:.1f} ms an iteration")


def show_profile(console: Console, profile: Profile) -> None:
    """Write how well the planner's fit explains the samples of each layout, and what speaks against it."""
    say(console, f"the planner keeps profile {profile.name!r}:")
    for cost in profile.layouts:
        say(console, f"  {_fitted(cost)}")
        for warning in [] if cost.fit is None else cost.fit.warnings:
            say(console, f"    warning: {warning}")


def say(console: Console, text: str) -> None:
    """Write one line, as it is."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _note(progress: MeasuringProgress) -> str:
    left = "" if progress.left_s is None else f"about {_duration(progress.left_s)} left; "
    load = "unknown" if progress.foreign_cores is None else f"{progress.foreign_cores:.2f} cores"
    return f"{left}foreign load {load}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"


def _measured_row(layout: MeasuredLayout) -> tuple[str, ...]:
    largest = max((sample.lengths for sample in layout.samples), key=sum)
    times = [sample.time_ms for sample in layout.samples if sample.lengths == largest and not sample.is_outlier]
    peaks = [sample.memory_bytes for sample in layout.samples if sample.memory_bytes is not None]
    return (
        f"{layout.tp}x{layout.pp}",
        str(len(layout.samples)),
        str(sum(sample.is_outlier for sample in layout.samples)),
        f"{sum(largest):,} tokens",
        f"{statistics.median(times):,.1f} ms" if times else "-",
        f"{max(peaks) / 2**20:,.0f} MiB" if peaks else "-",
    )


def _fitted(cost: LayoutCost) -> str:
    limit = "" if cost.max_tokens is None else f", at most {cost.max_tokens:,} tokens"
    if cost.fit is None:
        return f"{cost.tp}x{cost.pp}{limit}"
    held_out = cost.fit.held_out
    unseen = "" if held_out is None else f", {held_out.median_abs_pct_error:.1f} % on samples held out"
    return (
        f"{cost.tp}x{cost.pp}: R^2 {cost.fit.r2:.4f}, median error {cost.fit.median_abs_pct_error:.1f} % over "
        f"{cost.fit.num_samples} samples{unseen}{limit}"
    )
