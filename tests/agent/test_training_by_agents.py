"""Ranks train by plans that agents fetch, through kills of agents and service, to the loss of an undisturbed run."""

import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_training import JOB, NODE_OF_RANK, RESUMED, RESUMES_WITHIN_S, train_by_agents
from chaos_training import ChaosEnd, losses_are_those_of_an_undisturbed_run
from rank_group import run_ranks
from served_agent import ServedAgent, agents
from served_planner import ServedPlanner, servers, wait_until

from planner_client.client import PlannerClient


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return str(listener.getsockname()[1])


class Cluster:
    """A service and two agents, each killed and started again where it was."""

    def __init__(
        self, serve: Callable[..., ServedPlanner], start: Callable[..., ServedAgent], folder: Path, port: str
    ) -> None:
        self._serve, self._start, self._folder, self._port = serve, start, folder, port
        self.service = serve("--workers", "1", "--port", port)
        self.agents = {node: start(self.service.url, node) for node in set(NODE_OF_RANK)}

    def await_plan_of_the_service(self) -> None:
        (self._folder / "served").unlink(missing_ok=True)
        assert wait_until((self._folder / "served").exists, RESUMES_WITHIN_S), "no plan of the service came any more"

    def kill_agent(self, node: str, away_s: float) -> None:
        self.agents[node].stop(signal.SIGKILL)
        time.sleep(away_s)
        self.agents[node] = self._start(self.service.url, node)

    def kill_service(self, away_s: float) -> None:
        self.service.stop(signal.SIGKILL)
        time.sleep(away_s)
        self.service = self._serve("--workers", "1", "--port", self._port)

    def disturb(self) -> None:
        self.await_plan_of_the_service()
        self.kill_agent("node-a", 0.0)
        self.await_plan_of_the_service()
        self.kill_service(1.0)
        self.kill_agent("node-b", 0.0)
        self.await_plan_of_the_service()
        (self._folder / "over").touch()


@pytest.mark.timeout(180)
def test_a_run_goes_on_while_agents_and_service_are_killed_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "planner").mkdir()
    (tmp_path / "ranks").mkdir()
    with servers(tmp_path / "planner") as serve, agents(tmp_path) as start:
        cluster = Cluster(serve, start, tmp_path, free_port())
        disturbing = threading.Thread(target=cluster.disturb, daemon=True)
        disturbing.start()
        sockets = {node: agent.address for node, agent in cluster.agents.items()}
        ends = run_ranks(train_by_agents, len(NODE_OF_RANK), tmp_path / "ranks", sockets, tmp_path, 0.1, limit_s=120.0)
        disturbing.join(10.0)
        assert [end.raised for end in ends] == [None] * len(NODE_OF_RANK)
        assert (tmp_path / "over").exists()
        reports = [end.returned for end in ends]
        heard = reports[0]["heard"]
        by_service = {told.iteration: told.plan_digest for told in heard if told.plan_origin == "service"}
        with PlannerClient(cluster.service.url) as client:
            assert client.job(JOB).spec.sources == sorted(set(NODE_OF_RANK))
            for iteration, digest in by_service.items():
                plan = client.iteration_plan(JOB, iteration)
                assert plan.digest == digest
            assert {node.name for node in client.nodes()} == set(NODE_OF_RANK)
            timed = max(by_service)
            assert wait_until(lambda: bool(client.timings(JOB, timed - 1)), 20.0)
    # All ranks ran the same plans, by rank, and the last ones were the service's again.
    assert reports[0]["digests"] == reports[1]["digests"] == reports[2]["digests"]
    assert len(set(reports[0]["digests"])) == len(heard)
    assert [told.plan_origin for told in heard[-RESUMED:]] == ["service"] * RESUMED
    assert len({report["evaluated"] for report in reports}) == 1
    losses_are_those_of_an_undisturbed_run(ChaosEnd(heard, [], [], 3))
