"""The pipelines of a plan's slowest replicas: pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner_client.contract import PipelineTimeline
from planner_service.core.schedules import OneForwardOneBackward, OperationKind, run
from planner_service.simulation.gantt import MAX_BOXES, MAX_ROWS, row_names
from planner_service.simulation.records import Pipeline

DECIMALS = 3


@dataclass(frozen=True)
class PlannedPipeline:
    """A replica's pipeline.

    Attributes
    ----------
    replica
        Its number in the plan.
    simulated_ms
        Its time under 1F1B, as the plan tells it.
    pipeline
        What it runs.
    """

    replica: int
    simulated_ms: float
    pipeline: Pipeline

    @property
    def num_operations(self) -> int:
        """Forward and backward passes of all its stages."""
        return 2 * self.pipeline.num_stages * len(self.pipeline.micro_batches_ms)


def slowest_that_fit(
    pipelines: Sequence[PlannedPipeline], *, max_rows: int = MAX_ROWS, max_operations: int = MAX_BOXES
) -> list[PlannedPipeline]:
    """Choose the slowest replicas, slowest first, until rows or operations would be too many."""
    chosen: list[PlannedPipeline] = []
    num_rows = num_operations = 0
    for entry in sorted(pipelines, key=lambda entry: (-entry.simulated_ms, entry.replica)):
        num_rows += entry.pipeline.num_stages
        num_operations += entry.num_operations
        if num_rows > max_rows or num_operations > max_operations:
            break
        chosen.append(entry)
    return chosen


def timeline_of(pipelines: Sequence[PlannedPipeline]) -> PipelineTimeline:
    """Run pipelines event by event and write down when each stage does what, in the order given."""
    names: list[str] = []
    replicas: list[int] = []
    stages: list[int] = []
    rows: list[int] = []
    micro_batches: list[int] = []
    is_backward: list[bool] = []
    begins: list[float] = []
    ends: list[float] = []
    total_ms = 0.0
    for entry in pipelines:
        pipeline = entry.pipeline
        timeline = run(OneForwardOneBackward(), pipeline.num_stages, pipeline.micro_batches_ms)
        total_ms = max(total_ms, timeline.total_ms)
        first = len(names)
        names += row_names(entry.replica, pipeline)
        replicas += [entry.replica] * pipeline.num_stages
        stages += range(pipeline.num_stages)
        for span in timeline.spans:
            rows.append(first + span.stage)
            micro_batches.append(span.micro_batch)
            is_backward.append(span.kind is not OperationKind.FORWARD)
            begins.append(round(span.begin_ms, DECIMALS))
            ends.append(round(span.end_ms, DECIMALS))
    return PipelineTimeline(
        row_replica=replicas,
        row_stage=stages,
        row_name=names,
        num_replicas_shown=len(pipelines),
        total_ms=total_ms,
        row=rows,
        micro_batch=micro_batches,
        is_backward=is_backward,
        begin_ms=begins,
        end_ms=ends,
    )
