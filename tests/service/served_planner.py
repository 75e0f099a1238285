"""The whole server in a process of its own, for tests."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from forked import CommandProcess, end_command, first_lines, fork_command, hydraulis_command, start_command

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


@dataclass
class ServedPlanner:
    """A `hydraulis serve` in a second process."""

    process: CommandProcess
    url: str
    log_path: Path

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop the server; return its exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(STOP_TIMEOUT_S)

    @property
    def log(self) -> str:
        """What the server wrote to stderr so far."""
        return self.log_path.read_text()


def serve_command(*options: str, solve_name: str | None = None) -> list[str]:
    """Return the command of a server, with another planner than the real one if named."""
    first = ""
    if solve_name is not None:
        paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
        first = f"import sys; sys.path += {paths}; from served_planner import plan_by; plan_by({solve_name!r}); "
    return hydraulis_command("serve", *options, first=first)


def plan_by(solve_name: str) -> None:
    """Have the server of this process plan with another planner than the real one."""
    from planner_service.api import app  # noqa: PLC0415 - in the server alone

    sys.path.append(str(Path(__file__).parent))
    (app.create_app.__kwdefaults__ or {})["solve_name"] = solve_name


@contextmanager
def servers(directory: Path) -> Iterator[Callable[..., ServedPlanner]]:
    started: list[ServedPlanner] = []

    def start(
        *options: str,
        database: Path | None = None,
        database_url: str | None = None,
        env: dict[str, str] | None = None,
        solve_name: str | None = None,
        within: Sequence[str] | None = None,
    ) -> ServedPlanner:
        """Start a server.

        Parameters
        ----------
        *options
            Options of `hydraulis serve`.
        database, database_url
            Where it keeps things; by default in a file of the directory.
        env
            What its environment has besides that of the tests.
        solve_name
            Another planner than the real one.
        within
            A command to start it by, or nothing to start it alone; by default it is forked from a process that has
            imported it, which takes a tenth of the time.
        """
        log_path = directory / f"server-{len(started)}.log"
        stored = database_url or str(database or directory / "planner.sqlite3")
        arguments = ["--port", "0", "--database", stored, *options]
        whole_env = {**os.environ, **(env or {})}
        process: CommandProcess
        if within is None:
            prepare = None if solve_name is None else partial(plan_by, solve_name)
            process = fork_command(["serve", *arguments], log_path, whole_env, prepare)
        else:
            command = [*within, *serve_command(*arguments, solve_name=solve_name)]
            process = start_command(command, log_path, whole_env)
        served = ServedPlanner(process, "", log_path)
        started.append(served)
        (line,) = first_lines(process, 1, START_TIMEOUT_S)
        assert line.startswith(("listening on http://", "listening on https://")), f"{line!r}; {served.log}"
        served.url = line.split()[-1]
        return served

    try:
        yield start
    finally:
        for served in started:
            end_command(served.process, STOP_TIMEOUT_S)


def wait_until(condition: Callable[[], bool], timeout_s: float = 10.0) -> bool:
    ends_at = time.monotonic() + timeout_s
    while time.monotonic() < ends_at:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def is_running(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
