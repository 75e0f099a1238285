"""Timings: what ranks measured while they ran a plan."""

from typing import Annotated, Literal

from pydantic import Field

from planner_client.contract.scalars import MAX_GPUS, MAX_MICRO_BATCHES_TIMED, MeasuredMs, NonNegativeInt, Sent


class ReplicaTiming(Sent):
    """Measured time of one replica of a plan.

    Attributes
    ----------
    replica
        Its number in the plan.
    wall_ms
        Wall-clock time of all its micro-batches.
    cpu_ms
        CPU time of all its micro-batches, where it was measured.
    micro_batch_ms
        Time of each micro-batch, in the order they ran.
    """

    replica: NonNegativeInt
    wall_ms: MeasuredMs
    cpu_ms: MeasuredMs | None = None
    micro_batch_ms: Annotated[list[MeasuredMs], Field(max_length=MAX_MICRO_BATCHES_TIMED, fail_fast=True)]


class IterationTimings(Sent):
    """Measured times of one iteration.

    Attributes
    ----------
    digest
        Digest of the plan that was run.
    iteration
        Number of the iteration.
    replicas
        What was measured of each replica.
    solved_by
        Who made the plan: the ``planner``, or a client by itself as a ``fallback``, of which the planner only counts
        that it happened.
    """

    digest: str
    iteration: NonNegativeInt
    replicas: Annotated[list[ReplicaTiming], Field(min_length=1, max_length=MAX_GPUS)]
    solved_by: Literal["planner", "fallback"] = "planner"
