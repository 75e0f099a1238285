"""Runs of one rank on each of four hosts, what happens to hosts and links meanwhile, and what must be true of them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chaos_training import DEADLINE_S, LOSS_TOLERANCE, RESUMES_WITHIN_S, RUN, WORLD_SIZE, noted
from host_cluster import PLANNER, HostCluster, on_host
from host_network import FABRIC, MANAGEMENT
from host_ranks import HostRanks
from served_planner import wait_until
from training_runs import PROFILE, in_turn, trainer

from planner_client.client import PlannerClient
from planner_client.contract import Plan, PlanOptions
from worker_agent import Trainer
from worker_agent.executor.faults import ExecutionFault
from worker_agent.executor.runner import IterationRunner
from worker_agent.trainer.metrics import IterationMetrics
from worker_agent.trainer.settings import CheckpointSettings, ReportSettings

JOB = "hosts"
COLLECTIVE_TIMEOUT_S = 10.0
SLACK_S = 4.0
"""More than a deadline is ever overrun by where four hosts share two cores; what hangs hangs for longer."""

ENDLESS = 10**6


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


@dataclass(frozen=True)
class Start:
    """What ranks are told.

    Attributes
    ----------
    folder, number
        Where the run writes, and how often it was started.
    pace_s
        Pause after each iteration.
    num_iterations
        Of all starts together.
    """

    folder: Path
    number: int
    pace_s: float
    num_iterations: int

    def written(self, what: str) -> Path:
        """Return where the run writes something after this start."""
        return self.folder / f"{what}.{self.number}"


@dataclass
class HostRun:
    """A run that may be started several times, and what it wrote.

    Attributes
    ----------
    cluster, folder
        Where it runs, and where it writes.
    pace_s
        Pause after each iteration.
    resumed_after_s
        How long it took until plans of the service were there again, by harm.
    """

    cluster: HostCluster
    folder: Path
    pace_s: float
    starts: list[Start] = field(default_factory=list)
    resumed_after_s: dict[str, float] = field(default_factory=dict)

    def started(self, num_iterations: int = ENDLESS) -> HostRanks:
        """Start the run again, up to so many iterations in all."""
        start = Start(self.folder, len(self.starts) + 1, self.pace_s, num_iterations)
        self.starts.append(start)
        start.written("metrics").touch()
        return HostRanks(self.cluster.rank_hosts, start.written("ranks"), train, start, env=self.cluster.agent_env)

    def lines(self, *, of_all_starts: bool = False) -> list[dict[str, Any]]:
        """Return the metrics of the iterations that were done since the last start, or since the first."""
        texts = [start.written("metrics").read_text() for start in self.starts[0 if of_all_starts else -1 :]]
        return [json.loads(line) for text in texts for line in text.splitlines()]

    def await_iterations(self, num: int) -> None:
        """Wait until so many iterations were done since the last start."""
        assert wait_until(lambda: len(self.lines()) >= num, 90.0), f"{len(self.lines())} iterations, {num} wanted"

    def await_plan_of_service(self, why: str) -> None:
        """Wait until an iteration that begins from now on runs by a plan of the service."""
        began, done = time.monotonic(), len(self.lines()) + 1
        came = wait_until(
            lambda: any(line["plan_origin"] == "service" for line in self.lines()[done:]), RESUMES_WITHIN_S
        )
        assert came, f"no plan of the service came any more after: {why}"
        self.resumed_after_s[why] = time.monotonic() - began


def train(rank: int, start: Start) -> Stop | None:
    """Train to the end, or return how it stopped before."""
    ran = start.written(f"digests-{rank}").open("a", buffering=1)
    noting_run = noted(lambda args, _returned, _s: ran.write(args[0].digest + "\n"), IterationRunner.run)
    setattr(IterationRunner, "run", noting_run)  # noqa: B010 - a method is replaced, not an attribute set
    run: Trainer | None = None
    try:
        run = trainer(
            **RUN,
            profile=PROFILE,
            plan_options=PlanOptions(deadline_ms=200),
            plan_timeout_s=DEADLINE_S,
            job=JOB,
            num_iterations=start.num_iterations,
            checkpoints=CheckpointSettings(start.folder / "checkpoints", every_iterations=2),
            reports=ReportSettings(
                progress=False,
                json_lines=start.written("metrics"),
                on_iteration=lambda _metrics: time.sleep(start.pace_s),
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


@contextmanager
def at_once(harm: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Do a harm that is over when it is done."""
    harm(*arguments)
    yield


def suffer(run: HostRun, *, every: int, lasts_s: float) -> None:
    """Kill, cut off and slow down what a run by agents can do without, each once; plans come back after each."""
    network = run.cluster.network
    harms: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "agent killed": lambda: at_once(run.cluster.restart_agent, "host-1"),
        "service killed": lambda: at_once(run.cluster.restart_service),
        "link of a host to the planner cut": lambda: network.cut("host-2", MANAGEMENT),
        "a host slow": lambda: network.slowed("host-3", share=0.2),
        "link between ranks cut for a moment": lambda: network.cut("host-1", FABRIC),
    }
    run.await_plan_of_service("start")
    for number, (name, harm) in enumerate(harms.items(), start=1):
        run.await_iterations(number * every)
        with harm():
            time.sleep(lasts_s)
        run.await_plan_of_service(name)


def stop_by(ranks: HostRanks, harm: Callable[[], object], lost: Sequence[int] = ()) -> None:
    """Do a harm that a run cannot live with; check that all ranks but those lost say so in time."""
    harmed_at = time.monotonic()
    harm()
    for rank, end in enumerate(ranks.ends(COLLECTIVE_TIMEOUT_S + 60.0)):
        if rank in lost:
            assert end.exit_code == -9
            continue
        stop = end.returned
        assert isinstance(stop, Stop), (rank, end)
        assert (stop.kind, stop.cause) == ("TrainingStopped", "RankLost")
        assert "a rank died or did not arrive" in stop.text
        assert "To go on from checkpoint" in stop.text
        assert stop.raised_at - harmed_at < COLLECTIVE_TIMEOUT_S + 2 * SLACK_S
        assert stop.closed_at - stop.raised_at < SLACK_S
        assert end.exit_code == 0


def ended_well(ranks: HostRanks) -> None:
    """Wait for a run's end on all ranks."""
    ends = ranks.ends(120.0)
    assert [(end.raised, end.returned) for end in ends] == [(None, None)] * WORLD_SIZE


def all_is_as_promised(run: HostRun, num_iterations: int) -> list[dict[str, Any]]:
    """Check what must be true of a run that was harmed and went on to its end; return all its metrics."""
    lines = run.lines(of_all_starts=True)
    assert {line["iteration"] for line in lines} == set(range(num_iterations))
    assert max(line["waited_ms"] for line in lines) <= 1000 * (DEADLINE_S + SLACK_S)
    for start in run.starts:
        ran = [start.written(f"digests-{rank}").read_text().split() for rank in range(WORLD_SIZE)]
        num_common = min(map(len, ran))
        assert len({tuple(digests[:num_common]) for digests in ran}) == 1, "ranks ran unequal plans"
        assert max(map(len, ran)) <= num_common + 1
    _losses_are_those_of_one_rank(lines, num_iterations)
    by_service = {line["iteration"]: line["plan_digest"] for line in lines if line["plan_origin"] == "service"}
    on_host(run.cluster.network.hosts[PLANNER], lambda: _service_has(run.cluster.url, by_service))
    return lines


def _service_has(url: str, digests: Mapping[int, str]) -> None:
    with PlannerClient(url) as client:
        for iteration, digest in digests.items():
            plan = client.iteration_plan(JOB, iteration)
            assert isinstance(plan, Plan)
            assert plan.digest == digest


def _losses_are_those_of_one_rank(lines: Sequence[Mapping[str, Any]], num_iterations: int) -> None:
    """Compare each loss with that of one process which trains by other plans, with nothing in its way."""
    alone: list[IterationMetrics] = []
    reports = ReportSettings(progress=False, on_iteration=alone.append)
    with trainer(**RUN, plans=in_turn([((1, 1),)]), reports=reports, num_iterations=num_iterations) as undisturbed:
        undisturbed.train()
    for line in lines:
        assert line["loss"] == pytest.approx(alone[line["iteration"]].loss, rel=LOSS_TOLERANCE, abs=0)
