"""Long lists and long work: page by page, one by one, with progress on standard error where somebody watches."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from planner_client.commands.shown import note

Entry = TypeVar("Entry")
After = TypeVar("After", str, int)
Item = TypeVar("Item")
Found = TypeVar("Found")

PAGE = 1000
"""Entries asked for at once: the most a service gives."""

NOT_FOUND = 404


class Deleted(Exception):  # noqa: N818 - names what became of it
    """What was listed a moment ago is not there any more."""


def read_list(
    what: str,
    fetch: Callable[[After | None, int], list[Entry]],
    after_of: Callable[[Entry], After],
    *,
    after: After | None = None,
    limit: int | None = None,
) -> list[Entry]:
    """Read a list to its end, page by page; each page has the whole time of one answer.

    Parameters
    ----------
    what
        What it lists, such as ``jobs``.
    fetch
        Gives at most so many entries after one.
    after_of
        What to give ``fetch`` so that it goes on after an entry.
    after
        Where to begin; None for the beginning.
    limit
        Most entries; None for all.
    """
    found: list[Entry] = []
    with counting(f"{what} read") as show:
        while limit is None or len(found) < limit:
            num_asked = PAGE if limit is None else min(PAGE, limit - len(found))
            page = fetch(after, num_asked)
            found += page
            show(len(found))
            if len(page) < num_asked:
                break
            after = after_of(page[-1])
    return found


def one_by_one(what: str, items: Iterable[Item], total: int) -> Iterator[Item]:
    """Go through items, showing how far it is."""
    with counting(what, total) as show:
        for number, item in enumerate(items):
            yield item
            show(number + 1)


def all_named(kind: str, names: Sequence[Item], fetch: Callable[[Item], Found]) -> Iterator[Found]:
    """Fetch what somebody named, one by one; one that is not there ends it."""
    return (fetch(name) for name in one_by_one(f"{kind} read", names, len(names)))


def those_still_there(kind: str, items: Sequence[Item], fetch: Callable[[Item], Found]) -> Iterator[Found]:
    """Fetch what was listed, one by one; what was deleted since then is left out, and how many these were is said.

    A service goes on while somebody reads its lists: what goes meanwhile is no reason to fail for all the rest.

    Parameters
    ----------
    kind
        What they are, in the plural.
    items
        What was listed.
    fetch
        Gives one of them; `Deleted`, or the service's refusal as unknown, says that it is gone.
    """
    from planner_client.errors import RequestRefused  # noqa: PLC0415 - keeps `hydraulis --help` fast

    num_gone = 0
    for item in one_by_one(f"{kind} read", items, len(items)):
        try:
            found = fetch(item)
        except Deleted:
            num_gone += 1
        except RequestRefused as refused:
            if refused.problem.status != NOT_FOUND:
                raise
            num_gone += 1
        else:
            yield found
    if num_gone:
        note(f"{num_gone:,} of {len(items):,} {kind} were deleted meanwhile and are left out")


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a count on standard error that each call sets; nothing where there is no terminal."""
    from rich.console import Console  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn  # noqa: PLC0415

    stderr = Console(stderr=True)
    columns = (
        SpinnerColumn(),
        *((BarColumn(24), MofNCompleteColumn()) if total is not None else (TextColumn("{task.completed:,}"),)),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.update(task, completed=done)
