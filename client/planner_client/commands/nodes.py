"""`hydraulis nodes`: the nodes whose agents report to a service."""

from typing import TYPE_CHECKING

import typer

from planner_client.commands.options import JsonOption
from planner_client.commands.service import asks_service

if TYPE_CHECKING:
    from rich.text import Text

    from planner_client.client import PlannerClient
    from planner_client.contract import Node

nodes = typer.Typer(
    name="nodes", help="List the nodes whose agents (`hydraulis agent`) report to a service.", no_args_is_help=True
)

LATE_AFTER = 3.0
"""Reports that an agent misses before its node is called late."""


@nodes.callback()
def _nodes() -> None:
    """Keep ``list`` a command of its own, beside which others may come."""


@nodes.command("list")
@asks_service("nodes list")
def list_nodes(client: "PlannerClient", *, as_json: JsonOption = False) -> None:
    """List nodes with what they compute with, and how long ago their agents were heard of."""
    from planner_client.commands.paging import read_list  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.shown import note, print_json, print_table  # noqa: PLC0415

    found = read_list(
        "nodes", lambda after, count: client.nodes(after=after or "", limit=count), lambda node: node.name
    )
    if as_json:
        print_json([node.model_dump(mode="json") for node in found])
    elif not found:
        note("no agent reported its node here; `hydraulis agent --planner URL` does")
    else:
        print_table(
            ("node", "devices", "job", "agent", "last seen"),
            ((node.name, _devices(node), node.job or "any", node.agent_version, _last_seen(node)) for node in found),
            right=("last seen",),
        )


def is_late(node: "Node") -> bool:
    """Whether a node's agent was not heard of for longer than it said it would be silent."""
    return node.last_seen_age_s > LATE_AFTER * node.every_s


def _devices(node: "Node") -> str:
    return ", ".join(f"{device.count} x {device.name}" for device in node.devices)


def _last_seen(node: "Node") -> "str | Text":
    from planner_client.commands.shown import age, coloured  # noqa: PLC0415 - keeps `hydraulis --help` fast

    ago = age(0.0, node.last_seen_age_s)
    return coloured(f"{ago}, late", "red") if is_late(node) else ago
