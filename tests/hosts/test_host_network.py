"""The hosts that other tests build on are what they seem to be."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_network import FABRIC, MANAGEMENT, Host, HostNetwork
from namespaces import MOUNTED, WITHOUT, own_prefix, processes_in, require_namespaces, sweep
from served_planner import is_running

HERE = str(Path(__file__).parent)
NUM_BYTES = 40_000
_READS = (
    "import socket\n"
    "with socket.create_connection(({!r}, {}), 1.0) as connection, connection.makefile('rb') as content:\n"
    "    connection.settimeout(10.0)\n"
    f"    assert len(content.read()) == {NUM_BYTES}\n"
)
_SERVES = (
    "import socket, sys\n"
    "with socket.create_server((sys.argv[1], 0)) as listener:\n"
    "    print(listener.getsockname()[1], flush=True)\n"
    "    while True:\n"
    "        with listener.accept()[0] as connection:\n"
    f"            connection.sendall(bytes({NUM_BYTES}))\n"
)
_DIES = (
    "import os, signal, subprocess, sys\n"
    "sys.path.insert(0, sys.argv[1])\n"
    "from host_network import host_network\n"
    "with host_network(['lone']) as network:\n"
    "    left = subprocess.Popen([*network.hosts['lone'].within, 'sleep', '600'], stdout=-3, stderr=-3)\n"
    "    print(left.pid, network.hosts['lone'].namespace, flush=True)\n"
    "    os.kill(os.getpid(), signal.SIGKILL)\n"
)
_SPINS = "import time\nwhile time.monotonic() - {began!r} < {s}:\n    pass\nprint(time.process_time())\n"


def listening(host: Host, interface: str) -> int:
    """Listen on one interface of a host, until the host is gone; return the port."""
    process = subprocess.Popen(
        [*host.within, sys.executable, "-c", _SERVES, host.address(interface)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return int(process.stdout.readline())


def reaches(host: Host, address: str, port: int) -> bool:
    command = [*host.within, sys.executable, "-c", _READS.format(address, port)]
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


def test_hosts_reach_one_another_where_links_are_up_and_nothing_else_is_touched(network: HostNetwork) -> None:
    planner, host = network.hosts["planner"], network.hosts["host-2"]
    managed, woven = listening(planner, MANAGEMENT), listening(planner, FABRIC)
    assert reaches(host, planner.address(MANAGEMENT), managed)
    with network.cut("host-2", MANAGEMENT):
        assert not reaches(host, planner.address(MANAGEMENT), managed)
        assert reaches(host, planner.address(FABRIC), woven)
        assert reaches(network.hosts["host-1"], planner.address(MANAGEMENT), managed)
    assert reaches(host, planner.address(MANAGEMENT), managed)
    devices = Path("/sys/class/net").iterdir()
    assert not {device.name.partition("-")[0] for device in devices} & {MANAGEMENT, FABRIC}


def test_a_narrow_link_is_slow_and_a_lost_host_has_no_process(network: HostNetwork) -> None:
    planner = network.hosts["planner"]
    port = listening(planner, MANAGEMENT)
    with network.narrowed("planner", MANAGEMENT, bits_s=200_000, queue_bytes=4000):
        began = time.monotonic()
        assert reaches(network.hosts["host-0"], planner.address(MANAGEMENT), port)
        assert time.monotonic() - began > 0.9 * (NUM_BYTES - 4000) * 8 / 200_000
        assert network.num_dropped("planner", MANAGEMENT) > 0
    assert network.lose("planner")
    assert not list(processes_in(planner.namespace))
    assert not reaches(network.hosts["host-0"], planner.address(MANAGEMENT), port)


def test_a_slow_host_computes_less_in_the_same_time(network: HostNetwork) -> None:
    computing = _SPINS.format(began=time.monotonic(), s=1.5)
    command = [*network.hosts["host-1"].within, sys.executable, "-c", computing]
    with network.slowed("host-1", share=0.2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) < 0.75


def test_what_a_killed_run_left_is_swept() -> None:
    require_namespaces()
    died = subprocess.run([sys.executable, "-c", _DIES, HERE], capture_output=True, text=True, timeout=60, check=False)
    assert died.returncode == -signal.SIGKILL, died.stderr
    pid, namespace = died.stdout.split()
    assert is_running(int(pid))
    assert namespace in sweep()
    assert not is_running(int(pid))
    assert not (MOUNTED / namespace).exists()


def test_a_network_is_gone_with_its_processes_when_it_ends(network: HostNetwork) -> None:
    assert {path.name for path in MOUNTED.glob(f"{own_prefix()}-*")} >= {
        host.namespace for host in network.hosts.values()
    }
    assert sweep() == []


def test_where_no_namespace_can_be_made_tests_fail_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.delenv(WITHOUT, raising=False)
    with pytest.raises(pytest.fail.Exception, match=f"CAP_NET_ADMIN.*iproute2.*{WITHOUT}=1"):
        require_namespaces()
    monkeypatch.setenv(WITHOUT, "1")
    with pytest.raises(pytest.skip.Exception, match=WITHOUT):
        require_namespaces()
