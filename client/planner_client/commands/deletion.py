"""Deleting: asked for twice, by a person on a terminal or by `--yes`."""

import sys
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from planner_client.commands.service import FAILED, Ending
from planner_client.commands.shown import note, plain

YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")]


def delete_all(kind: str, names: Sequence[str], delete: Callable[[str], None], *, yes: bool, also: str = "") -> None:
    """Delete things by name, once that is confirmed.

    Parameters
    ----------
    kind
        What they are, in the singular.
    names
        Which; one that is named twice is deleted once.
    delete
        Deletes one.
    yes
        Confirmed already.
    also
        What goes with them, said before it is confirmed.

    Raises
    ------
    Ending
        If it is not confirmed.
    """
    from planner_client.contract.wording import first_few  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.errors import HydraulisError  # noqa: PLC0415

    distinct = list(dict.fromkeys(names))
    what = f"{kind} {first_few(distinct)}" if len(distinct) == 1 else f"{len(distinct)} {kind}s: {first_few(distinct)}"
    if not yes:
        _confirm(f"delete {what}{also}?")
    for number, name in enumerate(distinct):
        try:
            delete(name)
        except HydraulisError:
            if len(distinct) > 1:
                note(f"{number} of {len(distinct)} {kind}s deleted, then {name} failed")
            raise
        note(f"{kind} {name} is deleted")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise Ending("deleting needs --yes where there is no terminal to ask on; nothing is deleted")
    sys.stderr.write(f"{plain(question)} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise Ending("nothing is deleted", FAILED)
