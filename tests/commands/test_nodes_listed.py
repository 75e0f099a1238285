"""Nodes of a real planner: a table for people, JSON for machines."""

import pytest
from command_line import hydraulis

from planner_client import PlannerClient
from planner_client.contract import Node, NodeDevice, NodeReport


def test_nodes_are_listed_by_name_with_their_devices_and_who_is_late(
    empty_planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HYDRAULIS_URL", empty_planner)
    nothing = hydraulis("nodes", "list")
    assert (nothing.code, nothing.out) == (0, "")
    assert "hydraulis agent" in nothing.err
    gpus = [NodeDevice(name="H200", count=8, memory_bytes=2**37), NodeDevice(name="A800", count=2, memory_bytes=2**36)]
    with PlannerClient(empty_planner) as client:
        client.report_node("b", NodeReport(agent_version="1", devices=gpus, job="run-1", every_s=0.001))
        client.report_node("a", NodeReport(agent_version="2", devices=gpus[1:], every_s=3600))
    heading, *rows = [line.split("  ") for line in hydraulis("nodes", "list").out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in (heading, *rows)]
    assert cells[0] == ["node", "devices", "job", "agent", "last seen"]
    assert cells[1][:4] == ["a", "2 x A800", "any", "2"]
    assert cells[2][:4] == ["b", "8 x H200, 2 x A800", "run-1", "1"]
    assert [row[4].endswith(", late") for row in cells[1:]] == [False, True]
    listed = [Node.model_validate(node, extra="forbid") for node in hydraulis("nodes", "list", "--json").json()]
    assert [node.name for node in listed] == ["a", "b"]
    assert listed[1].devices == gpus
