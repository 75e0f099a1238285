"""A planner on a host of its own and an agent on each rank's host; killed and started where they were."""

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from host_network import MANAGEMENT, Host, HostNetwork
from namespaces import enter
from served_agent import ServedAgent, agents
from served_planner import ServedPlanner, servers

PLANNER = "planner"
PORT = 8000
T = TypeVar("T")


class HostCluster:
    """What runs on the hosts of a network besides ranks.

    Parameters
    ----------
    network
        The hosts.
    serve
        Starts a service.
    start
        Starts an agent.
    """

    def __init__(
        self,
        network: HostNetwork,
        serve: Callable[..., ServedPlanner],
        start: Callable[..., ServedAgent],
    ) -> None:
        self.network = network
        self._serve, self._start = serve, start
        self._service = self._served()
        names = [host.name for host in self.rank_hosts]
        with ThreadPoolExecutor(len(names)) as together:
            self._agents: dict[str, ServedAgent] = dict(zip(names, together.map(self._agent, names), strict=True))

    @property
    def rank_hosts(self) -> list[Host]:
        """The hosts with a rank, that of rank 0 first."""
        return [host for host in self.network.hosts.values() if host.name != PLANNER]

    @property
    def url(self) -> str:
        """Where the service listens."""
        return self._service.url

    def agent_env(self, rank: int) -> dict[str, str]:
        """Return how a rank finds the agent of its host."""
        address = self._agents[self.rank_hosts[rank].name].address
        return {"HYDRAULIS_AGENT_SOCKET": address}

    def restart_service(self) -> None:
        """Kill the service, and start it again on its address and database."""
        self._service.stop(signal.SIGKILL)
        self._service = self._served()

    def restart_agent(self, name: str) -> None:
        """Kill an agent if it lives, and start it again."""
        if self._agents[name].process.poll() is None:
            self._agents[name].stop(signal.SIGKILL)
        self._agents[name] = self._agent(name)

    def _served(self) -> ServedPlanner:
        host = self.network.hosts[PLANNER]
        listening = ["--host", host.address(MANAGEMENT), "--port", str(PORT)]
        trusting = ["--auth", "off", "--allow-anonymous"]
        return self._serve("--workers", "1", *listening, *trusting, within=host.within)

    def _agent(self, name: str) -> ServedAgent:
        return self._start(self.url, name, within=self.network.hosts[name].within)


@contextmanager
def host_cluster(network: HostNetwork, folder: Path) -> Iterator[HostCluster]:
    """Run a service and agents on the hosts of a network."""
    folder.mkdir()
    with ExitStack() as stack:
        serve = stack.enter_context(servers(folder))
        start = stack.enter_context(agents(folder))
        yield HostCluster(network, serve, start)


def on_host(host: Host, act: Callable[[], T]) -> T:
    """Do something in a thread of this process that is on a host, as far as the network is concerned."""

    def acting() -> T:
        enter(host.namespace)
        return act()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(acting).result()
