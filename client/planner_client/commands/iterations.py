"""`hydraulis iterations`: how far a job's iterations are, what was predicted and what was measured."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner_client.commands.export import ForceOption, FormatOption, OutputOption, export
from planner_client.commands.options import JobArgument, JsonOption, LengthsOption, LimitOption
from planner_client.commands.service import Ending, asks_service

if TYPE_CHECKING:
    from planner_client.client import PlannerClient
    from planner_client.contract import IterationStatus, IterationSummary, Plan

iterations = typer.Typer(
    name="iterations",
    help="List, show and export the iterations of a job. They are deleted with their job: their plans must not change.",
    no_args_is_help=True,
)

COLOURS = {"planned": "green", "failed": "red"}
"""Of the states that do not change any more."""

AfterOption = Annotated[
    int | None,
    typer.Option(min=0, help="Only those after this number (before it with --newest-first).", show_default=False),
]
NewestFirstOption = Annotated[bool, typer.Option("--newest-first", help="From the newest on, downwards.")]


@iterations.command("list")
@asks_service("iterations list")
def list_iterations(  # noqa: PLR0913 - one parameter for each option
    client: "PlannerClient",
    job: JobArgument,
    *,
    after: AfterOption = None,
    limit: LimitOption = None,
    newest_first: NewestFirstOption = False,
    as_json: JsonOption = False,
) -> None:
    """List a job's iterations with predicted and measured times."""
    from planner_client.commands.shown import (  # noqa: PLC0415 - keeps `hydraulis --help` fast
        coloured,
        milliseconds,
        note,
        percent,
        print_json,
        print_table,
    )

    found = _all(client, job, after=after, limit=limit, newest_first=newest_first)
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    if not found:
        note(f"job {job} has no iterations" + (f" after {after}" if after is not None else " yet"))
        return
    figures = ("predicted ms", "measured ms", "gap", "planning ms")
    print_table(
        ("#", "state", "strategy", *figures),
        (
            (
                str(one.iteration),
                coloured(one.state, COLOURS.get(one.state, "")),
                one.strategy or one.code or f"{one.num_reported} reported",
                milliseconds(one.makespan_ms),
                milliseconds(one.measured_ms),
                percent(one.gap),
                milliseconds(one.planning_ms),
            )
            for one in found
        ),
        right=("#", *figures),
    )


@iterations.command("show")
@asks_service("iterations show")
def show_iteration(
    client: "PlannerClient",
    job: JobArgument,
    iteration: Annotated[int, typer.Argument(min=0, max=2**53, help="Its number.", show_default=False)],
    *,
    only_plan: Annotated[bool, typer.Option("--plan", help="Print the plan alone.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show an iteration: who is missing or why there is no plan, else the plan with measured times."""
    from planner_client.commands.naming import job_named  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.plan_view import show_plan, slowest_by_replica  # noqa: PLC0415
    from planner_client.commands.shown import print_json, print_space  # noqa: PLC0415

    status = client.iteration(job_named(job), iteration)
    if only_plan:
        _print_plan_alone(_plan_of(client, job, status), job, status, as_json=as_json)
        return
    timings = client.timings(job, iteration)
    if as_json:
        print_json({**status.model_dump(mode="json"), "timings": [one.model_dump(mode="json") for one in timings]})
        return
    _show_status(status)
    plan = _plan_of(client, job, status)
    if plan is not None:
        print_space()
        show_plan(plan, slowest_by_replica(timings, plan.digest))


@iterations.command("export")
@asks_service("iterations export")
def export_iterations(  # noqa: PLR0913 - one parameter for each option
    client: "PlannerClient",
    job: JobArgument,
    *,
    after: AfterOption = None,
    limit: LimitOption = None,
    newest_first: NewestFirstOption = False,
    no_plans: Annotated[
        bool, typer.Option("--no-plans", help="Leave out what only the plans tell; much faster.")
    ] = False,
    lengths: LengthsOption = False,
    output: OutputOption = "-",
    given_format: FormatOption = None,
    force: ForceOption = False,
) -> None:
    """Write one row (csv) or object (json) for each iteration: predicted, measured, gap, planning time, the batch."""
    from planner_client.commands.figures import (  # noqa: PLC0415 - keeps `hydraulis --help` fast
        ASSIGNMENT_HEADINGS,
        ITERATION_HEADINGS,
        LENGTHS,
        iteration_row,
    )
    from planner_client.commands.paging import Deleted, those_still_there  # noqa: PLC0415

    if no_plans and lengths:
        raise Ending("--lengths are in the plans, which --no-plans leaves out; give one of them")
    found = _all(client, job, after=after, limit=limit, newest_first=newest_first)
    headings = ITERATION_HEADINGS
    if not no_plans:
        headings = (*ITERATION_HEADINGS, *ASSIGNMENT_HEADINGS, *((LENGTHS,) if lengths else ()))

    def row(one: "IterationSummary") -> dict[str, Any]:
        plan = None if no_plans else _plan_of(client, job, one)
        if not no_plans and one.digest is not None and (plan is None or plan.digest != one.digest):
            raise Deleted  # or another job has the name now
        figures = iteration_row(job, one, plan)
        return {heading: figures.get(heading) for heading in headings}

    export(
        those_still_there("iterations", found, row),
        as_document=lambda figures: figures,
        headings=headings,
        as_rows=lambda figures: [figures],
        output=output,
        given_format=given_format,
        force=force,
    )


def _all(
    client: "PlannerClient", job: str, *, after: int | None, limit: int | None, newest_first: bool
) -> "list[IterationSummary]":
    from planner_client.commands.naming import job_named  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.paging import read_list  # noqa: PLC0415

    name = job_named(job)
    return read_list(
        "iterations",
        lambda start, count: client.iterations(name, after=start, limit=count, newest_first=newest_first),
        lambda one: one.iteration,
        after=after,
        limit=limit,
    )


def _plan_of(client: "PlannerClient", job: str, one: "IterationSummary") -> "Plan | None":
    """Fetch an iteration's plan; None if it has none, or none any more."""
    from planner_client.contract import IterationStatus  # noqa: PLC0415 - keeps `hydraulis --help` fast

    if one.state != "planned":
        return None
    found = client.iteration_plan(job, one.iteration)
    return None if isinstance(found, IterationStatus) else found


def _print_plan_alone(plan: "Plan | None", job: str, status: "IterationStatus", *, as_json: bool) -> None:
    from planner_client.commands.plan_view import show_plan  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_client.commands.shown import print_json  # noqa: PLC0415

    if plan is None:
        raise Ending(f"iteration {status.iteration} of job {job} has no plan: it is {status.state}")
    if as_json:
        print_json(plan.model_dump(mode="json"))
    else:
        show_plan(plan)


def _show_status(status: "IterationStatus") -> None:
    from planner_client.commands.shown import coloured, instant, print_facts  # noqa: PLC0415 - fast `--help`
    from planner_client.contract.wording import first_few  # noqa: PLC0415

    is_begun = status.num_reported > 0
    state = status.state if is_begun or status.state != "collecting" else "nothing reported yet"
    hidden = status.num_missing - len(status.missing)
    missing = first_few(status.missing) + (f" ({hidden} of them not told)" if hidden else "")
    print_facts(
        (
            ("job", status.job),
            ("iteration", str(status.iteration)),
            ("state", coloured(state, COLOURS.get(status.state, ""))),
            ("reported", f"{status.num_reported:,} source(s)"),
            ("missing", f"{status.num_missing:,}: {missing}" if status.num_missing else None),
            ("due", f"{instant(status.due_at)} UTC" if is_begun and status.finished_at is None else None),
            ("finished", None if status.finished_at is None else f"{instant(status.finished_at)} UTC"),
            ("no plan", None if status.problem is None else f"{status.problem.detail}; {status.problem.remedy}"),
        )
    )
