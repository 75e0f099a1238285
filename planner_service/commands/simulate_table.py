"""A replay for people: what each planner cost over the stream, and in each iteration."""

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from planner_service.commands.failures import in_options
from planner_service.simulation.records import Replay
from planner_service.simulation.totals import Totals, totals_of

MOST_ITERATIONS_SHOWN = 24
MOST_FAILURES_SHOWN = 8


def show_replay(replay: Replay, html: Path | None = None, console: Console | None = None) -> None:
    """Print a replay as tables.

    Parameters
    ----------
    replay
        What was replayed.
    html
        Where a report was written.
    console
        Where to print; standard output if None.
    """
    out = console or Console()
    totals = totals_of(replay)
    out.print(_totals(replay, totals))
    for method in dict.fromkeys(trial.method for trial in replay.static):
        best = next(trial for trial in replay.static if trial.method == method)
        out.print(f"[bold]{method}[/bold] keeps {best.strategy}", highlight=False)
    out.print(_iterations(replay))
    for sentence in _failures(replay, totals):
        out.print(in_options(sentence), highlight=False, markup=False)
    if html is not None:
        out.print(f"report: {html}", highlight=False, soft_wrap=True, markup=False)


def _failures(replay: Replay, totals: tuple[Totals, ...]) -> list[str]:
    """Say of each planner without any plan why, and of the others which iterations they failed on."""
    without = [entry.planner for entry in totals if entry.num_failed and not entry.num_planned]
    said = [f"{name} has no plan in any iteration; the first time: {replay.of(name)[0].failure}" for name in without]
    single = [outcome for outcome in replay.outcomes if outcome.planned is None and outcome.planner not in without]
    said += [
        f"{outcome.planner} has no plan in iteration {outcome.iteration}: {outcome.failure}"
        for outcome in single[:MOST_FAILURES_SHOWN]
    ]
    if len(single) > MOST_FAILURES_SHOWN:
        said.append(f"and {len(single) - MOST_FAILURES_SHOWN} more without a plan")
    return said


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _seconds(value_ms: float | None) -> str:
    if value_ms is None:
        return "-"
    return f"{value_ms / 1000:,.2f}" if value_ms < 1e9 else f"{value_ms / 1000:.3g}"


def _short(name: str) -> str:
    return name.replace("karmarkar-karp", "kk")


def _totals(replay: Replay, totals: tuple[Totals, ...]) -> Table:
    charged = f"; each change of strategy adds {replay.switch_ms:g} ms to both times" if replay.switch_ms else ""
    table = Table(
        title=f"{replay.title}, profile {replay.profile}, {replay.gpus} GPUs",
        caption="time: closed form; 1F1B: simulated; gap all: to the bound over all strategies it may form; "
        f"plan: median planning time; chg: changes of strategy; speed-ups are over {replay.planners[0]}{charged}",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    table.add_column("planner", no_wrap=True)
    for name in ("plans", "time s", "1F1B s", "speed-up", "1F1B", "gap", "gap all", "plan ms", "chg"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry in totals:
        ms = entry.planning_ms_median
        table.add_row(
            _short(entry.planner),
            str(entry.num_planned) + (f"/{entry.num_planned + entry.num_failed}" if entry.num_failed else ""),
            _seconds(entry.charged_makespan_ms),
            _seconds(entry.charged_simulated_ms),
            _times(entry.speed_up),
            _times(entry.simulated_speed_up),
            _percent(entry.mean_gap),
            _percent(entry.mean_all_strategies_gap),
            "-" if ms is None else f"{ms:,.0f}",
            str(entry.num_switches) if entry.num_planned else "-",
        )
    return table


def _iterations(replay: Replay) -> Table:
    first, last = replay.planners[0], "free" if "free" in replay.planners else replay.planners[-1]
    table = Table(
        caption="each iteration alone: simulated, changes of strategy not charged" if replay.switch_ms else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    for name in ("#", "seqs", "tokens", "longest", f"{_short(first)} s", f"{last} s", "speed-up"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(f"strategy of {last}", overflow="fold")
    ours = {outcome.iteration: outcome.planned for outcome in replay.of(last)}
    theirs = {outcome.iteration: outcome.planned for outcome in replay.of(first)}
    for iteration in replay.iterations[:MOST_ITERATIONS_SHOWN]:
        own, other = ours.get(iteration.index), theirs.get(iteration.index)
        ratio = other.simulated_ms / own.simulated_ms if own and other and own.simulated_ms else None
        table.add_row(
            str(iteration.index),
            f"{iteration.num_sequences:,}",
            f"{iteration.num_tokens:,}",
            f"{iteration.longest:,}",
            _seconds(other.simulated_ms if other else None),
            _seconds(own.simulated_ms if own else None),
            _times(ratio),
            own.strategy if own else "no plan",
        )
    if len(replay.iterations) > MOST_ITERATIONS_SHOWN:
        more = f"and {len(replay.iterations) - MOST_ITERATIONS_SHOWN} more iterations"
        table.caption = f"{more}; {table.caption}" if table.caption else more
    return table
