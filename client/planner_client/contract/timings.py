"""Timings: what ranks measured while they ran a plan."""

from typing import Annotated

from pydantic import Field

from planner_client.contract.scalars import NonNegativeFloat, NonNegativeInt, Sent


class ReplicaTiming(Sent):
    """Measured time of one replica of a plan, whole and by micro-batch, in the order they ran."""

    replica: NonNegativeInt
    wall_ms: NonNegativeFloat
    cpu_ms: NonNegativeFloat | None = None
    micro_batch_ms: list[NonNegativeFloat]


class IterationTimings(Sent):
    """Measured times of one iteration, for the plan with this digest."""

    digest: str
    iteration: NonNegativeInt
    replicas: Annotated[list[ReplicaTiming], Field(min_length=1)]
