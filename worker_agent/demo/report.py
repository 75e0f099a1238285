"""The report as one HTML file that needs nothing else: no script, no font, no image from anywhere."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from worker_agent.demo.agreement import CHANGING_TOLERANCE, MODES_TOLERANCE
from worker_agent.demo.changing_table import CHANGING_HEADING, changing_rows
from worker_agent.demo.charts import draw_charts
from worker_agent.demo.figures_table import figure_rows, verdict
from worker_agent.demo.outcome import Outcome

_CAPTIONS = {
    "loads": "An iteration lasts as long as its slowest rank. A plain loader deals sequences out in turn; planning "
    "gives all ranks the same predicted time. CPU time, since other work on the machine cannot blur it.",
    "lengths": "Both axes are logarithmic. Attention costs the square of the length, so the few long sequences "
    "decide how long an iteration takes.",
    "predictions": "The nearer the diagonal, the better the fitted cost model.",
    "losses": "Both modes start from the same weights and see the same global batches.",
    "planning": "The next plan is fetched while the current iteration computes. The first one has nothing to hide "
    "behind.",
    "strategies": "Blue replicas share each micro-batch between their ranks, by tensor or pipeline parallelism; orange "
    "ones have a rank to themselves. Below, the loss, and that of one process alone on the same batches.",
}

_STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --card: #f6f7f9; --ink: #1d2530; --muted: #66707d; --grid: #dfe3e8; --good: #1a7f4b; --bad: #b3261e;
  --plain: #c8641b; --plain-soft: #eeb78a; --planned: #1f62b0; --planned-soft: #8fb8e6; }
@media (prefers-color-scheme: dark) { :root {
  --page: #12161c; --card: #1a2028; --ink: #e4e8ee; --muted: #98a3b1; --grid: #303945; --good: #5ecb92; --bad: #ff8a80;
  --plain: #f09a55; --plain-soft: #8a552b; --planned: #6fb0ff; --planned-soft: #355f92; } }
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
.good { color: var(--good); } .bad { color: var(--bad); }
figure { margin: 1.4rem 0; background: var(--card); border: 1px solid var(--grid); border-radius: .6rem;
  padding: 1rem; }
svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif; }
svg * { stroke-linejoin: round; stroke-linecap: butt; }
.table { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .4rem .7rem; border-bottom: 1px solid var(--grid); }
td, thead th:not(:first-child) { text-align: right; }
tbody th { font-weight: 400; }
code { font-family: ui-monospace, monospace; font-size: .9em; }
"""


def render_report(outcome: Outcome) -> str:
    """Return the report of a run as one self-contained HTML page."""
    charts = {
        name: f'<figure id="{name}">{svg}<figcaption>{escape(_CAPTIONS[name])}</figcaption></figure>'
        for name, svg in draw_charts(outcome).items()
    }
    changing_chart = charts.pop("strategies")
    first_charts = "\n".join(charts.values())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Hydraulis Planner: demo report</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>Planned against plainly packed training</h1>
<p>{escape(_what_ran(outcome))}</p>
<p class="muted">{escape(outcome.corpus.describe())}.</p>
{_tiles(outcome)}
<p>{escape(". ".join(sentence[0].upper() + sentence[1:] for sentence in verdict(outcome)))}.</p>
<h2>Figures</h2>
<div class="table">{_table(("", "plain loader", "planned"), figure_rows(outcome))}</div>
<p class="muted">Times are means over the iterations. The two modes took turns, so that both met the same other load;
the planned iteration time includes every wait for a plan.</p>
<h2>Charts</h2>
{first_charts}
<h2>Another strategy every iteration</h2>
<p>{escape(_what_changed(outcome))}</p>
{changing_chart}
<div class="table">{_table(CHANGING_HEADING, changing_rows(outcome.changing))}</div>
<p class="muted">Propagation: what moving parameters and gradients between the optimizer's shards and the iteration's
layout added to the iteration, on the rank that computed longest.</p>
<h2>Cost model of this machine</h2>
<p>{escape(_cost_model(outcome))}</p>
<div class="table">{_table(("coefficient", "value"), _coefficients(outcome))}</div>
<h2>Settings</h2>
<div class="table">{_table(("setting", "value"), _settings(outcome))}</div>
</main>
</body>
</html>
"""


def write_report(outcome: Outcome, path: Path) -> None:
    """Write the report of a run to ``path``.

    Raises
    ------
    OSError
        If the file cannot be written.
    """
    path.write_text(render_report(outcome), encoding="utf-8")


def _what_ran(outcome: Outcome) -> str:
    planned = outcome.of_mode("planned")
    num_sequences = sum(record.num_sequences for record in planned)
    num_tokens = sum(record.num_tokens for record in planned)
    return (
        f"A small decoder trained for {len(planned)} iterations on {num_sequences} sequences ({num_tokens:,} tokens) "
        f"with {len(planned[0].measured_ms)} ranks, twice: packed as a plain data loader does, and as planned by the "
        "service from a profile of this machine."
    )


def _what_changed(outcome: Outcome) -> str:
    changing = outcome.changing
    return (
        f"The same text again, in sequences of up to {changing.max_length:,} tokens and on {changing.num_ranks} ranks: "
        "each iteration runs by a plan for another strategy. Master weights and Adam's moments stay where they are; "
        "parameters travel from them to the layout that computes, and gradients back. Beside it one process alone "
        "trains the same decoder on the same batches, one sequence at a time, without plans, shards or collectives. "
        f"Losses {'agree' if changing.losses_agree else 'DISAGREE'}: largest relative difference "
        f"{changing.loss_difference:.1e}. The costs planned by are {changing.profile_source}."
    )


def _tiles(outcome: Outcome) -> str:
    agree, changing_agree = outcome.losses_agree, outcome.changing.losses_agree
    tiles = (
        (f"{outcome.speed_up:.2f}x", "iteration time, plain over planned, waits for plans included", ""),
        (f"{outcome.cpu_speed_up:.2f}x", "CPU time of the slowest rank, plain over planned", ""),
        (f"{outcome.profile.held_out_median_abs_pct_error:.1f} %", "median error of the fit on held-out samples", ""),
        (
            f"{outcome.loss_difference:.1e}",
            f"largest relative loss difference: losses {'agree' if agree else 'DISAGREE'} (limit {MODES_TOLERANCE:g})",
            "good" if agree else "bad",
        ),
        (
            f"{outcome.changing.loss_difference:.1e}",
            f"changing strategies against one process: losses {'agree' if changing_agree else 'DISAGREE'} "
            f"(limit {CHANGING_TOLERANCE:g})",
            "good" if changing_agree else "bad",
        ),
    )
    inner = "".join(
        f'<div class="tile"><b class="{kind}">{escape(value)}</b>{escape(text)}</div>' for value, text, kind in tiles
    )
    return f'<div class="tiles">{inner}</div>'


def _cost_model(outcome: Outcome) -> str:
    profile = outcome.profile
    return (
        f"Fitted by the service to {profile.num_samples} measured micro-batches: R² {profile.r2:.4f}, median error "
        f"{profile.median_abs_pct_error:.1f} %; on {profile.num_held_out} samples the fit never saw, "
        f"{profile.held_out_median_abs_pct_error:.1f} %. Time of a micro-batch: c + sum of (a s² + b s) over its "
        "sequences of s tokens, forward and backward."
    )


def _coefficients(outcome: Outcome) -> list[tuple[str, str]]:
    profile = outcome.profile
    return [
        ("a (ms per token²)", f"{profile.a_ms_per_token2:.4g}"),
        ("b (ms per token)", f"{profile.b_ms_per_token:.4g}"),
        ("c (ms per micro-batch)", f"{profile.c_ms:.4g}"),
        ("synchronisation (ms per iteration)", f"{profile.sync_ms:.4g}"),
        ("limit of a micro-batch (tokens)", f"{profile.max_tokens:,}"),
    ]


def _settings(outcome: Outcome) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), _setting(value)) for name, value in outcome.settings.items()]


def _setting(value: object) -> str:
    return "; ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    heading = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{heading}</tr></thead><tbody>{body}</tbody></table>"
