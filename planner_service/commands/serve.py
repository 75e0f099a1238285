"""`hydraulis serve`: run the planning service."""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner_service.commands.failures import BAD_INPUT, INTERRUPTED, fail

if TYPE_CHECKING:
    import socket
    import ssl
    from types import FrameType

    import uvicorn
    from starlette.datastructures import State

    from planner_service.settings import Settings
    from planner_service.store import Store

COMMAND = "serve"
SHUTDOWN_LOOK_S = 0.05
BACKLOG = 2048
"""Connections that wait to be accepted."""


def serve(  # noqa: PLR0913 - the command's options
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes any free one.")] = 8000,
    database: Annotated[
        str | None, typer.Option(help="Path of a SQLite file, or a database URL. [HYDRAULIS_DATABASE]")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Solver processes; by default one a CPU. [HYDRAULIS_WORKERS]")
    ] = None,
    auth: Annotated[
        Literal["auto", "tokens", "off"] | None,
        typer.Option(help="Ask for tokens: unless on loopback alone, always, or never. [HYDRAULIS_AUTH]"),
    ] = None,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="With auth off: let everybody who reaches the server do all.")
    ] = False,
    tls_cert: Annotated[
        str | None, typer.Option(help="Certificate chain (PEM), to serve HTTPS.", metavar="FILE")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(help="The certificate's key (PEM).", metavar="FILE")] = None,
) -> None:
    """Run the planning service until it is told to stop."""
    _stop_by_exception()
    from planner_service.logs import configure_logs  # noqa: PLC0415 - `hydraulis --help` must not load the service

    configure_logs()
    settings = _settings(
        database=database,
        workers=workers,
        auth=auth,
        allow_anonymous=allow_anonymous or None,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )
    tls = _tls(settings)
    listener = _listen(host, port)
    is_local = _is_loopback(listener)
    if settings.auth == "off" and not is_local and not settings.allow_anonymous:
        fail(
            COMMAND,
            f"{host} can be reached from other machines, and with auth off all of them could do everything; leave auth "
            "on, listen on 127.0.0.1, or say --allow-anonymous if that is meant",
            BAD_INPUT,
        )
    raise typer.Exit(_run(settings, listener, host, tls))


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
    """Take the port before anything else starts, so that a taken one costs nothing.

    Bound alone it could be bound by another service as well, which would find out when both begin to listen. Who
    connects before the service is ready waits for it.
    """
    import socket  # noqa: PLC0415 - see serve

    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except (OSError, ValueError) as error:  # a ValueError, where no machine can have such a name
        why = getattr(error, "strerror", None) or error
        fail(COMMAND, f"cannot listen on {host}:{port}: {why}; choose another with --host and --port", BAD_INPUT)
    return listener


def _tls(settings: "Settings") -> "ssl.SSLContext | None":
    from planner_service.commands.certificate import CertificateUnusable, tls_context  # noqa: PLC0415 - see serve

    try:
        return tls_context(settings.tls_cert, settings.tls_key)
    except CertificateUnusable as error:
        fail(COMMAND, str(error), BAD_INPUT)


def _is_loopback(listener: "socket.socket") -> bool:
    import ipaddress  # noqa: PLC0415 - see serve

    address = ipaddress.ip_address(listener.getsockname()[0].partition("%")[0])
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _run(settings: "Settings", listener: "socket.socket", host: str, tls: "ssl.SSLContext | None") -> int:
    import asyncio  # noqa: PLC0415 - see serve
    import os  # noqa: PLC0415 - see serve
    from importlib.metadata import version  # noqa: PLC0415 - see serve

    import uvicorn  # noqa: PLC0415 - see serve

    from planner_service.access import without_secrets  # noqa: PLC0415 - see serve
    from planner_service.api import create_app  # noqa: PLC0415 - see serve
    from planner_service.api.app import DISTRIBUTION  # noqa: PLC0415 - see serve
    from planner_service.api.connections import bounded_connections  # noqa: PLC0415 - see serve
    from planner_service.store import SqlStore, StoreUnavailable  # noqa: PLC0415 - see serve
    from planner_service.tracing import TracingUnusable, tracing_from  # noqa: PLC0415 - see serve

    is_local = _is_loopback(listener)
    try:
        tracing = tracing_from(os.environ, version=version(DISTRIBUTION), cleaned=without_secrets)
        store = SqlStore(settings.database)
        _warn(settings, store, is_local=is_local)
        app = create_app(settings, store=store, is_local=is_local, tracing=tracing)
    except (StoreUnavailable, TracingUnusable) as error:
        fail(COMMAND, str(error), BAD_INPUT)
    config = uvicorn.Config(
        app,
        http=bounded_connections(settings.body_timeout_s),
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=settings.drain_timeout_s,
    )
    config.load()
    config.ssl = tls
    server = uvicorn.Server(config)
    shown_host = f"[{host}]" if ":" in host else host
    url = f"{'http' if tls is None else 'https'}://{shown_host}:{listener.getsockname()[1]}"
    try:
        with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
            return runner.run(_serve(server, listener, app.state, url))
    finally:
        if tracing is not None:
            tracing.close()


def _warn(settings: "Settings", store: "Store", *, is_local: bool) -> None:
    """Say what an operator should know about who can get in."""
    import structlog  # noqa: PLC0415 - see serve

    from planner_service.commands.certificate import is_readable_by_others  # noqa: PLC0415 - see serve

    log = structlog.get_logger("hydraulis.serve")
    if settings.asks_for_tokens(is_local=is_local):
        if all(token.is_expired for token in store.access.tokens()):
            log.warning(
                "no_tokens",
                detail="tokens are asked for and none is valid: nobody can call this service",
                remedy="hydraulis tokens create NAME --scope admin, with the same --database or HYDRAULIS_DATABASE",
            )
    elif not is_local:
        log.warning("anonymous", detail="everybody who reaches this service can do everything")
    if settings.tls_key is None and not is_local:
        log.warning(
            "no_tls",
            detail="tokens and plans cross the network unencrypted",
            remedy="give --tls-cert and --tls-key, or put a proxy that speaks TLS in front",
        )
    if settings.tls_key is not None and is_readable_by_others(settings.tls_key):
        log.warning("key_readable", detail=f"all users of this machine can read {settings.tls_key}", remedy="chmod o=")


async def _serve(server: "uvicorn.Server", listener: "socket.socket", state: "State", url: str) -> int:
    import asyncio  # noqa: PLC0415 - see serve

    serving = asyncio.ensure_future(server.serve(sockets=[listener]))
    while not serving.done() and not (server.started and state.pool.is_ready):
        if state.pool.start_failure is not None:
            server.should_exit = True
            await serving
            fail(COMMAND, f"the planner cannot start: {state.pool.start_failure}; the log above says why", BAD_INPUT)
        await asyncio.wait({serving}, timeout=0.02)
    if not serving.done():
        sys.stdout.write(f"listening on {url}\n")
        sys.stdout.flush()
    while not serving.done():
        if server.should_exit:
            # The server waits for requests in progress, and these for plans: they are told first.
            state.begin_shutdown()
            break
        await asyncio.wait({serving}, timeout=SHUTDOWN_LOOK_S)
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
