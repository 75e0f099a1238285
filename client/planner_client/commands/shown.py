"""What people read on a terminal: tables, times, and text of others made harmless."""

import json
import sys
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

WIDTH_WHEN_PIPED = 100_000
"""Wide enough that nothing is folded where no screen limits it."""


def plain(text: str) -> str:
    """Write text so that it stays on one line and does nothing to a terminal: what does not print is escaped."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def coloured(text: str, colour: str) -> "Text":
    """Give a cell or fact a colour, which only a terminal shows."""
    from rich.text import Text  # noqa: PLC0415 - keeps `hydraulis --help` fast

    return Text(plain(text), style=colour)


def _print(table: "Table") -> None:
    """Print a table as wide as the terminal is; where there is none, with no limit, colour or padding of lines."""
    from rich.console import Console  # noqa: PLC0415 - keeps `hydraulis --help` fast

    if sys.stdout.isatty():
        Console(highlight=False).print(table)
        return
    piped = Console(width=WIDTH_WHEN_PIPED, force_terminal=False, color_system=None, highlight=False)
    with piped.capture() as capture:
        piped.print(table)
    sys.stdout.write("".join(line.rstrip() + "\n" for line in capture.get().splitlines()))


def print_table(headings: Sequence[str], rows: "Iterable[Sequence[str | Text]]", *, right: Iterable[str] = ()) -> None:
    """Print a table; cells that are too wide are folded, never cut.

    Parameters
    ----------
    headings
        One for each column.
    rows
        Their cells; text is made harmless here.
    right
        Headings of columns that are aligned to the right: figures.
    """
    from rich.table import Table  # noqa: PLC0415 - keeps `hydraulis --help` fast

    figures = set(right)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold", justify="right" if heading in figures else "left")
    for row in rows:
        table.add_row(*map(_text, row))
    _print(table)


def print_facts(facts: "Iterable[tuple[str, str | Text | None]]") -> None:
    """Print named facts below one another; those that are None are left out."""
    from rich.table import Table  # noqa: PLC0415 - keeps `hydraulis --help` fast

    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, fact in facts:
        if fact is not None:
            table.add_row(name, _text(fact))
    _print(table)


def _text(content: "str | Text") -> "Text":
    from rich.text import Text  # noqa: PLC0415 - keeps `hydraulis --help` fast

    return Text(plain(content)) if isinstance(content, str) else content


def print_space() -> None:
    """Part what was printed from what follows."""
    sys.stdout.write("\n")


def print_json(document: Any) -> None:
    """Print one JSON document, in ASCII, which every terminal and pipe can carry."""
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def note(sentence: str) -> None:
    """Say something beside the result, on standard error."""
    sys.stderr.write(plain(sentence) + "\n")


def instant(seconds: float) -> str:
    """Write a time (s since 1970) for people: UTC to the minute."""
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(seconds))


def age(seconds: float, now: float) -> str:
    """Write how long ago something was in at most 7 characters: 12 s, 5 min, 3 h, 40 days."""
    passed = max(0, int(now - seconds))
    for length, unit in ((86_400, "days" if passed >= 172_800 else "day"), (3_600, "h"), (60, "min")):
        if passed >= length:
            return f"{passed // length} {unit}"
    return f"{passed} s"


def milliseconds(value: float | None) -> str:
    """Write a time, or a dash."""
    return "-" if value is None else f"{value:,.1f}" if value < 1e7 else f"{value:.3e}"


def percent(value: float | None) -> str:
    """Write a share, or a dash."""
    return "-" if value is None else f"{value:.2%}"
