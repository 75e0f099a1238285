"""Files for machines: JSON or CSV, whole or not at all."""

import csv
import errno
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, TextIO, TypeVar

import typer

from planner_client.commands.service import Ending
from planner_client.commands.shown import note, plain

Item = TypeVar("Item")
Format = Literal["json", "csv"]
Row = Mapping[str, Any]

STDOUT = "-"
FORMULA_BEGINNINGS = ("=", "+", "-", "@")

FormatOption = Annotated[
    Format | None, typer.Option("--format", help="By the ending of --output if not given; json on standard output.")
]
OutputOption = Annotated[str, typer.Option("--output", "-o", help="File to write; - for standard output.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace the file if there is one.")]


def format_of(output: str, given: Format | None) -> Format:
    """Tell in which format to write.

    Raises
    ------
    Ending
        If neither ``--format`` nor the file's ending says it.
    """
    if given is not None:
        return given
    if output == STDOUT:
        return "json"
    ending = Path(output).suffix.lower()
    if ending not in {".json", ".csv"}:
        raise Ending(f"--output {output} ends in neither .json nor .csv; say --format json or --format csv")
    return "csv" if ending == ".csv" else "json"


def export(  # noqa: PLR0913 - how and where to write are options of the command
    items: Iterable[Item],
    *,
    as_document: Callable[[Item], Any],
    headings: Sequence[str],
    as_rows: Callable[[Item], Iterable[Row]],
    output: str,
    given_format: Format | None,
    force: bool,
) -> None:
    """Write items as they come: a JSON array, or CSV with a row of headings.

    Parameters
    ----------
    as_document, as_rows
        An item as a JSON value, and as rows of CSV by heading; what is None or missing is left empty.
    output
        The file, or ``-``.

    Raises
    ------
    Ending
        If the file is there already and ``force`` is not given.
    """
    is_csv = format_of(output, given_format) == "csv"
    num_written = 0

    def counted() -> Iterator[Item]:
        nonlocal num_written
        for item in items:
            yield item
            num_written += 1

    with _destination(output, force=force) as out:
        if is_csv:
            write_csv(out, headings, (row for item in counted() for row in as_rows(item)))
        else:
            write_json_array(out, (as_document(item) for item in counted()))
    if output != STDOUT:
        note(f"{num_written} exported to {output}")


def write_json_array(out: TextIO, documents: Iterable[Any]) -> None:
    """Write one JSON array, one element a line, in ASCII."""
    separator = "[\n"
    for document in documents:
        out.write(separator + json.dumps(document))
        separator = ",\n"
    out.write("[]\n" if separator == "[\n" else "\n]\n")


def write_csv(out: TextIO, headings: Sequence[str], rows: Iterable[Row]) -> None:
    """Write CSV: a row of headings, commas, points in numbers, one line a row."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    for row in rows:
        writer.writerow([_cell(row.get(heading)) for heading in headings])


def _cell(value: Any) -> Any:
    """Write a value so that a row stays one line and a spreadsheet takes no text for a formula.

    Names of profiles, models and devices are chosen by whoever registers them, and a spreadsheet runs what begins
    with ``=``, ``+``, ``-`` or ``@``. Such text gets an apostrophe in front, as spreadsheets mark text themselves.
    """
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str):
        return value
    text = plain(value)
    return f"'{text}" if text.lstrip().startswith(FORMULA_BEGINNINGS) else text


def utc(seconds: float | None) -> str | None:
    """Write a time (s since 1970) as ISO 8601 in UTC, to the millisecond; None stays None."""
    if seconds is None:
        return None
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + f".{milliseconds:03d}Z"


@contextmanager
def _destination(output: str, *, force: bool) -> Iterator[TextIO]:
    """Open what to write to; a file appears under its name once it is whole, or not at all."""
    if output == STDOUT:
        yield sys.stdout
        return
    target = Path(output)
    if target.is_dir():
        raise Ending(f"--output {output} is a directory; name a file in it")
    if target.exists() and not target.is_file():
        raise Ending(f"--output {output} is no ordinary file; write to standard output with - and redirect that")
    if target.exists() and not force:
        raise _is_there(output)
    target = target.resolve()  # what a link leads to is replaced, not the link
    if not target.parent.is_dir():
        raise Ending(f"--output {output} lies in {target.parent}, which is no directory; create it or name another")
    partial = target.with_name(f".{target.name[:200]}.{os.getpid()}.partial")
    try:
        with partial.open("x", encoding="utf-8", newline="") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        if force:
            partial.replace(target)
        else:
            _name(partial, target, output)
    finally:
        partial.unlink(missing_ok=True)


def _name(partial: Path, target: Path, output: str) -> None:
    """Give a file its name unless another one got it in the meantime."""
    try:
        target.hardlink_to(partial)
    except FileExistsError:
        raise _is_there(output) from None
    except OSError as error:
        if error.errno not in {errno.EPERM, errno.ENOTSUP, errno.ENOSYS}:
            raise
        partial.replace(target)  # a file system without links, where the check before has to do


def _is_there(output: str) -> Ending:
    return Ending(f"--output {output} is there already; say --force to replace it, or name another file")
