"""Nodes by name."""

from abc import ABC, abstractmethod
from dataclasses import dataclass


@dataclass(frozen=True)
class NodeRow:
    """A node as its agent last reported it.

    Attributes
    ----------
    name
        Its name, unique in the store.
    content
        What was reported, a `NodeReport` as canonical JSON, UTF-8.
    job
        The one job that it works for, as in the content; None for any.
    registered_at, last_seen_at
        When it was reported first and last (seconds since 1970, UTC).
    read_at
        When this was read (seconds since 1970, UTC).
    """

    name: str
    content: bytes
    job: str | None = None
    registered_at: float = 0.0
    last_seen_at: float = 0.0
    read_at: float = 0.0


class NodeStore(ABC):
    """Nodes by name; see `planner_service.store.interface.Store` for what every method owes."""

    @abstractmethod
    def put(self, row: NodeRow) -> NodeRow:
        """Store a node as it is now, in place of what was known of it; its times are the database's.

        Returns
        -------
        NodeRow
            With its times.
        """

    @abstractmethod
    def page(self, *, after: str, limit: int, jobs: tuple[str, ...] | None = None) -> list[NodeRow]:
        """Return nodes whose names come after ``after``, ascending by the codes of their characters.

        Parameters
        ----------
        after, limit
            Where to go on, and how many at most.
        jobs
            Only nodes of these jobs, named whole or by their beginning with ``*`` behind it; None for all nodes.
        """
