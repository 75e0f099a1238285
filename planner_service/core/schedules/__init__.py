"""Pipeline schedules: who runs what in which order, and one simulator that runs any of them event by event."""

from planner_service.core.schedules.interleaved import Interleaved
from planner_service.core.schedules.one_forward import OneForwardOneBackward
from planner_service.core.schedules.schedule import Operation, OperationKind, Schedule
from planner_service.core.schedules.timeline import Span, Timeline, run
from planner_service.core.schedules.zero_bubble import ZeroBubble

__all__ = [
    "Interleaved",
    "OneForwardOneBackward",
    "Operation",
    "OperationKind",
    "Schedule",
    "Span",
    "Timeline",
    "ZeroBubble",
    "run",
]
