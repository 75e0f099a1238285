"""How long a store may block, and how much it does at a time."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StoreLimits:
    """Bounds of one store object.

    Attributes
    ----------
    wait_s
        Longest wait for a free connection, for the lock of another writer, or for a connection to be made.
    statement_s
        Longest time that one statement may take on PostgreSQL, waits for locks included.
    answer_s
        Longest wait for a word from a PostgreSQL server, after which the connection counts as lost; longer than
        ``statement_s``, so that a server that works gets to say itself what took so long.
    open_s
        Longest wait, when opening, for another service that creates or upgrades the same tables.
    upgrade_s
        Longest time that one statement of an upgrade may take on PostgreSQL.
    num_connections
        Most connections to PostgreSQL, besides one that listens.
    """

    wait_s: float = 5.0
    statement_s: float = 8.0
    answer_s: float = 10.0
    open_s: float = 60.0
    upgrade_s: float = 600.0
    num_connections: int = 12
