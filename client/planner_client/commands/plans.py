"""`hydraulis plans`: the plans that a service keeps."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from planner_client.commands.deletion import YesOption, delete_all
from planner_client.commands.export import ForceOption, FormatOption, OutputOption, export
from planner_client.commands.options import JsonOption, LengthsOption, LimitOption
from planner_client.commands.service import asks_service

if TYPE_CHECKING:
    from planner_client.client import PlannerClient
    from planner_client.contract import PlanSummary

plans = typer.Typer(name="plans", help="List, show, export and delete the plans that are kept.", no_args_is_help=True)

AfterOption = Annotated[
    int | None,
    typer.Option(min=0, help="Only those stored after the plan of this number (see --json).", show_default=False),
]


@plans.command("list")
@asks_service("plans list")
def list_plans(
    client: "PlannerClient", *, after: AfterOption = None, limit: LimitOption = None, as_json: JsonOption = False
) -> None:
    """List plans, in the order they were stored. Needs a token that is good for all jobs."""
    from planner_client.commands.shown import age, note, print_json, print_table  # noqa: PLC0415 - fast `--help`

    found = _all(client, after, limit)
    if as_json:
        print_json([plan.model_dump(mode="json") for plan in found])
        return
    if not found:
        note("there are no plans" + (f" after number {after}" if after is not None else ""))
        return
    now = time.time()
    print_table(
        ("digest (sha256)", "kB", "age"),
        (
            (plan.digest.removeprefix("sha256:"), f"{plan.num_bytes / 1000:.0f}", age(plan.created_at, now))
            for plan in found
        ),
        right=("kB",),
    )


@plans.command("show")
@asks_service("plans show")
def show_one_plan(
    client: "PlannerClient",
    digest: Annotated[str, typer.Argument(help="The plan's digest.", show_default=False)],
    *,
    as_json: JsonOption = False,
) -> None:
    """Show a plan. That of a job's iteration is shown by `hydraulis iterations show`, too."""
    from planner_client.commands.naming import digest_named  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.plan_view import show_plan  # noqa: PLC0415
    from planner_client.commands.shown import print_json  # noqa: PLC0415

    plan = client.plan_with_digest(digest_named(digest))
    if as_json:
        print_json(plan.model_dump(mode="json"))
    else:
        show_plan(plan)


@plans.command("export")
@asks_service("plans export")
def export_plans(  # noqa: PLR0913 - one parameter for each option
    client: "PlannerClient",
    digest: Annotated[
        list[str] | None, typer.Argument(help="Digests; all if none is given.", show_default=False)
    ] = None,
    *,
    after: AfterOption = None,
    limit: LimitOption = None,
    lengths: LengthsOption = False,
    output: OutputOption = "-",
    given_format: FormatOption = None,
    force: ForceOption = False,
) -> None:
    """Write whole plans (json), or a row of figures for each (csv)."""
    from planner_client.commands.figures import LENGTHS, PLAN_HEADINGS, plan_row  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.naming import digest_named  # noqa: PLC0415
    from planner_client.commands.paging import all_named, those_still_there  # noqa: PLC0415

    wanted: dict[str, PlanSummary | None] = {}
    if digest:
        wanted = dict.fromkeys(map(digest_named, digest))
    else:
        for plan in _all(client, after, limit):
            # Requests that led to the same plan share its digest, and it is fetched by that: the first of them stands.
            wanted.setdefault(plan.digest, plan)
    read = all_named if digest else those_still_there
    export(
        read("plans", list(wanted.items()), lambda one: (client.plan_with_digest(one[0]), one[1])),
        as_document=lambda found: found[0].model_dump(mode="json"),
        headings=(*PLAN_HEADINGS, *((LENGTHS,) if lengths else ())),
        as_rows=lambda found: [plan_row(*found)],
        output=output,
        given_format=given_format,
        force=force,
    )


@plans.command("delete")
@asks_service("plans delete", needs="admin")
def delete_plans(
    client: "PlannerClient",
    digest: Annotated[list[str], typer.Argument(help="Digests of the plans to delete.", show_default=False)],
    *,
    yes: YesOption = False,
) -> None:
    """Delete plans that no job's iteration has."""
    from planner_client.commands.naming import digest_named  # noqa: PLC0415 - keeps `hydraulis --help` fast

    digests = [client.plan_with_digest(digest_named(one)).digest for one in digest]
    delete_all("plan", digests, client.delete_plan, yes=yes)


def _all(client: "PlannerClient", after: int | None, limit: int | None) -> "list[PlanSummary]":
    from planner_client.commands.paging import read_list  # noqa: PLC0415 - keeps `hydraulis --help` fast

    return read_list(
        "plans",
        lambda start, count: client.plans(after=start, limit=count),
        lambda plan: plan.number,
        after=after,
        limit=limit,
    )
