"""One iteration's pipelines as spans in time: replicas' stages against 1F1B's operations."""

from dataclasses import dataclass

from planner_service.core.schedules import OneForwardOneBackward, OperationKind, run
from planner_service.simulation.records import Pipeline, Planned
from planner_service.simulation.svg import Box

MAX_ROWS = 48
MAX_BOXES = 6000


@dataclass(frozen=True)
class Gantt:
    """Rows and boxes of a chart, and how many of the replicas it shows: the slowest."""

    rows: tuple[str, ...]
    boxes: tuple[Box, ...]
    num_shown: int
    num_replicas: int


def gantt_of(planned: Planned) -> Gantt:
    """Run a plan's pipelines event by event and lay out their stages, slowest replicas first.

    Replicas are left out once rows or boxes would be too many to read.
    """
    timelines = [
        (
            index,
            pipeline,
            run(OneForwardOneBackward(), pipeline.num_stages, pipeline.micro_batches_ms),
        )
        for index, pipeline in enumerate(planned.pipelines)
    ]
    timelines.sort(key=lambda entry: (-entry[2].total_ms, entry[0]))
    rows: list[str] = []
    boxes: list[Box] = []
    num_shown = 0
    for index, pipeline, timeline in timelines:
        too_many = len(rows) + pipeline.num_stages > MAX_ROWS or len(boxes) + len(timeline.spans) > MAX_BOXES
        if num_shown and too_many:
            break
        num_shown += 1
        first = len(rows)
        rows += row_names(index, pipeline)
        for span in timeline.spans:
            is_forward = span.kind is OperationKind.FORWARD
            hint = (
                f"{rows[first + span.stage]}: micro-batch {span.micro_batch} {span.kind.value}, "
                f"{span.begin_ms:,.1f} to {span.end_ms:,.1f} ms"
            )
            shade = ("f" if is_forward else "b") + str(span.micro_batch % 2)
            boxes.append(Box(first + span.stage, span.begin_ms / 1000, span.end_ms / 1000, shade, hint))
    return Gantt(tuple(rows), tuple(boxes), num_shown, len(timelines))


def row_names(index: int, pipeline: Pipeline) -> list[str]:
    """Name the rows of replica number ``index``, one for each stage."""
    if pipeline.num_stages == 1:
        return [f"#{index} {pipeline.label}"]
    return [f"#{index} {pipeline.label} stage {stage}" for stage in range(pipeline.num_stages)]
