"""Hosts on one machine: a network namespace each, joined by switches whose ports can be cut."""

import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from namespaces import ip, kill_all, own_prefix, processes_in, remove, send, sweep, tc

MANAGEMENT, FABRIC = "mgmt0", "fabric0"
"""The interfaces of a host: one to the planner, one to the other hosts' ranks, as clusters have them."""

_SUBNETS = {MANAGEMENT: "10.77.0", FABRIC: "10.78.0"}
_CYCLE_S = 0.1


@dataclass(frozen=True)
class Host:
    """A host.

    Attributes
    ----------
    name, number
        Its name, and its place among the hosts, counted from 1.
    namespace
        The namespace that it is.
    """

    name: str
    number: int
    namespace: str

    def address(self, interface: str) -> str:
        """Return the IPv4 address of an interface."""
        return f"{_SUBNETS[interface]}.{self.number}"

    @property
    def within(self) -> list[str]:
        """What a command begins with that is to run on this host."""
        return ["ip", "netns", "exec", self.namespace]


class HostNetwork:
    """Hosts, two switches, and what can happen to them.

    The switches are bridges in a namespace of their own, so that nothing of the network is in the machine's.
    """

    def __init__(self, hosts: Mapping[str, Host], switches: str) -> None:
        self.hosts = dict(hosts)
        self._switches = switches

    @contextmanager
    def cut(self, name: str, interface: str) -> Iterator[None]:
        """Take a host off a switch: packets are lost without a word, and connections stay as they were."""
        self.set_link(name, interface, "down")
        try:
            yield
        finally:
            self.set_link(name, interface, "up")

    def set_link(self, name: str, interface: str, state: str) -> None:
        """Turn the switch's port of a host "up" or "down"."""
        ip("-n", self._switches, "link", "set", _port(self.hosts[name], interface), state)

    @contextmanager
    def narrowed(self, name: str, interface: str, *, bits_s: int, queue_bytes: int) -> Iterator[None]:
        """Let little through to and from a host: what is more waits in a short queue, and is lost beyond that."""
        host = self.hosts[name]
        ends = [(self._switches, _port(host, interface)), (host.namespace, interface)]
        for namespace, device in ends:
            tc(namespace, "qdisc", "replace", "dev", device, "root", "tbf", "rate", f"{bits_s}bit", "burst", "2000",
               "limit", str(queue_bytes))  # fmt: skip
        try:
            yield
        finally:
            for namespace, device in ends:
                tc(namespace, "qdisc", "delete", "dev", device, "root")

    def num_dropped(self, name: str, interface: str) -> int:
        """Return how many packets that a host sends a narrowed link has lost so far."""
        said = tc(self.hosts[name].namespace, "-s", "qdisc", "show", "dev", interface)
        return int(said.partition("dropped ")[2].split(",")[0])

    @contextmanager
    def slowed(self, name: str, *, share: float) -> Iterator[None]:
        """Let all processes of a host run for only a share of the time."""
        namespace = self.hosts[name].namespace
        is_over = threading.Event()

        def hold() -> None:
            while not is_over.is_set():
                held = list(processes_in(namespace))
                send(signal.SIGSTOP, held)
                time.sleep((1 - share) * _CYCLE_S)
                send(signal.SIGCONT, held)
                is_over.wait(share * _CYCLE_S)

        holding = threading.Thread(target=hold, daemon=True)
        holding.start()
        try:
            yield
        finally:
            is_over.set()
            holding.join()

    def lose(self, name: str) -> list[int]:
        """Kill all processes of a host at once, as when its power goes; return their ids."""
        return kill_all(self.hosts[name].namespace)


@contextmanager
def host_network(names: Sequence[str]) -> Iterator[HostNetwork]:
    """Build hosts of these names; they, and all processes on them, are gone in the end."""
    sweep()
    prefix = f"{own_prefix()}-{time.monotonic_ns() // 1000:x}"
    hosts = {name: Host(name, number, f"{prefix}-{name}") for number, name in enumerate(names, start=1)}
    switches = f"{prefix}-switches"
    try:
        ip("netns", "add", switches)
        for interface in _SUBNETS:
            ip("-n", switches, "link", "add", interface, "type", "bridge")
            ip("-n", switches, "link", "set", interface, "up")
        for host in hosts.values():
            ip("netns", "add", host.namespace)
            ip("-n", host.namespace, "link", "set", "lo", "up")
            for interface in _SUBNETS:
                _plug(host, interface, switches)
        yield HostNetwork(hosts, switches)
    finally:
        for namespace in [*(host.namespace for host in hosts.values()), switches]:
            remove(namespace)


def _port(host: Host, interface: str) -> str:
    return f"{interface}-{host.number}"


def _plug(host: Host, interface: str, switches: str) -> None:
    """Lay a cable from a host's interface to its port of the switch."""
    port = _port(host, interface)
    ip("link", "add", port, "netns", switches, "type", "veth", "peer", "name", interface, "netns", host.namespace)
    ip("-n", switches, "link", "set", port, "master", interface, "up")
    ip("-n", host.namespace, "address", "add", f"{host.address(interface)}/24", "dev", interface)
    ip("-n", host.namespace, "link", "set", interface, "up")
