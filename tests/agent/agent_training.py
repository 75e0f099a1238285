"""A run whose plans come by way of two agents, which are killed like the service; importable by its ranks."""

import os
import signal
import time
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from chaos_training import RUN
from training_runs import PROFILE, dataset, trainer

from planner_client.contract import PlanOptions
from worker_agent.executor.runner import IterationRunner
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import EvaluationSettings, ReportSettings

NODE_OF_RANK = ("node-a", "node-a", "node-b")
JOB = "by-agents"
DEADLINE_S = 3.0
RESUMED = 2
"""Plans of the service in a row after the last restart with which a run ends."""

RESUMES_WITHIN_S = 60.0


def noting_digests(run: Callable[..., Any], digests: list[str]) -> Callable[..., Any]:
    @wraps(run)
    def noted(self: Any, plan: Any, *args: Any, **options: Any) -> Any:
        digests.append(plan.digest)
        return run(self, plan, *args, **options)

    return noted


def train_by_agents(rank: int, sockets: dict[str, str], folder: Path, pace_s: float) -> dict[str, Any]:
    """Train until all that will be killed has been, and the service gives plans again."""
    heard: list[IterationMetrics] = []
    digests: list[str] = []
    setattr(IterationRunner, "run", noting_digests(IterationRunner.run, digests))  # noqa: B010 - a method is replaced
    over_at: list[float] = []

    def hear(metrics: IterationMetrics) -> None:
        heard.append(metrics)
        if metrics.plan_origin == "service":
            (folder / "served").touch()
        if not over_at and (folder / "over").exists():
            over_at.append(time.monotonic())
        if over_at:
            is_resumed = all(entry.plan_origin == "service" for entry in heard[-RESUMED:])
            if is_resumed or time.monotonic() - over_at[0] > RESUMES_WITHIN_S:
                os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(pace_s)

    # As an operator would set it; each node has its own.
    os.environ["HYDRAULIS_AGENT_SOCKET"] = sockets[NODE_OF_RANK[rank]]
    with trainer(
        **RUN,
        profile=PROFILE,
        plan_options=PlanOptions(deadline_ms=200),
        plan_timeout_s=DEADLINE_S,
        job=JOB,
        num_iterations=10**6,
        evaluation=EvaluationSettings(dataset([5, 9, 33]), every_iterations=10**6),
        reports=ReportSettings(progress=False, on_iteration=hear),
    ) as run:
        evaluated = run.evaluate()
        run.train()
    return {"heard": heard, "digests": digests, "evaluated": evaluated}
