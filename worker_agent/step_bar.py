"""A bar of steps on a terminal; where there is no terminal, nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class StepBar:
    """A bar on the console that moves step by step."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def move_to(self, done: int, total: int | None = None, note: str = "") -> None:
        """Show ``done`` steps as done, of another ``total`` if one is given, and a note beside them."""
        self._progress.update(self._task, completed=done, total=total, note=note)

    def advance(self) -> None:
        """Show one more step as done."""
        self._progress.advance(self._task)


@contextmanager
def step_bar(console: Console, title: str, total: int) -> Iterator[StepBar]:
    """Show a bar of ``total`` steps on a console while the block runs, and take it away after it."""
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield StepBar(progress, progress.add_task(title, total=total, note=""))
