"""Network namespaces of the tests' own: made, looked into, and removed, also those of runs that were killed."""

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

WITHOUT = "HYDRAULIS_WITHOUT_NAMESPACES"
MOUNTED = Path("/run/netns")
_PREFIX = "hydraulis-test"
_CLONE_NEWNET = 0x40000000
_COMMAND_S = 30.0
_GONE_S = 10.0


def ip(*arguments: str) -> None:
    """Run iproute2's ``ip``."""
    _run("ip", *arguments)


def tc(namespace: str, *arguments: str) -> str:
    """Run iproute2's ``tc`` in a namespace; return what it says."""
    return _run("tc", "-n", namespace, *arguments)


def require_namespaces() -> None:
    """Fail the test with a plain reason where namespaces cannot be made; skip it where that was asked for."""
    if os.environ.get(WITHOUT) == "1":
        pytest.skip(f"{WITHOUT}=1")
    name = f"{own_prefix()}-tried"
    try:
        ip("netns", "add", name)
        ip("netns", "delete", name)
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or error
        pytest.fail(
            f"these tests put hosts into network namespaces, and none can be made: {str(said).strip()}. Run them as "
            "root with CAP_NET_ADMIN and CAP_SYS_ADMIN where iproute2 is installed (on Debian or Ubuntu `apt-get "
            f"install -y iproute2`), or leave them out with {WITHOUT}=1"
        )


def own_prefix() -> str:
    """Return what the names of this process's namespaces begin with."""
    return f"{_PREFIX}-{os.getpid()}-{_start_ticks(os.getpid())}"


def sweep() -> list[str]:
    """Remove the namespaces, and end the processes in them, of runs that are dead; return their names."""
    swept = []
    for path in MOUNTED.glob(f"{_PREFIX}-*"):
        pid, ticks = path.name.removeprefix(f"{_PREFIX}-").split("-")[:2]
        if _start_ticks(int(pid)) != ticks:
            remove(path.name)
            swept.append(path.name)
    return swept


def remove(namespace: str) -> None:
    """Remove a namespace and what is in it: interfaces and processes."""
    kill_all(namespace)
    with suppress(subprocess.CalledProcessError):  # another run may sweep the same
        ip("netns", "delete", namespace)


def kill_all(namespace: str) -> list[int]:
    """Kill all processes in a namespace, those they start meanwhile too; return their ids."""
    killed: list[int] = []
    ends_at = time.monotonic() + _GONE_S
    while living := list(processes_in(namespace)):
        assert time.monotonic() < ends_at, f"processes {living} in {namespace} do not end"
        send(signal.SIGKILL, living)
        killed += living
        time.sleep(0.01)
    return sorted(set(killed))


def send(number: signal.Signals, pids: list[int]) -> None:
    """Send a signal to processes that may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def processes_in(namespace: str) -> Iterator[int]:
    """Yield the ids of all processes in a namespace."""
    try:
        inode = (MOUNTED / namespace).stat().st_ino
    except FileNotFoundError:
        return
    for entry in os.listdir("/proc"):  # noqa: PTH208 - paths of all processes, many times a second
        if entry.isdigit():
            with suppress(OSError):  # it ended, or is a zombie
                if os.stat(f"/proc/{entry}/ns/net").st_ino == inode:  # noqa: PTH116 - as above
                    yield int(entry)


def enter(namespace: str) -> None:
    """Move the calling thread, and whatever it starts, into a namespace."""
    libc = ctypes.CDLL(None, use_errno=True)
    with (MOUNTED / namespace).open() as opened:
        if libc.setns(opened.fileno(), _CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def _start_ticks(pid: int) -> str | None:
    """Return when a process started (clock ticks since boot), which with its id names it; None if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=_COMMAND_S).stdout
