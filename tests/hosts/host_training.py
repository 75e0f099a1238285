"""Training runs of one rank on each of four hosts, and what happens to hosts and links meanwhile."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chaos_training import (
    DEADLINE_S,
    LOSS_TOLERANCE,
    RESUMES_WITHIN_S,
    RUN,
    WORLD_SIZE,
    ChaosEnd,
    all_ranks_ran_the_same_plans,
    losses_are_those_of_an_undisturbed_run,
    nothing_waited_longer_than_the_deadline,
    train_through,
)
from host_network import MANAGEMENT, Host, HostNetwork
from host_ranks import HostRanks
from served_planner import ServedPlanner, servers, wait_until
from training_runs import PROFILE, in_turn, trainer

from planner_client.contract import PlanOptions
from worker_agent import Trainer
from worker_agent.executor.faults import ExecutionFault
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import CheckpointSettings, ReportSettings

PORT = 8000
SLACK_S = 3.0
"""More than a deadline is ever overrun by where four hosts share two cores; what hangs hangs for longer."""

COLLECTIVE_TIMEOUT_S = 6.0
METRICS = "metrics.jsonl"
Start = Callable[..., ServedPlanner]
Harm = Callable[[], AbstractContextManager[None]]


@contextmanager
def planner_host(network: HostNetwork, folder: Path) -> Iterator[tuple[Start, ServedPlanner]]:
    """Serve plans on the planner's host; yields what starts the service anew, and the service."""
    host = network.hosts["planner"]
    folder.mkdir()
    with servers(folder) as serve:

        def start() -> ServedPlanner:
            listening = ["--host", host.address(MANAGEMENT), "--port", str(PORT)]
            trusting = ["--auth", "off", "--allow-anonymous"]
            return serve("--workers", "1", *listening, *trusting, within=host.within)

        yield start, start()


def rank_hosts(network: HostNetwork) -> list[Host]:
    return [network.hosts[f"host-{rank}"] for rank in range(WORLD_SIZE)]


def train_through_harms(network: HostNetwork, folder: Path, harms: Mapping[str, Harm], *, pace_s: float) -> ChaosEnd:
    """Train while each harm is done and undone in turn; check all that must be true of such a run."""
    failed: list[str] = []
    with planner_host(network, folder / "planner") as (_, service):

        def do_harm() -> None:
            for name, harm in harms.items():
                if not wait_until((folder / "served").exists, RESUMES_WITHIN_S):
                    failed.append(f"no plan of the service came before {name}")
                    break
                with harm():
                    pass
                (folder / "served").unlink(missing_ok=True)
            (folder / "over").touch()

        with HostRanks(rank_hosts(network), folder / "ranks", train_through, service.url, folder, pace_s) as ranks:
            harming = threading.Thread(target=do_harm, daemon=True)
            harming.start()
            ends = ranks.ends(180.0)
            harming.join(30.0)
        assert [end.raised for end in ends] == [None] * WORLD_SIZE
        assert not failed
        reports = [end.returned for end in ends]
        end = ChaosEnd(reports[0]["heard"], reports[0]["taking_s"], [r["digests"] for r in reports], len(harms))
    nothing_waited_longer_than_the_deadline(end, slack_s=SLACK_S)
    all_ranks_ran_the_same_plans(end)
    losses_are_those_of_an_undisturbed_run(end)
    return end


@dataclass(frozen=True)
class Stop:
    """How a rank's run ended before its time.

    Attributes
    ----------
    kind, cause, text
        Type of what it raised, that of its cause, and its text.
    raised_at, closed_at
        When it was raised and when the trainer was closed after it (monotonic seconds, the same clock on all ranks).
    """

    kind: str
    cause: str
    text: str
    raised_at: float
    closed_at: float


def train_until(rank: int, url: str, folder: Path, pace_s: float, num_iterations: int) -> Stop | None:
    """Train to the end, or return how it stopped before."""
    del rank
    run: Trainer | None = None
    try:
        run = trainer(
            **RUN,
            planner_url=url,
            profile=PROFILE,
            plan_options=PlanOptions(deadline_ms=200),
            plan_timeout_s=DEADLINE_S,
            job="hosts",
            num_iterations=num_iterations,
            checkpoints=CheckpointSettings(folder / "checkpoints", every_iterations=2),
            reports=ReportSettings(
                progress=False, json_lines=folder / METRICS, on_iteration=lambda _metrics: time.sleep(pace_s)
            ),
            collective_timeout_s=COLLECTIVE_TIMEOUT_S,
        )
        run.train()
    except ExecutionFault as fault:
        raised_at = time.monotonic()
        if run is not None:
            run.close()
        return Stop(type(fault).__name__, type(fault.__cause__).__name__, str(fault), raised_at, time.monotonic())
    run.close()
    return None


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Return the metrics of each iteration that a run reported, those done twice twice."""
    path = folder / METRICS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def all_ranks_stopped_in_time(stops: Sequence[object], harmed_at: float) -> None:
    """Check that ranks whose collectives broke off said so, were closed, and left nobody waiting."""
    for stop in stops:
        assert isinstance(stop, Stop)
        assert (stop.kind, stop.cause) == ("TrainingStopped", "RankLost")
        assert "a rank died or did not arrive" in stop.text
        assert "To go on from checkpoint" in stop.text
        assert stop.raised_at - harmed_at < COLLECTIVE_TIMEOUT_S + 2 * SLACK_S
        assert stop.closed_at - stop.raised_at < SLACK_S


def losses_are_those_of_one_rank(lines: Sequence[Mapping[str, Any]], num_iterations: int) -> None:
    """Compare each reported loss with that of one process which trains by other plans, with nothing in its way."""
    alone: list[IterationMetrics] = []
    reports = ReportSettings(progress=False, on_iteration=alone.append)
    with trainer(**RUN, plans=in_turn([((1, 1),)]), reports=reports, num_iterations=num_iterations) as run:
        run.train()
    assert {line["iteration"] for line in lines} == set(range(num_iterations))
    for line in lines:
        assert line["loss"] == pytest.approx(alone[line["iteration"]].loss, rel=LOSS_TOLERANCE)
