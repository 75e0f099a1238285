"""The agent in a process of its own, for tests."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from forked import CommandProcess, end_command, first_lines, fork_command, hydraulis_command, start_command

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


@dataclass
class ServedAgent:
    """A `hydraulis agent` in a second process."""

    process: CommandProcess
    address: str
    log_path: Path

    def stop(self, signal_number: int = signal.SIGTERM) -> int:
        """Stop the agent; return its exit code."""
        self.process.send_signal(signal_number)
        return self.process.wait(STOP_TIMEOUT_S)

    @property
    def log(self) -> str:
        """What the agent wrote to stderr so far."""
        return self.log_path.read_text()


def agent_command(*options: str) -> list[str]:
    """Return the command of an agent."""
    return hydraulis_command("agent", *options)


@contextmanager
def agents(directory: Path) -> Iterator[Callable[..., ServedAgent]]:
    started: list[ServedAgent] = []

    def start(
        url: str, node: str, *options: str, env: dict[str, str] | None = None, within: Sequence[str] | None = None
    ) -> ServedAgent:
        log_path = directory / f"agent-{len(started)}.log"
        socket = directory / f"{node}.sock"
        arguments = ["--planner", url, "--node", node, "--socket", str(socket), "--port", "0", *options]
        whole_env = {**os.environ, **(env or {})}
        process: CommandProcess
        if within is None:
            process = fork_command(["agent", *arguments], log_path, whole_env)
        else:
            process = start_command([*within, *agent_command(*arguments)], log_path, whole_env)
        served = ServedAgent(process, f"unix:{socket}", log_path)
        started.append(served)
        lines = first_lines(process, 2, START_TIMEOUT_S)
        assert lines[0] == f"listening on {served.address}\n", f"{lines}; {served.log}"
        assert lines[1].startswith("listening on http://127.0.0.1:"), f"{lines}; {served.log}"
        return served

    try:
        yield start
    finally:
        for served in started:
            end_command(served.process, STOP_TIMEOUT_S)
