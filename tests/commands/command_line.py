"""`hydraulis` as people and machines call it: in this process, in one of its own, and on a terminal."""

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from planner_client.main import main

HYDRAULIS = str(Path(sys.executable).parent / "hydraulis")
TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Done:
    """How a command ended and what it wrote; on a terminal ``out`` is all of it."""

    code: int
    out: str
    err: str = ""

    def json(self) -> Any:
        assert (self.code, self.err) == (0, ""), self.err
        return json.loads(self.out)

    @property
    def said(self) -> str:
        """What stands on standard error, without the frame that wrong options get."""
        return " ".join(self.err.replace("│", " ").split())


def hydraulis(*arguments: str) -> Done:
    """Run a command in this process, from its arguments to its exit code; nobody is there to answer questions."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="", write_through=True) for _ in range(2))
    code: Any = None
    with (
        patch.object(sys, "argv", ["hydraulis", *arguments]),
        patch.object(sys, "stdin", io.StringIO()),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    written = [stream.buffer.getvalue().decode() for stream in (out, err)]  # type: ignore[attr-defined]
    return Done(code or 0, *written)


def apart(*arguments: str, env: dict[str, str] | None = None, **options: Any) -> Done:
    """Run a command in a process of its own."""
    done = subprocess.run(
        [HYDRAULIS, *arguments],
        **{"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        encoding="utf-8",
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **(env or {})},
    )
    return Done(done.returncode, done.stdout or "", done.stderr or "")


def on_terminal(*arguments: str, typed: str = "", interrupt_at: str | None = None, columns: int = 120) -> Done:
    """Run a command on a terminal of its own, where somebody has typed something ahead, or interrupts at some words."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = subprocess.Popen(
        [HYDRAULIS, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        env={**env, "TERM": "xterm-256color"},
    )
    os.close(theirs)
    try:
        os.write(ours, typed.encode())
        written = ""
        if interrupt_at is not None:
            written = _read(ours, interrupt_at)
            process.send_signal(signal.SIGINT)
        written += _read(ours)
        return Done(process.wait(TIMEOUT_S), written)
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        os.close(ours)


def without_colours(text: str) -> str:
    """Take out what a terminal acts on rather than shows."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def _read(terminal: int, until: str | None = None) -> str:
    """Read to the end, or until some words have come."""
    ends_at = time.monotonic() + TIMEOUT_S
    data = b""
    while select.select([terminal], [], [], max(0.0, ends_at - time.monotonic()))[0]:
        try:
            read = os.read(terminal, 65536)
        except OSError:  # the last one who had it open has closed it
            read = b""
        data += read
        if not read or (until is not None and until.encode() in data):
            return data.decode()
    raise AssertionError(f"the command has not ended; it wrote {data!r}")
