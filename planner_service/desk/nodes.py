"""The nodes whose agents say that they are there."""

from planner_client.contract import Node, NodeList, NodeReport
from planner_service.desk.canonical import canonical_json
from planner_service.store import NodeRow, NodeStore


class NodeRegister:
    """Keeps what agents report, and tells it. Its methods block.

    Parameters
    ----------
    store
        Where nodes are kept.
    """

    def __init__(self, store: NodeStore) -> None:
        self._store = store

    def report(self, name: str, report: NodeReport) -> Node:
        """Keep what a node's agent reports."""
        return _node(self._store.put(NodeRow(name, canonical_json(report), report.job)))

    def page(self, *, after: str, limit: int, jobs: tuple[str, ...] | None = None) -> NodeList:
        """Return some nodes, ascending by name; of the jobs that match a pattern, if there are any patterns."""
        rows = self._store.page(after=after, limit=limit, jobs=jobs)
        return NodeList(nodes=list(map(_node, rows)), next_after=rows[-1].name if len(rows) == limit else None)


def _node(row: NodeRow) -> Node:
    report = NodeReport.model_validate_json(row.content)
    return Node(
        name=row.name,
        agent_version=report.agent_version,
        devices=report.devices,
        job=report.job,
        every_s=report.every_s,
        registered_at=row.registered_at,
        last_seen_at=row.last_seen_at,
        # A clock that was set back must not make it negative.
        last_seen_age_s=max(0.0, row.read_at - row.last_seen_at),
    )
