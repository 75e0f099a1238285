"""A replay as one HTML file that needs nothing else: no script, no font, no image from anywhere."""

from collections.abc import Sequence
from html import escape

from planner_service.simulation.charts import by_iteration, charts_of, gantts_of
from planner_service.simulation.records import Replay
from planner_service.simulation.totals import Totals, totals_of

_STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --card: #f6f7f9; --ink: #1d2530; --muted: #66707d; --grid: #dfe3e8;
  --s0: #c8641b; --s1: #1f62b0; --s2: #1a7f4b; --s3: #8a3fa8; --s4: #b3261e; --s5: #0d7f8c; --s6: #8a6d00;
  --s7: #66707d; --s8: #e07aa0; --s9: #2b3fae; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2028; --ink: #e4e8ee; --muted: #98a3b1; --grid: #303945;
  --s0: #f09a55; --s1: #6fb0ff; --s2: #5ecb92; --s3: #c992e6; --s4: #ff8a80; --s5: #4fc6d3; --s6: #d9bd4b;
  --s7: #98a3b1; --s8: #f5b3cb; --s9: #a3b1ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 64rem; margin: 0 auto; padding: 2rem 1rem 4rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; line-height: 1.2; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
p { max-width: 46rem; margin: .4rem 0; }
.muted, figcaption { color: var(--muted); font-size: .92rem; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(11rem, 1fr)); gap: .8rem; margin: 1.4rem 0; }
.tile { background: var(--card); border: 1px solid var(--grid); border-radius: .6rem; padding: .8rem 1rem; }
.tile b { display: block; font-size: 1.5rem; line-height: 1.2; }
figure { margin: 1.4rem 0; background: var(--card); border: 1px solid var(--grid); border-radius: .6rem;
  padding: 1rem; overflow-x: auto; }
svg { display: block; width: 100%; min-width: 38rem; height: auto; font: 11px system-ui, sans-serif; }
.axis { fill: var(--muted); } .grid { stroke: var(--grid); stroke-width: 1; }
.s0 { fill: var(--s0); stroke: var(--s0); } .s1 { fill: var(--s1); stroke: var(--s1); }
.s2 { fill: var(--s2); stroke: var(--s2); } .s3 { fill: var(--s3); stroke: var(--s3); }
.s4 { fill: var(--s4); stroke: var(--s4); } .s5 { fill: var(--s5); stroke: var(--s5); }
.s6 { fill: var(--s6); stroke: var(--s6); } .s7 { fill: var(--s7); stroke: var(--s7); }
.s8 { fill: var(--s8); stroke: var(--s8); } .s9 { fill: var(--s9); stroke: var(--s9); }
rect { stroke-width: 0; } .line { fill: none; stroke-width: 2; } .none { fill: none; } .other { fill: var(--grid); }
.f0 { fill: var(--s1); } .f1 { fill: var(--s1); opacity: .72; }
.b0 { fill: var(--s2); } .b1 { fill: var(--s2); opacity: .72; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .4rem .5rem; border-bottom: 1px solid var(--grid); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.words { text-align: left; white-space: normal; }
"""


def render_page(replay: Replay) -> str:
    """Return a replay as one self-contained HTML page."""
    totals = totals_of(replay)
    sections = [_figure(*chart) for chart in (*charts_of(replay), *gantts_of(replay, totals))]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hydraulis Planner: {escape(replay.title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(replay.title)}</h1>
<p class="muted">Profile {escape(replay.profile)}, {escape(replay.gpus)} GPUs, {len(replay.iterations)} iterations of
{sum(iteration.num_tokens for iteration in replay.iterations):,} tokens together. Times are predictions of the profile's
cost model and exclude the synchronisation of gradients, which is the same for all.</p>
{_tiles(replay, totals)}
<h2>Totals</h2>
<div class="table">{_totals_table(replay, totals)}</div>
<p class="muted">Makespan: the closed form common to all planners. Simulated: the same plans under 1F1B, event by event.
Gap: to the bound that each plan proves; gap, all: to the bound over all strategies that it
may form. Planning: the median.
Speed-ups are over {escape(replay.planners[0])}, on the iterations that both planned{_switch_note(replay)}.</p>
{_failures(replay)}
<h2>Charts</h2>
{"".join(sections)}
<h2>Iterations</h2>
<div class="table">{_iterations_table(replay)}</div>
{_static_table(replay)}
</main>
</body>
</html>
"""


def _switch_note(replay: Replay) -> str:
    """Say what the totals hold that charts and iterations, which show each plan alone, do not."""
    if not replay.switch_ms:
        return ""
    return (
        f". Times and speed-ups of this table hold {replay.switch_ms:g} ms for each change of strategy; charts and the "
        "table of iterations do not"
    )


def _figure(name: str, svg: str, caption: str) -> str:
    return f'<figure id="{name}">{svg}<figcaption>{escape(caption)}</figcaption></figure>'


def _tiles(replay: Replay, totals: Sequence[Totals]) -> str:
    best = max(totals, key=lambda entry: entry.simulated_speed_up or 0.0)
    free = next((entry for entry in totals if entry.planner == "free"), best)
    tiles = [
        (_times(free.simulated_speed_up), f"{free.planner} over {replay.planners[0]}, simulated"),
        (_times(free.speed_up), f"{free.planner} over {replay.planners[0]}, closed form"),
        (_percent(free.mean_all_strategies_gap), f"mean gap of {free.planner} to the bound over all strategies"),
        (_ms(free.planning_ms_median), f"median planning time of {free.planner}"),
    ]
    inner = "".join(f'<div class="tile"><b>{escape(value)}</b>{escape(text)}</div>' for value, text in tiles)
    return f'<div class="tiles">{inner}</div>'


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"


def _seconds(value_ms: float | None) -> str:
    return "-" if value_ms is None else f"{value_ms / 1000:,.2f} s"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table>"


def _totals_table(replay: Replay, totals: Sequence[Totals]) -> str:
    num = len(replay.iterations)
    rows = [
        (
            entry.planner,
            f"{entry.num_planned} of {num}"
            if entry.num_failed == 0
            else f"{entry.num_planned}, {entry.num_failed} failed (see below)",
            _seconds(entry.charged_makespan_ms),
            _seconds(entry.charged_simulated_ms),
            _times(entry.speed_up),
            _times(entry.simulated_speed_up),
            _percent(entry.mean_gap),
            _percent(entry.mean_all_strategies_gap),
            _ms(entry.planning_ms_median),
            str(entry.num_switches) if entry.num_planned else "-",
        )
        for entry in totals
    ]
    head = (
        "planner", "iterations", "makespan", "simulated", "speed-up", "simulated", "gap", "gap, all",
        "planning", "switches",
    )  # fmt: skip
    return _table(head, rows)


def _failures(replay: Replay) -> str:
    failed = [outcome for outcome in replay.outcomes if outcome.planned is None]
    if not failed:
        return ""
    rows = "".join(
        f'<tr><td>{escape(outcome.planner)}</td><td>{outcome.iteration}</td><td class="words">'
        f"{escape(outcome.failure or '')}</td></tr>"
        for outcome in failed
    )
    return (
        '<h2>Without a plan</h2><div class="table"><table id="failures"><thead><tr><th>planner</th><th>iteration</th>'
        f'<th class="words">reason</th></tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _iterations_table(replay: Replay) -> str:
    by_planner = {name: by_iteration(replay, name, "makespan_ms") for name in replay.planners}
    rows = [
        (
            str(iteration.index),
            f"{iteration.num_sequences:,}",
            f"{iteration.num_tokens:,}",
            f"{iteration.longest:,}",
            *(_ms(by_planner[name][iteration.index]) for name in replay.planners),
        )
        for iteration in replay.iterations
    ]
    return _table(("iteration", "sequences", "tokens", "longest", *replay.planners), rows)


def _static_table(replay: Replay) -> str:
    if not replay.static:
        return ""
    rows = [
        (
            trial.method,
            trial.strategy,
            "failed" if trial.total_makespan_ms == float("inf") else _seconds(trial.total_makespan_ms),
        )
        for trial in replay.static
    ]
    return (
        "<h2>Static strategies tried</h2><p>Each of these methods keeps one homogeneous strategy for the whole stream; "
        'the one with the least total stands in the comparison.</p><div class="table">'
        f"{_table(('method', 'strategy', 'makespan'), rows)}</div>"
    )
