"""Training by plans: settings and samples are decided without torch; the trainer acts on them."""

from worker_agent.trainer.settings import (
    CheckpointSettings,
    EvaluationSettings,
    OptimizerSettings,
    ReportSettings,
    ScheduleSettings,
)

__all__ = [
    "CheckpointSettings",
    "EvaluationSettings",
    "OptimizerSettings",
    "ReportSettings",
    "ScheduleSettings",
]
