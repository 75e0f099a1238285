"""What an operator sets of an agent: frozen, refused where it cannot be used."""

import math
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from planner_client.address import bearer, checked_address
from planner_client.contract import NodeName
from planner_client.contract.nodes import MAX_REPORT_EVERY_S
from planner_client.contract.scalars import JobName

DEFAULT_PLANNER_URL = "http://127.0.0.1:8000"

_NODE = TypeAdapter(NodeName)
_JOB = TypeAdapter(JobName)


@dataclass(frozen=True)
class AgentSettings:
    """How an agent runs.

    Attributes
    ----------
    planner_url
        Where the planner is.
    node
        The node's name, the source as which it reports.
    job
        The one job that it serves; None for any.
    socket_path
        The Unix socket to listen on; None for none.
    port
        The port to listen on at 127.0.0.1, 0 for any free one; None for none.
    token_file
        A file with the planner's token, read again when the planner does not take it any more.
    ca_file
        Certificates (PEM) to trust instead of the public ones.
    heartbeat_s
        How often the planner is told that the node is there (s).
    rank_wait_s
        How long an iteration waits for the other ranks of the node after the first one handed in (s).
    drain_s
        How long measured times and requests in progress get when the agent is told to stop (s).

    Raises
    ------
    ValueError
        If a value cannot be used; it says which and what to give.
    """

    planner_url: str = DEFAULT_PLANNER_URL
    node: str = ""
    job: str | None = None
    socket_path: Path | None = None
    port: int | None = None
    token_file: Path | None = None
    ca_file: Path | None = None
    heartbeat_s: float = 10.0
    rank_wait_s: float = 5.0
    drain_s: float = 5.0

    def __post_init__(self) -> None:
        checked_address(self.planner_url)
        _refuse_name(_NODE, "--node", self.node)
        if self.job is not None:
            _refuse_name(_JOB, "--job", self.job)
        if self.socket_path is None and self.port is None:
            raise ValueError("there is nothing to listen on; give --socket, or --port")
        for name, seconds in (
            ("--heartbeat", self.heartbeat_s),
            ("--rank-wait", self.rank_wait_s),
            ("--drain", self.drain_s),
        ):
            if not (seconds > 0 and math.isfinite(seconds)):
                raise ValueError(f"{name} is {seconds}; give a positive number of seconds")
        if self.heartbeat_s > MAX_REPORT_EVERY_S:
            raise ValueError(f"--heartbeat is {self.heartbeat_s}; give at most {MAX_REPORT_EVERY_S} s")
        self.token()

    def token(self) -> str | None:
        """Read the token; None without a file for it.

        Raises
        ------
        ValueError
            If the file cannot be read or holds no token; the message does not repeat it.
        """
        if self.token_file is None:
            return None
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"the token file {self.token_file} cannot be read ({error})") from None
        try:
            bearer(token)
        except ValueError as refused:
            raise ValueError(f"the token file {self.token_file} cannot be used: {refused}") from None
        return token


def _refuse_name(kind: TypeAdapter[str], option: str, name: str) -> None:
    try:
        kind.validate_python(name)
    except ValidationError:
        raise ValueError(
            f"{option} is {name!r}; give at most 128 letters, digits, '.', '_' or '-', beginning with a letter or digit"
        ) from None
