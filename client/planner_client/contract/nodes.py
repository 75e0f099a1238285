"""Nodes: the machines whose agents report what their ranks hold."""

from typing import Annotated

from pydantic import Field, StringConstraints

from planner_client.contract.scalars import JobName, NonNegativeFloat, NonNegativeInt, PositiveInt, Returned, Sent

MAX_DEVICE_TYPES = 64
MAX_REPORT_EVERY_S = 86_400

NodeName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
"""What a node is called in addresses; also the name of the source that its agent reports as."""

_Label = Annotated[str, StringConstraints(min_length=1, max_length=128)]


class NodeDevice(Sent):
    """Devices of one type in a node.

    Attributes
    ----------
    name
        What the type is called.
    count
        How many of them the node has.
    memory_bytes
        Memory of each; for CPU cores, the node's memory shared out among them.
    """

    name: _Label
    count: PositiveInt
    memory_bytes: NonNegativeInt


class NodeReport(Sent):
    """What an agent says of its node, again and again while it runs.

    Attributes
    ----------
    agent_version
        Version of the agent.
    devices
        What the node computes with.
    job
        The one job that the node works for; null if it takes any.
    every_s
        How often the agent reports (s), so that others can tell a node that is late.
    """

    agent_version: _Label
    devices: Annotated[list[NodeDevice], Field(min_length=1, max_length=MAX_DEVICE_TYPES)]
    job: JobName | None = None
    every_s: Annotated[float, Field(gt=0, le=MAX_REPORT_EVERY_S, allow_inf_nan=False)] = 10.0


class Node(Returned):
    """A node as its agent last reported it.

    Attributes
    ----------
    name
        What it is called.
    agent_version, devices, job, every_s
        As reported.
    registered_at
        When it was first reported (seconds since 1970, UTC).
    last_seen_at
        When it was last reported (seconds since 1970, UTC).
    last_seen_age_s
        How long ago that was, by the planner's clock (s).
    """

    name: str
    agent_version: str
    devices: list[NodeDevice]
    job: str | None
    every_s: NonNegativeFloat
    registered_at: NonNegativeFloat
    last_seen_at: NonNegativeFloat
    last_seen_age_s: NonNegativeFloat


class NodeList(Returned):
    """Some nodes.

    Attributes
    ----------
    nodes
        Ascending by name.
    next_after
        Give it as ``after`` to go on; null if these were the last.
    """

    nodes: list[Node]
    next_after: str | None
