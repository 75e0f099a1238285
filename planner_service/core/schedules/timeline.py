"""Run a schedule event by event: when each operation of each stage begins and ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner_service.core.schedules.schedule import Operation, OperationKind, Schedule

_Key = tuple[OperationKind, int, int]
"""OperationKind, micro-batch and number of the chunk in the whole model."""


@dataclass(frozen=True, slots=True)
class Span:
    """One operation of one stage, with its time in ms from the start of the iteration."""

    stage: int
    chunk: int
    micro_batch: int
    kind: OperationKind
    begin_ms: float
    end_ms: float


@dataclass(frozen=True)
class Timeline:
    """When every operation runs.

    Attributes
    ----------
    num_stages
        Pipeline stages.
    spans
        Operations stage by stage, each stage's in the order they run, without overlap.
    """

    num_stages: int
    spans: tuple[Span, ...]

    @cached_property
    def total_ms(self) -> float:
        """Time until the last operation of any stage ends; 0 without operations."""
        return max((span.end_ms for span in self.spans), default=0.0)

    @cached_property
    def busy_ms(self) -> tuple[float, ...]:
        """Time that each stage computes."""
        busy = [0.0] * self.num_stages
        for span in self.spans:
            busy[span.stage] += span.end_ms - span.begin_ms
        return tuple(busy)

    @property
    def bubble_share(self) -> float:
        """Share of all stages' time in which they wait."""
        whole = self.total_ms * self.num_stages
        return 1.0 - sum(self.busy_ms) / whole if whole else 0.0


def run(schedule: Schedule, num_stages: int, micro_batches_ms: Sequence[float]) -> Timeline:
    """Run a schedule: each operation begins when its stage is free and what it needs is there.

    Parameters
    ----------
    schedule
        Who runs what in which order.
    num_stages
        Pipeline stages, each of which takes ``micro_batches_ms[i]`` for micro-batch i, forward and backward, all its
        chunks together.
    micro_batches_ms
        Micro-batch times in the order they run.

    Returns
    -------
    Timeline
        Communication between stages is taken as hidden.

    Raises
    ------
    ValueError
        If the schedule is not defined for these numbers, or its operations wait for each other for ever.
    """
    lists = schedule.operations(num_stages, len(micro_batches_ms))
    parts = [schedule.parts_ms(time) for time in micro_batches_ms]
    last_chunk = schedule.num_chunks * num_stages - 1
    ends: dict[_Key, float] = {}
    spans: list[list[Span]] = [[] for _ in range(num_stages)]
    clock = [0.0] * num_stages
    progress = True
    while progress:
        progress = False
        for stage, operations in enumerate(lists):
            done = spans[stage]
            for operation in operations[len(done) :]:
                number = operation.chunk * num_stages + stage
                ready = _ready_ms(operation, number, last_chunk, ends)
                if ready is None:
                    break
                begin = max(ready, clock[stage])
                end = begin + parts[operation.micro_batch][operation.kind]
                clock[stage] = ends[operation.kind, operation.micro_batch, number] = end
                done.append(Span(stage, operation.chunk, operation.micro_batch, operation.kind, begin, end))
                progress = True
    for stage, operations in enumerate(lists):
        if len(spans[stage]) < len(operations):
            raise ValueError(f"stage {stage} waits for ever for what {operations[len(spans[stage])]} needs")
    return Timeline(num_stages, tuple(span for of_stage in spans for span in of_stage))


def _ready_ms(operation: Operation, number: int, last_chunk: int, ends: Mapping[_Key, float]) -> float | None:
    """Say when what an operation needs is there; None while it is not."""
    kind, micro_batch = operation.kind, operation.micro_batch
    if kind is OperationKind.FORWARD:
        return ends.get((kind, micro_batch, number - 1)) if number else 0.0
    if kind is OperationKind.WEIGHT_GRADIENT:
        return ends.get((OperationKind.INPUT_GRADIENT, micro_batch, number))
    own_forward = ends.get((OperationKind.FORWARD, micro_batch, number))
    if number == last_chunk or own_forward is None:
        return own_forward
    return ends.get((kind, micro_batch, number + 1))
