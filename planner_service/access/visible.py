"""The jobs that a token shows, page by page, without reading those it does not."""

from collections.abc import Iterator

from planner_service.store import JobRow, JobStore


def visible_jobs(store: JobStore, patterns: tuple[str, ...] | None, *, after: str, limit: int) -> list[JobRow]:
    """Return jobs that match any of the patterns and come after a name, ascending by name, at most ``limit``. Blocks.

    Parameters
    ----------
    store
        Where jobs are kept; its order of names is that of their characters' codes.
    patterns
        Names, or beginnings of names with ``*`` behind them; None for all.
    after, limit
        Where to go on, and how many at most.
    """
    if patterns is None:
        return store.page(after=after, limit=limit)
    found: list[JobRow] = []
    for pattern in disjoint(patterns):
        found.extend(_matching(store, pattern, after=after, limit=limit - len(found)))
        if len(found) >= limit:
            break
    return found


def disjoint(patterns: tuple[str, ...]) -> list[str]:
    """Leave out what other patterns hold, and sort by the names meant, so that each name is met once and in order."""
    kept: list[str] = []
    beginning: str | None = None
    # Sorted like this, all names with a beginning stand right behind it.
    for pattern in sorted(set(patterns), key=lambda text: (text.removesuffix("*"), not text.endswith("*"))):
        name = pattern.removesuffix("*")
        if beginning is not None and name.startswith(beginning):
            continue
        kept.append(pattern)
        if pattern.endswith("*"):
            beginning = name
    return kept


def _matching(store: JobStore, pattern: str, *, after: str, limit: int) -> Iterator[JobRow]:
    beginning = pattern.removesuffix("*")
    first = store.get(beginning) if beginning > after else None
    num_found = 0
    if first is not None:
        num_found = 1
        yield first
    if not pattern.endswith("*") or num_found >= limit:
        return
    for row in store.page(after=max(beginning, after), limit=limit - num_found):
        if not row.name.startswith(beginning):
            return
        yield row
