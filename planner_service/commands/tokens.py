"""`hydraulis tokens`: give, list and revoke tokens, on the database itself: so the first one can be made."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from planner_service.commands.failures import BAD_INPUT, fail, failures_of

if TYPE_CHECKING:
    from planner_client.contract import TokenList
    from planner_service.access import AuditRecord, TokenRegister

tokens = typer.Typer(
    name="tokens", help="Give, list and revoke the tokens that callers of the service need.", no_args_is_help=True
)

UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
MAX_DIGITS = 12

DatabaseOption = Annotated[
    str | None,
    typer.Option(help="Path of a SQLite file, or a database URL; that of the service. [HYDRAULIS_DATABASE]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NameArgument = Annotated[str, typer.Argument(help="The token's name.", show_default=False)]


@tokens.command()
def create(  # noqa: PLR0913 - the command's options
    name: NameArgument,
    scope: Annotated[
        Literal["read", "plan", "admin"],
        typer.Option(help="What its holder may do: look, also plan and report, or also delete and give tokens."),
    ],
    *,
    job: Annotated[
        list[str] | None,
        typer.Option(help="Good for this job only, or with * at the end for all that begin so; may be repeated."),
    ] = None,
    expires_in: Annotated[
        str | None,
        typer.Option(help="How long it is good for, such as 12h, 30d or 52w; for ever if not given.", metavar="TIME"),
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a token. Its secret is printed this once, alone on standard output."""
    from planner_client.contract import TokenRequest  # noqa: PLC0415 - keeps `hydraulis --help` fast

    with failures_of("tokens create"):
        lifetime_s = None if expires_in is None else _seconds(expires_in)
        wanted = TokenRequest.model_validate(
            {"name": name, "scope": scope, "jobs": job or None, "expires_in_s": lifetime_s}
        )
        with _opened("tokens create", database, may_create=True) as (register, record):
            token = register.give(wanted)
            record.done(token=None, action="create-token", subject=name)
    sys.stdout.write((token.model_dump_json(indent=2) if as_json else token.token) + "\n")
    jobs = "all jobs" if token.jobs is None else ", ".join(token.jobs)
    expiry = "" if token.expires_at is None else f", expires {_shown_time(token.expires_at)} UTC"
    sys.stderr.write(f"token {name}: scope {token.scope}, {jobs}{expiry}; its secret is not shown again\n")


@tokens.command("list")
def list_tokens(*, database: DatabaseOption = None, as_json: JsonOption = False) -> None:
    """List all tokens, without their secrets."""
    with _opened("tokens list", database, may_create=False) as (register, _):
        listing = register.all()
    if as_json:
        sys.stdout.write(listing.model_dump_json(indent=2) + "\n")
    else:
        _print_table(listing)


@tokens.command()
def revoke(name: NameArgument, *, database: DatabaseOption = None) -> None:
    """Take a token back. Running services notice within 5 s."""
    with failures_of("tokens revoke"), _opened("tokens revoke", database, may_create=False) as (register, record):
        register.revoke(name)
        record.done(token=None, action="revoke-token", subject=name)
    sys.stderr.write(f"token {name} is revoked; running services refuse it within 5 s\n")


@contextmanager
def _opened(command: str, database: str | None, *, may_create: bool) -> "Iterator[tuple[TokenRegister, AuditRecord]]":
    """Open the database; end the command where that fails."""
    import logging  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from planner_service.access import AuditRecord, TokenRegister  # noqa: PLC0415
    from planner_service.logs import configure_logs  # noqa: PLC0415
    from planner_service.settings import Settings  # noqa: PLC0415
    from planner_service.store import SqlStore, StoreUnavailable, database_url  # noqa: PLC0415

    configure_logs(logging.WARNING)
    path = Settings().database if database is None else database
    try:
        if not may_create:
            _refuse_missing(command, path, database_url(path).database)
        store = SqlStore(path)
        try:
            yield TokenRegister(store.access), AuditRecord(store.access)
        finally:
            store.close()
    except StoreUnavailable as error:
        fail(command, str(error), BAD_INPUT)


def _refuse_missing(command: str, database: str, file: str | None) -> None:
    from pathlib import Path  # noqa: PLC0415 - keeps `hydraulis --help` fast

    is_file = "://" not in database or database.startswith("sqlite")
    if is_file and file and not Path(file).exists():
        fail(command, f"there is no database {file}; give that of the service with --database", BAD_INPUT)


def _seconds(text: str) -> int:
    """Read a time such as ``30d``."""
    number, unit = text[:-1], text[-1:]
    if not (number.isascii() and number.isdecimal() and len(number) <= MAX_DIGITS and unit in UNIT_S):
        fail(
            "tokens create",
            f"--expires-in {text!r:.80} is no time; give a number and one of {', '.join(UNIT_S)}, such as 30d",
            BAD_INPUT,
        )
    return int(number) * UNIT_S[unit]


def _shown_time(at: float) -> str:
    import time  # noqa: PLC0415 - keeps `hydraulis --help` fast

    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))


def _print_table(listing: "TokenList") -> None:
    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    if not listing.tokens:
        sys.stderr.write("there are no tokens; `hydraulis tokens create NAME --scope SCOPE` gives one\n")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "scope", "jobs", "given (UTC)", "expires (UTC)"):
        table.add_column(heading, overflow="fold")
    for token in listing.tokens:
        jobs = "all" if token.jobs is None else ", ".join(token.jobs)
        expiry = "never" if token.expires_at is None else _shown_time(token.expires_at)
        expiry += " (expired)" if token.is_expired else ""
        table.add_row(token.name, token.scope, jobs, _shown_time(token.created_at), expiry)
    Console().print(table)
