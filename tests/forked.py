"""Processes forked from one that has imported what takes seconds, and has done nothing else."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Protocol

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(
    [
        "torch",
        "torch.distributed",
        "worker_agent.executor.runner",
        "planner_service.translate",
        "planner_service.api",
        "planner_service.commands.serve",
        "worker_agent.commands.agent",
        "worker_agent.daemon",
        "uvicorn",
        "typer",
    ]
)


class CommandProcess(Protocol):
    """What tests do with a `hydraulis` command in a process of its own, however it was started."""

    stdout: IO[str] | None

    @property
    def pid(self) -> int:
        """Process id."""

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""


@dataclass
class ForkedCommand:
    """A command in a forked process, as `subprocess.Popen` shows one."""

    process: ForkServerProcess
    stdout: IO[str] | None

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process.pid is not None
        return self.process.pid

    def poll(self) -> int | None:
        """Return the exit code (negative: the signal), or None while it runs."""
        return self.process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired(self.process.name, timeout or 0.0)
        return self.process.exitcode

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        """Send SIGKILL, unless it has ended."""
        self.send_signal(signal.SIGKILL)


def hydraulis_command(*arguments: str, first: str = "") -> list[str]:
    """Return the command line of a `hydraulis` command, and of a statement that is to run before it."""
    return [sys.executable, "-c", f"{first}from planner_client.main import main; main()", *arguments]


def start_command(command: Sequence[str], stderr_path: Path, env: Mapping[str, str]) -> CommandProcess:
    """Run a command line; its output can be read, its errors go to a file."""
    with stderr_path.open("w") as errors:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=env)


def first_lines(process: CommandProcess, num: int, timeout_s: float) -> list[str]:
    """Read lines of its output; one that does not write them in time is killed."""
    watchdog = threading.Timer(timeout_s, process.kill)
    watchdog.start()
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(num)]
    watchdog.cancel()
    return lines


def end_command(process: CommandProcess, timeout_s: float) -> None:
    """Kill a command if it runs, and let go of its output."""
    if process.poll() is None:
        process.kill()
    process.wait(timeout_s)
    assert process.stdout is not None
    process.stdout.close()


def fork_command(
    arguments: Sequence[str], stderr_path: Path, env: Mapping[str, str], prepare: Callable[[], None] | None = None
) -> ForkedCommand:
    """Run `hydraulis` with arguments; its output can be read, its errors go to a file.

    Parameters
    ----------
    arguments
        What follows `hydraulis`.
    stderr_path
        Where its errors go.
    env
        Its whole environment.
    prepare
        What the process does first; can be pickled.
    """
    reading, writing = os.pipe()
    call = _Call(list(arguments), dict(env), Path.cwd(), stderr_path, prepare)
    process = FORKED.Process(target=_run_command, args=(call, _Output(writing)), name=f"hydraulis {arguments[0]}")
    process.start()
    os.close(writing)
    return ForkedCommand(process, os.fdopen(reading))


class _Output:
    """A file descriptor that goes to the new process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self._descriptor),)


def _detach(duplicate: Any) -> int:
    descriptor: int = duplicate.detach()
    return descriptor


@dataclass(frozen=True)
class _Call:
    """How a command is called."""

    arguments: list[str]
    env: dict[str, str]
    directory: Path
    stderr_path: Path
    prepare: Callable[[], None] | None


def _run_command(call: _Call, output: int) -> None:
    # Solvers that the command starts would import the main module of the tests, were it still there.
    sys.modules["__main__"] = ModuleType("__main__")
    os.dup2(output, 1)
    os.close(output)
    errors = os.open(call.stderr_path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.dup2(errors, 2)
    os.close(errors)
    os.environ.clear()
    os.environ.update(call.env)
    os.chdir(call.directory)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["hydraulis", *call.arguments]
    if call.prepare is not None:
        call.prepare()

    from planner_client.main import main  # noqa: PLC0415 - with the environment that is the command's

    main()
