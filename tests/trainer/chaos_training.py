"""A run whose planner service is killed and started again, and what must be true of it; importable by its ranks."""

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from rank_group import run_ranks
from served_planner import ServedPlanner, servers, wait_until
from training_runs import PROFILE, dataset, in_turn, trainer

from planner_client.client import PlannerClient
from planner_client.contract import IterationTimings, Plan, PlanOptions, SourceBatch
from planner_client.steady import SteadyPlanner
from worker_agent.executor.runner import IterationRunner
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import CheckpointSettings, OptimizerSettings, ReportSettings, ScheduleSettings

WORLD_SIZE = 4
JOB = "chaos"
DEADLINE_S = 2.0
SLACK_S = 0.75
"""More than a deadline is ever overrun where four ranks, the service and its solver share two cores."""

LOSS_TOLERANCE = 1e-9
RESUMED = 3
"""Plans of the service in a row after the last restart with which a run ends."""

RESUMES_WITHIN_S = 60.0
RUN: dict[str, Any] = {
    "data": dataset([int(length) for length in np.random.default_rng(5).integers(2, 60, 90)]),
    "tokens_per_iteration": 400,
    "optimizer": OptimizerSettings(learning_rate=0.005, eps=1e-3, max_norm=0.5),
    "schedule": ScheduleSettings(warmup_iterations=2),
}


@dataclass(frozen=True)
class ChaosEnd:
    """What a run was like: each iteration's metrics, what rank 0 was kept waiting, and each rank's digests."""

    metrics: list[IterationMetrics]
    taking_s: list[float]
    digests: list[list[str]]
    num_kills: int

    @property
    def num_fallbacks(self) -> int:
        return sum(metrics.plan_origin == "fallback" for metrics in self.metrics)


def noted(note: Callable[..., None], method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method note what it was given, what came back, and how long that took (s)."""

    @wraps(method)
    def noting(self: Any, *args: Any, **options: Any) -> Any:
        began = time.monotonic()
        returned = method(self, *args, **options)
        note(args, returned, time.monotonic() - began)
        return returned

    return noting


def _note_acknowledged(path: Path) -> None:
    """Write down whatever the service acknowledges to this process, at once."""

    def write(**entry: Any) -> None:
        with path.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def batches(args: tuple[str, int, dict[str, SourceBatch]], _returned: object, _s: float) -> None:
        write(kind="batches", iteration=args[1], sources=sorted(args[2]))

    def plan(args: tuple[str, int], returned: object, _s: float) -> None:
        if isinstance(returned, Plan):
            write(kind="plan", iteration=args[1], digest=returned.digest)

    def timings(args: tuple[str, int, IterationTimings], _returned: object, _s: float) -> None:
        write(kind="timings", iteration=args[1], timings=args[2].model_dump(mode="json"))

    for name, note in {"report_all": batches, "iteration_plan": plan, "report_timings": timings}.items():
        setattr(PlannerClient, name, noted(note, getattr(PlannerClient, name)))


def train_through(rank: int, url: str, folder: Path, pace_s: float) -> dict[str, Any]:
    """Train until the service has been killed as often as it will be, and gives plans again."""
    digests: list[str] = []
    taking_s: list[float] = []
    heard: list[IterationMetrics] = []
    _noting_run = noted(lambda args, _returned, _s: digests.append(args[0].digest), IterationRunner.run)
    setattr(IterationRunner, "run", _noting_run)  # noqa: B010 - a method is replaced, not an attribute set
    if rank == 0:
        _note_acknowledged(folder / "acknowledged.jsonl")
        noting_take = noted(lambda _args, _returned, taken_s: taking_s.append(taken_s), SteadyPlanner.take)
        setattr(SteadyPlanner, "take", noting_take)  # noqa: B010 - as above
    over_at: list[float] = []

    def hear(metrics: IterationMetrics) -> None:
        heard.append(metrics)
        (folder / "begun").touch()
        if metrics.plan_origin == "service":
            (folder / "served").touch()
        if not over_at and (folder / "over").exists():
            over_at.append(time.monotonic())
        if over_at:
            is_resumed = all(entry.plan_origin == "service" for entry in heard[-RESUMED:])
            if is_resumed or time.monotonic() - over_at[0] > RESUMES_WITHIN_S:
                os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(pace_s)

    with trainer(
        **RUN,
        planner_url=url,
        profile=PROFILE,
        plan_options=PlanOptions(deadline_ms=200),
        plan_timeout_s=DEADLINE_S,
        job=JOB,
        num_iterations=10**6,
        checkpoints=CheckpointSettings(folder / "checkpoints", every_iterations=10**6),
        reports=ReportSettings(progress=False, on_iteration=hear),
    ) as run:
        run.train()
    return {"digests": digests, "heard": heard, "taking_s": taking_s}


def kill_and_restart(
    start: Callable[..., ServedPlanner], service: ServedPlanner, folder: Path, num_kills: int, seed: int
) -> ServedPlanner:
    """Kill the service at random moments and start it again on its address and database; return the last one.

    Every second kill comes after the run has had plans of the service again, the others perhaps before.
    """
    drawn = random.Random(seed)  # noqa: S311 - moments, not secrets
    port = service.url.rpartition(":")[2]
    assert wait_until((folder / "begun").exists, 60.0)
    for number in range(num_kills):
        if number % 2 == 0:
            assert wait_until((folder / "served").exists, RESUMES_WITHIN_S), "no plan of the service came any more"
        time.sleep(drawn.uniform(0.2, 2.5))
        service.stop(signal.SIGKILL)
        time.sleep(drawn.uniform(0.0, 2.0))
        service = start("--workers", "1", "--port", port)
        (folder / "served").unlink(missing_ok=True)
    (folder / "over").touch()
    return service


def run_through_chaos(folder: Path, *, num_kills: int, pace_s: float, seed: int, limit_s: float) -> ChaosEnd:
    """Train four ranks while their service is killed and restarted; check all that must be true of such a run."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    (folder / "planner").mkdir()
    (folder / "ranks").mkdir()
    last: list[ServedPlanner] = []
    with servers(folder / "planner") as start:
        service = start("--workers", "1", "--port", port)
        chaos = threading.Thread(
            target=lambda: last.append(kill_and_restart(start, service, folder, num_kills, seed)), daemon=True
        )
        chaos.start()
        ends = run_ranks(train_through, WORLD_SIZE, folder / "ranks", service.url, folder, pace_s, limit_s=limit_s)
        chaos.join(30.0)
        assert [end.raised for end in ends] == [None] * WORLD_SIZE
        assert last, "the service was not restarted to the end"
        reports = [end.returned for end in ends]
        end = ChaosEnd(reports[0]["heard"], reports[0]["taking_s"], [r["digests"] for r in reports], num_kills)
        nothing_acknowledged_is_lost(folder / "acknowledged.jsonl", last[0].url, end)
    nothing_waited_longer_than_the_deadline(end)
    all_ranks_ran_the_same_plans(end)
    losses_are_those_of_an_undisturbed_run(end)
    return end


def nothing_acknowledged_is_lost(path: Path, url: str, end: ChaosEnd) -> None:
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    by_kind = {kind: [entry for entry in entries if entry["kind"] == kind] for kind in ("batches", "plan", "timings")}
    assert all(by_kind.values())
    with PlannerClient(url) as client:
        assert client.job(JOB).spec.sources == [f"rank-{rank}" for rank in range(WORLD_SIZE)]
        for entry in by_kind["batches"]:
            status = client.iteration(JOB, entry["iteration"])
            assert status.num_reported == len(entry["sources"]) == WORLD_SIZE
        for entry in by_kind["plan"]:
            plan = client.iteration_plan(JOB, entry["iteration"])
            assert isinstance(plan, Plan)
            assert plan.digest == entry["digest"]
        for entry in by_kind["timings"]:
            timings = IterationTimings.model_validate(entry["timings"])
            if timings.solved_by == "planner":
                assert timings in client.timings(JOB, entry["iteration"])
    planned = {(entry["iteration"], entry["digest"]) for entry in by_kind["plan"]}
    by_service = {(told.iteration, told.plan_digest) for told in end.metrics if told.plan_origin == "service"}
    assert by_service <= planned


def nothing_waited_longer_than_the_deadline(end: ChaosEnd, slack_s: float = SLACK_S) -> None:
    assert len(end.taking_s) >= len(end.metrics)
    assert max(end.taking_s) <= DEADLINE_S + slack_s
    assert max(told.waited_ms for told in end.metrics) <= 1000 * (DEADLINE_S + slack_s)


def all_ranks_ran_the_same_plans(end: ChaosEnd) -> None:
    assert [told.iteration for told in end.metrics] == list(range(len(end.metrics)))
    for digests in end.digests:
        assert digests == [told.plan_digest for told in end.metrics]


def losses_are_those_of_an_undisturbed_run(end: ChaosEnd) -> None:
    """Train the same on one rank, by plans of another strategy, with no planner in sight."""
    heard: list[IterationMetrics] = []
    reports = ReportSettings(progress=False, on_iteration=heard.append)
    alone = trainer(**RUN, plans=in_turn([((1, 1),)]), reports=reports, num_iterations=len(end.metrics))
    try:
        with alone:
            alone.train()
    finally:
        assert not dist.is_initialized()
    disturbed = torch.tensor([told.loss for told in end.metrics], dtype=torch.float64)
    undisturbed = torch.tensor([told.loss for told in heard], dtype=torch.float64)
    torch.testing.assert_close(disturbed, undisturbed, rtol=LOSS_TOLERANCE, atol=0)
    assert undisturbed[-1] < undisturbed[0]


def resumed_after_every_outage(end: ChaosEnd) -> int:
    """Return how often plans turned from fallbacks to the service's."""
    origins = [told.plan_origin for told in end.metrics]
    assert origins[-RESUMED:] == ["service"] * RESUMED
    return sum(pair == ("fallback", "service") for pair in pairwise(origins))


def figures(end: ChaosEnd) -> str:
    """Say what the run was like, in one line."""
    waited_ms = np.array([told.waited_ms for told in end.metrics])
    return (
        f"{end.num_kills} kills, {len(end.metrics)} iterations on {WORLD_SIZE} ranks, "
        f"{end.num_fallbacks} by fallbacks ({end.num_fallbacks / len(end.metrics):.0%}), "
        f"plans of the service returned {resumed_after_every_outage(end)} times; waited for a plan: "
        f"longest {waited_ms.max():.0f} ms of {1000 * DEADLINE_S:.0f}, 99% {np.percentile(waited_ms, 99):.0f} ms, "
        f"median {np.median(waited_ms):.1f} ms"
    )
