"""The bench's results for people: bars, the headline by profile and GPUs, and what broke."""

import statistics
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from planner_service.simulation.verdicts import CaseResult, Headline, bars_of, broken_invariants, headline

MOST_BROKEN_SHOWN = 12


def show_bench(results: Sequence[CaseResult], seconds: float, console: Console | None = None) -> None:
    """Print what was measured.

    Parameters
    ----------
    results
        Every case.
    seconds
        Wall clock of the whole run.
    console
        Where to print; standard output if None.
    """
    out = console or Console()
    ordered = sorted(results, key=lambda result: result.case)
    infeasible = [result for result in ordered if result.replay is None]
    out.print(f"{len(ordered) - len(infeasible)} cases in {seconds:,.0f} s, {len(infeasible)} infeasible ones left out")
    out.print(_bars(ordered))
    heads = [entry for result in ordered if (entry := headline(result)) is not None]
    if heads:
        out.print(_headlines(heads))
    broken = [text for result in ordered for text in broken_invariants(result)]
    for text in broken[:MOST_BROKEN_SHOWN]:
        out.print(f"broken: {text}", style="red", highlight=False, markup=False)
    if len(broken) > MOST_BROKEN_SHOWN:
        out.print(f"and {len(broken) - MOST_BROKEN_SHOWN} more", style="red")


def _bars(results: Sequence[CaseResult]) -> Table:
    table = Table(title="What is asked for", title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    table.add_column("bar")
    for name in ("asked for", "measured", "met"):
        table.add_column(name, justify="right", no_wrap=True)
    for bar in bars_of(results):
        met = "-" if bar.is_met is None else "[green]yes[/green]" if bar.is_met else "[red]no[/red]"
        table.add_row(bar.name, bar.limit, bar.measured, met)
    return table


def _headlines(heads: Sequence[Headline]) -> Table:
    table = Table(
        title="Simulated speed-up of free strategies over the best static homogeneous one with the plain loader",
        caption="over streams and batch sizes; holding: against static strategies that hold 32768 tokens",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("profile", no_wrap=True)
    for name in ("GPUs", "cases", "min", "median", "max", "holding: min", "median", "max"):
        table.add_column(name, justify="right", no_wrap=True)
    for profile, num_gpus in sorted({(entry.case.profile, entry.case.num_gpus) for entry in heads}):
        own = [entry for entry in heads if (entry.case.profile, entry.case.num_gpus) == (profile, num_gpus)]
        holding = [entry.speed_up_holding_max_length for entry in own if entry.speed_up_holding_max_length is not None]
        table.add_row(
            profile, str(num_gpus), str(len(own)), *_spread([entry.speed_up for entry in own]), *_spread(holding)
        )
    return table


def _spread(values: Sequence[float]) -> tuple[str, str, str]:
    if not values:
        return "-", "-", "-"
    return f"{min(values):.2f}x", f"{statistics.median(values):.2f}x", f"{max(values):.2f}x"
