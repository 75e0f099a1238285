"""What a demo run shows while it runs and when it is done."""

from contextlib import AbstractContextManager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from worker_agent.demo.changing import ChangingRecord, ChangingRun
from worker_agent.demo.changing_table import changing_row
from worker_agent.demo.figures_table import figure_rows, verdict
from worker_agent.demo.outcome import FittedLayout, IterationRecord, Mode, Outcome
from worker_agent.step_bar import StepBar, step_bar

_HEADING = """\
  iter  loss (nats)      iteration (s)   slowest/mean rank  planning (ms)
          plain planned   plain planned    plain planned    itself  waited"""

_CHANGING_HEADING = """\
  iter  strategy         loss      alone     difference  propagation  ranks: tokens"""


class DemoDisplay:
    """Writes progress to a console: bars where it is a terminal, lines everywhere.

    Parameters
    ----------
    console
        Where to write.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._halves: dict[int, dict[Mode, IterationRecord]] = {}

    def say(self, text: str) -> None:
        """Write one line."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def bar(self, title: str, total: int) -> AbstractContextManager[StepBar]:
        """Show a bar of ``total`` steps while the block runs."""
        return step_bar(self._console, title, total)

    def show_fit(self, fit: FittedLayout) -> None:
        """Write what the service fitted to the measurement."""
        self.say(
            f"  time of a micro-batch = {fit.c_ms:.2f} ms + {1e3 * fit.b_ms_per_token:.2f} ms per 1000 tokens "
            f"+ {1e6 * fit.a_ms_per_token2:.2f} ms per (1000 tokens)^2"
        )
        self.say(
            f"  fitted to {fit.num_samples} samples: R^2 {fit.r2:.4f}, median error {fit.median_abs_pct_error:.1f} %; "
            f"on {fit.num_held_out} held out: {fit.held_out_median_abs_pct_error:.1f} %"
        )

    def show_iteration(self, record: IterationRecord) -> bool:
        """Take one mode's iteration; once both modes' are here, write their line and tell so."""
        pair = self._halves.setdefault(record.iteration, {})
        pair[record.mode] = record
        if len(pair) < 2:
            return False
        if len(self._halves) == 1:
            self.say(_HEADING)
        plain, planned = pair["plain"], pair["planned"]
        self.say(
            f"{record.iteration:6d}  {plain.loss:7.4f} {planned.loss:7.4f}  {plain.wall_ms / 1000:6.2f} "
            f"{planned.wall_ms / 1000:7.2f}  {plain.balance:7.2f} {planned.balance:7.2f}  "
            f"{planned.planning_ms:8.0f} {planned.waited_ms:7.0f}"
        )
        return True

    def show_changing(self, record: ChangingRecord) -> None:
        """Write the line of an iteration of the second part, below a heading if it is the first."""
        if record.iteration == 0:
            self.say(_CHANGING_HEADING)
        iteration, strategy, tokens, loss, alone, difference, propagation = changing_row(record)
        self.say(f"{iteration:>6}  {strategy:15}  {loss}  {alone}  {difference:>10}  {propagation:>11}  {tokens}")

    def show_outcome(self, outcome: Outcome, report: Path) -> None:
        """Write the table of figures, the verdict and where the report is."""
        table = Table(title="Planned against plainly packed training", title_justify="left")
        table.add_column("mean over the iterations")
        table.add_column("plain loader", justify="right")
        table.add_column("planned", justify="right")
        for row in figure_rows(outcome):
            table.add_row(*row)
        self._console.print(table)
        for line in verdict(outcome):
            self.say(line)
        self.say(
            f"losses {'agree' if outcome.losses_agree else 'DISAGREE'}: largest relative difference "
            f"{outcome.loss_difference:.1e}"
        )
        self.say(_strategies_told(outcome.changing))
        self.say(f"took {outcome.elapsed_s:.0f} s; report: {report}")


def _strategies_told(changing: ChangingRun) -> str:
    strategies = {record.strategy for record in changing.records}
    return (
        f"{len(strategies)} strategies in {len(changing.records)} iterations on {changing.num_ranks} ranks: losses "
        f"{'agree with' if changing.losses_agree else 'DISAGREE with'} one process alone, largest relative difference "
        f"{changing.loss_difference:.1e}"
    )
