"""Nodes by name, on SQL."""

from typing import Any

from sqlalchemy import ColumnElement, Connection, false, or_, select, update

from planner_service.store.node_store import NodeRow, NodeStore
from planner_service.store.sql.database import Database, Transaction, now_of
from planner_service.store.sql.tables import NODES


class SqlNodeStore(NodeStore):
    """Nodes in one table; see `NodeStore`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, row: NodeRow) -> NodeRow:
        """Store a node as it is now; see `NodeStore.put`."""
        return self._database.write(lambda transaction: _put(transaction, row))

    def page(self, *, after: str, limit: int, jobs: tuple[str, ...] | None = None) -> list[NodeRow]:
        """Return nodes whose names come after ``after``; see `NodeStore.page`."""
        # Names hold no NUL, which is the least of all characters: nothing is between the beginning and the whole.
        query = select(NODES).where(NODES.c.name > after.partition("\x00")[0]).order_by(NODES.c.name).limit(limit)
        if jobs is not None:
            query = query.where(or_(false(), *map(_matches, jobs)))

        def work(connection: Connection) -> list[NodeRow]:
            now = float(connection.execute(select(now_of(connection))).scalar_one())
            return [_node_row(row, now) for row in connection.execute(query)]

        return self._database.read(work)


def _put(transaction: Transaction, row: NodeRow) -> NodeRow:
    connection, now = transaction.connection, transaction.now()
    values = {"content": row.content, "job": row.job, "last_seen_at": now}
    own = NODES.c.name == row.name
    # A node that is there can be pruned before it is changed; then its name is free again.
    while not transaction.insert_unless_there(NODES, name=row.name, registered_at=now, **values):
        if connection.execute(update(NODES).where(own).values(values)).rowcount:
            registered_at = connection.execute(select(NODES.c.registered_at).where(own)).scalar_one()
            return NodeRow(row.name, row.content, row.job, registered_at, now, now)
    return NodeRow(row.name, row.content, row.job, now, now, now)


def _matches(pattern: str) -> ColumnElement[bool]:
    if not pattern.endswith("*"):
        return NODES.c.job == pattern
    return NODES.c.job.is_not(None) & NODES.c.job.startswith(pattern.removesuffix("*"), autoescape=True)


def _node_row(row: Any, now: float) -> NodeRow:
    return NodeRow(row.name, bytes(row.content), row.job, row.registered_at, row.last_seen_at, now)
