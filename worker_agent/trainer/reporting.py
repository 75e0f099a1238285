"""Tells of each iteration: a line and a bar for people, JSON lines for programs, a function for the script."""

from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

from worker_agent.step_bar import StepBar, step_bar
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import ReportSettings


class Reporter:
    """Reports iterations on the rank that reports; on the others it does nothing.

    Parameters
    ----------
    settings
        Who hears what.
    reports
        Whether this rank reports.
    num_iterations
        Length of the run, if it is known.
    begun_at
        Iterations that are done already.
    console
        Where people read; standard error by default.
    """

    def __init__(
        self,
        settings: ReportSettings,
        *,
        reports: bool,
        num_iterations: int | None,
        begun_at: int = 0,
        console: Console | None = None,
    ) -> None:
        self._settings = settings
        self._reports = reports
        self._num_iterations = num_iterations
        self._begun_at = begun_at
        self._console = Console(stderr=True) if console is None else console
        self._stack = ExitStack()
        self._bar: StepBar | None = None
        self._lines: TextIOWrapper | None = None

    def open(self) -> None:
        """Open what is reported to.

        Raises
        ------
        OSError
            If the file of JSON lines cannot be opened for writing.
        """
        if not self._reports:
            return
        if self._settings.json_lines is not None:
            path = Path(self._settings.json_lines)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lines = self._stack.enter_context(path.open("a", encoding="utf-8"))
        if self._settings.progress and self._num_iterations is not None:
            self._bar = self._stack.enter_context(step_bar(self._console, "iterations", self._num_iterations))
            self._bar.move_to(self._begun_at)

    def close(self) -> None:
        """Close what is reported to."""
        self._stack.close()

    def say(self, text: str) -> None:
        """Write one line for people."""
        if self._reports and self._settings.progress:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def report(self, metrics: IterationMetrics) -> None:
        """Tell of one iteration."""
        if not self._reports:
            return
        if self._lines is not None:
            # Line by line on the disk: the last line before a crash is the one people look for.
            self._lines.write(metrics.as_json_line() + "\n")
            self._lines.flush()
        self.say(metrics.as_text(self._num_iterations))
        if self._bar is not None:
            self._bar.move_to(metrics.iteration + 1)
        if self._settings.on_iteration is not None:
            self._settings.on_iteration(metrics)
