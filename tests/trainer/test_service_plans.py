"""Runs against real planner services: as jobs, restarted, refused, and without a service."""

import json
import re
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from forked import hydraulis_command
from rank_group import run_ranks
from served_planner import ServedPlanner, servers, wait_until
from service_checks import DEADLINE_S, check_refusals
from training_runs import LENGTHS, PROFILE, dataset, trainer

from planner_client.client import PlannerClient
from planner_client.contract import Plan
from worker_agent.trainer.faults import TrainingStopped
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import CheckpointSettings, EvaluationSettings, ReportSettings

SECOND_NAME = PROFILE.model_copy(update={"name": "kept-by-the-planner"})
Stops = list[dict[str, dict[str, Any]]]


def job_run(url: str, folder: Path, **changes: Any) -> list[IterationMetrics]:
    """Train on one rank as a job, by a profile that the planner alone knows; return the metrics."""
    heard: list[IterationMetrics] = []
    given: dict[str, Any] = {
        "planner_url": url,
        "profile": SECOND_NAME.name,
        "plan_timeout_s": 5.0,
        "job": "run-1",
        "checkpoints": CheckpointSettings(folder),
        "reports": ReportSettings(progress=False, on_iteration=heard.append),
    }
    with trainer(**{**given, **changes}) as run:
        run.train()
    return heard


@pytest.fixture(scope="module")
def stops(tmp_path_factory: pytest.TempPathFactory) -> Stops:
    """What each of two ranks met."""
    folder = tmp_path_factory.mktemp("refusals")
    database = folder / "guarded.sqlite3"
    command = hydraulis_command("tokens", "create", "trainer")
    made = subprocess.run(
        [*command, "--scope", "plan", "--job", "taken", "--database", str(database)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    with servers(folder) as start:
        guarded = start("--workers", "1", "--auth", "tokens", database=database)
        free = start("--workers", "1")
        arguments = (guarded.url, free.url, made.stdout.strip(), folder / "runs")
        ends = run_ranks(check_refusals, 2, folder, *arguments)
    assert [end.raised for end in ends] == [None] * 2
    return [end.returned for end in ends]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("conflict", "refused to plan: job taken is registered already and differs .*; give another job="),
        ("no token", "refused to plan: .*no.* token.*; give token=, or HYDRAULIS_TOKEN on rank 0"),
        ("wrong token", "refused to plan: .*token.*; give token=, or HYDRAULIS_TOKEN on rank 0"),
        ("job not allowed", r"refused to plan: .*not-mine.* give a token= that may plan for this job"),
        ("unknown profile", r"refused to plan: .*nobody-has-it.*\[unknown-profile\]"),
        ("unknown profile of a job", r"refused to plan: .*nobody-has-it.*\[unknown-profile\]"),
        (
            "away",
            "planner at http://127.0.0.1:9 gave no plan: iteration 0 has no plan.*no plan of the planner's is known",
        ),
    ],
)
def test_what_keeps_a_run_from_its_first_plan_is_told_alike_on_all_ranks(stops: Stops, what: str, message: str) -> None:
    (told,) = {report[what]["message"] for report in stops}
    assert re.search(message, told), told
    assert "iteration 0 was not finished (PlanningFailed)" in told
    assert "hyd_" not in told


@pytest.mark.parametrize("what", ["well", "again", "away with a basis"])
def test_a_run_whose_job_is_its_own_or_that_knows_a_strategy_is_not_stopped(stops: Stops, what: str) -> None:
    assert [report[what]["message"] for report in stops] == ["it did not stop"] * 2


def test_a_job_has_the_plans_and_measured_times_of_its_run_and_none_of_its_evaluations(
    planner: ServedPlanner, tmp_path: Path
) -> None:
    with PlannerClient(planner.url) as client:
        client.register_profile(SECOND_NAME)
        evaluation = EvaluationSettings(dataset([5, 9, 33]), every_iterations=2)
        told = job_run(planner.url, tmp_path, num_iterations=4, evaluation=evaluation, job="evaluated", plan_window=3)
        assert [metrics.plan_origin for metrics in told] == ["service"] * 4
        assert [metrics.evaluation_loss is not None for metrics in told] == [False, True, False, True]
        assert [summary.iteration for summary in client.iterations("evaluated")] == [0, 1, 2, 3]
        for metrics in told:
            plan = client.iteration_plan("evaluated", metrics.iteration)
            assert isinstance(plan, Plan)
            assert plan.digest == metrics.plan_digest
            (timings,) = client.timings("evaluated", metrics.iteration)
            (replica,) = timings.replicas
            assert len(replica.micro_batch_ms) == len(plan.replicas[0].micro_batches)
            assert 0 < replica.wall_ms <= metrics.wall_ms


@pytest.mark.timeout(180)
def test_a_restarted_run_finds_its_job_and_without_its_planner_its_last_good_plan(tmp_path: Path) -> None:
    folder, everything = tmp_path / "checkpoints", {"num_epochs": 1, "num_iterations": None}
    with servers(tmp_path) as start:
        service = start("--workers", "1")
        with PlannerClient(service.url) as client:
            client.register_profile(SECOND_NAME)
            first = job_run(service.url, folder, num_iterations=1, schedule=None)
            second = job_run(service.url, folder, num_iterations=2, schedule=None)
            assert [metrics.plan_origin for metrics in first + second] == ["service"] * 2
            assert client.iteration("run-1", 1).state == "planned"
        service.stop(signal.SIGKILL)
        third = job_run(service.url, folder, schedule=None, **everything)
    assert [metrics.plan_origin for metrics in third] == ["fallback"] * len(third)
    assert sum(metrics.num_sequences for metrics in first + second + third) == len(LENGTHS)
    assert all(metrics.waited_ms < 6000 for metrics in third)
    kept = json.loads((folder / "last-good-plan.json").read_text())["plan"]["digest"]
    assert kept in {metrics.plan_digest for metrics in first + second}
    (folder / "last-good-plan.json").unlink()
    began = time.monotonic()
    with pytest.raises(TrainingStopped, match="no plan of the planner's is known yet to start from"):
        job_run(service.url, folder, num_iterations=99, plan_timeout_s=DEADLINE_S, schedule=None)
    assert time.monotonic() - began < DEADLINE_S + 10


def test_a_planner_that_comes_late_plans_from_then_on(tmp_path: Path) -> None:
    """The run begins without a service, by a strategy of its own arguments, and hears of it once it is there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
    origins: list[str] = []
    with servers(tmp_path) as start:
        began: list[ServedPlanner] = []

        def hear(metrics: IterationMetrics) -> None:
            origins.append(metrics.plan_origin)
            if len(origins) == 2:
                began.append(start("--workers", "1", "--port", port))
            if len(origins) > 2:
                time.sleep(0.5 if metrics.plan_origin == "fallback" else 0)
            if len(origins) > 60 or origins[-2:] == ["service", "service"]:
                signal.raise_signal(signal.SIGTERM)

        reports = ReportSettings(progress=False, on_iteration=hear)
        with trainer(
            planner_url=f"http://127.0.0.1:{port}",
            profile=PROFILE,
            strategies=["(1,1)x1"],
            plan_timeout_s=2.0,
            job="late",
            reports=reports,
            num_iterations=10**6,
        ) as run:
            run.train()
            assert run.was_stopped
        assert origins[:2] == ["fallback"] * 2
        assert origins[-2:] == ["service"] * 2
        with PlannerClient(began[0].url) as client:
            last = len(origins) - 1
            assert wait_until(lambda: bool(client.timings("late", last)))
