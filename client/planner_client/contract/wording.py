"""How messages name things of which there may be many."""

from collections.abc import Sequence

MOST_NAMED = 8
"""Names in a message."""


def first_few(names: Sequence[str]) -> str:
    """Name the first of some things, and tell how many more there are; empty where there are none."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
