"""The planner as a second process: started, awaited, and stopped whatever happens."""

import ctypes
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 10.0
_LISTENING = re.compile(r"listening on (http://\S+)")
_HYDRAULIS = [sys.executable, "-c", "from planner_client.main import main; main()"]


class ServiceUnavailable(RuntimeError):  # noqa: N818 - names what happened, as the other faults do
    """The planner service could not be started on this machine."""


def missing_service_packages() -> list[str]:
    """Return the packages of the ``service`` extra that are not installed."""
    names = [
        match[0]
        for line in requires("hydraulis-planner") or []
        if "extra ==" in line and "service" in line and (match := re.match(r"[A-Za-z0-9._-]+", line))
    ]
    return [name for name in names if not _installed(name)]


def _installed(name: str) -> bool:
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


_PR_SET_PDEATHSIG = 1
"""From <linux/prctl.h>."""


@contextmanager
def running_service(database: Path, *, timeout_s: float = START_TIMEOUT_S) -> Iterator[str]:
    """Run ``hydraulis serve`` on a free port of this machine and yield its URL; it is stopped on leaving.

    Parameters
    ----------
    database
        File of the service's store.
    timeout_s
        Wall-clock limit for the service to say that it listens.

    Raises
    ------
    ServiceUnavailable
        If it ends or stays silent within the limit; the message holds the last lines it wrote.
    """
    process = subprocess.Popen(  # noqa: S603 - the product's own command on this very interpreter
        [*_HYDRAULIS, "serve", "--port", "0", "--database", str(database)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_end_with_the_parent,  # noqa: PLW1509 - it makes one system call and takes no lock
    )
    output = _Output(process)
    try:
        yield output.listening_url(timeout_s)
    finally:
        _stop(process)


def _end_with_the_parent() -> None:
    """Have Linux stop the service when the demo is gone, however it ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class _Output:
    """Reads what the service writes, so that its pipes never fill, and finds the line that says where it listens."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self._last_lines: deque[str] = deque(maxlen=15)
        self._url: str | None = None
        self._changed = threading.Event()
        for stream in (process.stdout, process.stderr):
            threading.Thread(target=self._read, args=(stream,), daemon=True, name="service-output").start()

    def _read(self, stream: Iterator[str]) -> None:
        for line in stream:
            self._last_lines.append(line.rstrip())
            match = _LISTENING.search(line)
            if match:
                self._url = match[1]
                self._changed.set()

    def listening_url(self, timeout_s: float) -> str:
        ends_at = time.monotonic() + timeout_s
        while not self._changed.wait(0.05):
            if self._process.poll() is not None:
                self._changed.wait(0.5)  # what it wrote last is still on its way through the pipe
                raise ServiceUnavailable(
                    f"hydraulis serve ended with exit code {self._process.returncode}: {self._heard()}"
                )
            if time.monotonic() > ends_at:
                raise ServiceUnavailable(f"hydraulis serve was not ready within {timeout_s:g} s: {self._heard()}")
        if self._url is None:
            raise ServiceUnavailable(f"hydraulis serve gave no address: {self._heard()}")
        return self._url

    def _heard(self) -> str:
        return "\n".join(self._last_lines) or "it wrote nothing"


def _stop(process: "subprocess.Popen[str]") -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(_STOP_TIMEOUT_S)
