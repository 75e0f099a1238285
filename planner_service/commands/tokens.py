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

DatabaseOption = Annotated[
    str | None,
    typer.Option(help="Path of a SQLite file, or a database URL; that of the service. [HYDRAULIS_DATABASE]"),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NameArgument = Annotated[str, typer.Argument(help="The token's name.", show_default=False)]


@tokens.command()
def create(
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
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a token. Its secret is printed this once, alone on standard output."""
    from planner_client.contract import TokenRequest  # noqa: PLC0415 - keeps `hydraulis --help` fast

    with failures_of("tokens create"):
        wanted = TokenRequest.model_validate({"name": name, "scope": scope, "jobs": job or None})
        with _opened("tokens create", database, may_create=True) as (register, record):
            token = register.give(wanted)
            record.done(token=None, action="create-token", subject=name)
    sys.stdout.write((token.model_dump_json(indent=2) if as_json else token.token) + "\n")
    jobs = "all jobs" if token.jobs is None else ", ".join(token.jobs)
    sys.stderr.write(f"token {name}: scope {token.scope}, {jobs}; its secret is not shown again\n")


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


def _print_table(listing: "TokenList") -> None:
    import time  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from rich.console import Console  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    if not listing.tokens:
        sys.stderr.write("there are no tokens; `hydraulis tokens create NAME --scope SCOPE` gives one\n")
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "scope", "jobs", "given (UTC)"):
        table.add_column(heading, overflow="fold")
    for token in listing.tokens:
        jobs = "all" if token.jobs is None else ", ".join(token.jobs)
        given = time.strftime("%Y-%m-%d %H:%M", time.gmtime(token.created_at))
        table.add_row(token.name, token.scope, jobs, given)
    Console().print(table)
