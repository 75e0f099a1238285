"""`hydraulis agent`: the daemon of one node."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from types import FrameType

    from worker_agent.daemon.settings import AgentSettings

BROKEN = 1
BAD_SETTINGS = 2
ADDRESS_TAKEN = 3
REFUSED = 4
INTERRUPTED = 130

NONE = "none"


def agent(  # noqa: PLR0913 - one parameter for each option
    *,
    planner: Annotated[
        str, typer.Option(envvar="HYDRAULIS_PLANNER_URL", help="Where the planner is.", metavar="URL")
    ] = "http://127.0.0.1:8000",
    node: Annotated[
        str | None,
        typer.Option(envvar="HYDRAULIS_NODE", help="The node's name, as which it reports; the host name by default."),
    ] = None,
    job: Annotated[
        str | None, typer.Option(envvar="HYDRAULIS_JOB", help="The one job to serve; any if not given.")
    ] = None,
    socket: Annotated[
        str,
        typer.Option(
            envvar="HYDRAULIS_AGENT_SOCKET",
            help="Unix socket for the ranks of this node; 'none' for none. By default agent.sock in systemd's runtime "
            "directory, or /run/hydraulis/agent.sock.",
            metavar="PATH",
        ),
    ] = "",
    port: Annotated[
        int,
        typer.Option(
            envvar="HYDRAULIS_AGENT_PORT",
            min=-1,
            max=65535,
            help="Port at 127.0.0.1; 0 takes any free one, -1 is none.",
        ),
    ] = 8471,
    token_file: Annotated[
        Path | None,
        typer.Option(envvar="HYDRAULIS_TOKEN_FILE", help="File with a token of scope plan.", metavar="FILE"),
    ] = None,
    ca_file: Annotated[
        Path | None,
        typer.Option(envvar="HYDRAULIS_CA_FILE", help="Certificates (PEM) to trust instead of the public ones."),
    ] = None,
    heartbeat: Annotated[
        float, typer.Option(envvar="HYDRAULIS_AGENT_HEARTBEAT_S", help="Pause between heartbeats (s).")
    ] = 10.0,
    rank_wait: Annotated[
        float,
        typer.Option(envvar="HYDRAULIS_AGENT_RANK_WAIT_S", help="How long the first rank waits for the others (s)."),
    ] = 5.0,
    drain: Annotated[
        float,
        typer.Option(envvar="HYDRAULIS_AGENT_DRAIN_S", help="Time to send measured times when told to stop (s)."),
    ] = 5.0,
) -> None:
    """Report what the ranks of this node hold, and hand each of them the plan and its part.

    Runs until SIGTERM or Ctrl-C. Exits 0 after SIGTERM, 2 if a setting cannot be used, 3 if an address is taken, 4 if
    the planner refuses this agent, 130 after Ctrl-C, 1 if it breaks.
    """
    _stop_by_exception()
    from worker_agent.daemon.logs import configure_logs  # noqa: PLC0415 - `hydraulis --help` must not load the agent
    from worker_agent.daemon.node_name import default_node  # noqa: PLC0415
    from worker_agent.daemon.run import RefusedByPlanner, run_agent  # noqa: PLC0415
    from worker_agent.daemon.settings import AgentSettings  # noqa: PLC0415
    from worker_agent.daemon.sockets import AddressTaken, AddressUnusable  # noqa: PLC0415

    configure_logs()
    try:
        settings = AgentSettings(
            planner_url=planner,
            node=default_node() if node is None else node,
            job=job,
            socket_path=_socket_path(socket),
            port=None if port < 0 else port,
            token_file=token_file,
            ca_file=ca_file,
            heartbeat_s=heartbeat,
            rank_wait_s=rank_wait,
            drain_s=drain,
        )
        _check_certificates(settings)
        run_agent(settings)
    except (ValueError, AddressUnusable) as refused:
        _end(BAD_SETTINGS, str(refused))
    except AddressTaken as taken:
        _end(ADDRESS_TAKEN, str(taken))
    except RefusedByPlanner as refused:
        _end(REFUSED, str(refused))


def _socket_path(given: str) -> Path | None:
    from worker_agent.daemon.wire import DEFAULT_SOCKET  # noqa: PLC0415 - see agent

    if given == NONE:
        return None
    if given.startswith(("http://", "https://")):
        raise ValueError(f"--socket is {given!r}; give the path of a Unix socket, and a port by --port")
    if given:
        return Path(given.removeprefix("unix:"))
    runtime = os.environ.get("RUNTIME_DIRECTORY", "").partition(":")[0]
    return Path(runtime) / "agent.sock" if runtime else Path(DEFAULT_SOCKET)


def _check_certificates(settings: "AgentSettings") -> None:
    from planner_client.address import checked_address, trusting  # noqa: PLC0415 - see agent

    trusting(checked_address(settings.planner_url), settings.ca_file)


def _stop_by_exception() -> None:
    """Make SIGTERM end the process with exit code 0, and SIGINT with 130, also before and after it serves."""
    import signal  # noqa: PLC0415 - see agent

    def stop(signal_number: int, _frame: "FrameType | None") -> None:
        raise SystemExit(0 if signal_number == signal.SIGTERM else INTERRUPTED)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)


def _end(code: int, message: str) -> NoReturn:
    sys.stderr.write(f"hydraulis agent: {' '.join(message.split())}\n")
    raise typer.Exit(code)
