"""`hydraulis serve`: run the planning service."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from planner_service.commands.failures import BAD_INPUT, INTERRUPTED, fail

if TYPE_CHECKING:
    import socket
    from types import FrameType

    import uvicorn

    from planner_service.pool import SolverPool
    from planner_service.settings import Settings

COMMAND = "serve"


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8000,
    database: Annotated[
        str | None, typer.Option(help="Path of a SQLite file, or a database URL. [HYDRAULIS_DATABASE]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Solver processes; by default one a CPU. [HYDRAULIS_WORKERS]")
    ] = None,
) -> None:
    """Run the planning service until it is told to stop."""
    _stop_by_exception()
    from planner_service.logs import configure_logs  # noqa: PLC0415 - `hydraulis --help` must not load the service

    configure_logs()
    settings = _settings(database=database, workers=workers)
    listener = _listen(host, port)
    raise typer.Exit(_run(settings, listener, host))


def _settings(**options: object) -> "Settings":
    from pydantic import ValidationError  # noqa: PLC0415 - see serve

    from planner_service.settings import Settings  # noqa: PLC0415 - see serve

    try:
        return Settings(**{name: value for name, value in options.items() if value is not None})  # type: ignore[arg-type]
    except ValidationError as error:
        lines = "; ".join(
            f"{str(entry['loc'][0]) if entry['loc'] else 'settings'}: {entry['msg']}, got {entry['input']!r:.80}"
            for entry in error.errors()
        )
        fail(
            COMMAND,
            f"settings cannot be used: {lines}; correct the HYDRAULIS_ variable or the option of that name",
            BAD_INPUT,
        )


def _listen(host: str, port: int) -> "socket.socket":
    """Bind before anything else starts, so that a taken port costs nothing."""
    import socket  # noqa: PLC0415 - see serve

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        fail(
            COMMAND,
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another with --host and --port",
            BAD_INPUT,
        )
    return listener


def _run(settings: "Settings", listener: "socket.socket", host: str) -> int:
    import asyncio  # noqa: PLC0415 - see serve

    import uvicorn  # noqa: PLC0415 - see serve

    from planner_service.api import create_app  # noqa: PLC0415 - see serve
    from planner_service.store import StoreUnavailable  # noqa: PLC0415 - see serve

    try:
        app = create_app(settings)
    except StoreUnavailable as error:
        fail(COMMAND, str(error), BAD_INPUT)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.drain_timeout_s,
    )
    server = uvicorn.Server(config)
    shown_host = f"[{host}]" if ":" in host else host
    url = f"http://{shown_host}:{listener.getsockname()[1]}"
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        return runner.run(_serve(server, listener, app.state.pool, url))


async def _serve(server: "uvicorn.Server", listener: "socket.socket", pool: "SolverPool", url: str) -> int:
    import asyncio  # noqa: PLC0415 - see serve

    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not serving.done() and not (server.started and pool.is_ready):
        if pool.start_failure is not None:
            server.should_exit = True
            await serving
            fail(COMMAND, f"the planner cannot start: {pool.start_failure}; the log above says why", BAD_INPUT)
        await asyncio.wait({serving}, timeout=0.02)
    if not serving.done():
        sys.stdout.write(f"listening on {url}\n")
        sys.stdout.flush()
    await serving
    return 0


def _stop_by_exception() -> None:
    """Make SIGTERM end the process with exit code 0, and SIGINT with 130.

    While it serves, the web server takes both signals over to stop gracefully; when it has, it raises them
    again for whoever handled them before, which is this.
    """
    import signal  # noqa: PLC0415 - see serve

    def stop(signal_number: int, _frame: "FrameType | None") -> None:
        raise SystemExit(0 if signal_number == signal.SIGTERM else INTERRUPTED)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
