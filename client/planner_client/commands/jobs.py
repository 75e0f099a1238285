"""`hydraulis jobs`: the training runs that a service plans for."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from planner_client.commands.service import asks_service

if TYPE_CHECKING:
    from planner_client.client import PlannerClient
    from planner_client.contract import Job, JobSummary

from planner_client.commands.deletion import YesOption, delete_all
from planner_client.commands.export import ForceOption, FormatOption, OutputOption, export
from planner_client.commands.options import JobArgument, JsonOption, LimitOption

_IF_MISSING = {
    "leave-out": "who is missing then is left out",
    "refuse": "if one is missing then, there is no plan",
}

_LEARNING = {
    "off": "off: measured times are kept, and nothing is learned",
    "observe": "observe: plans are made as registered",
    "on": "on: plans are made with what was learned",
}

jobs = typer.Typer(name="jobs", help="List, show, export and delete a service's jobs.", no_args_is_help=True)


@jobs.command("list")
@asks_service("jobs list")
def list_jobs(client: "PlannerClient", *, limit: LimitOption = None, as_json: JsonOption = False) -> None:
    """List the jobs that the token is good for, by name."""
    from planner_client.commands.shown import age, coloured, note, print_json, print_table  # noqa: PLC0415 - fast `--help`

    found = _all(client, limit)
    if as_json:
        print_json([job.model_dump(mode="json") for job in found])
        return
    if not found:
        note("there are no jobs here, or none that the token is good for; a trainer registers its own")
        return
    now = time.time()
    print_table(
        ("job", "profile", "GPUs", "planned", "failed", "age"),
        (
            (
                job.name,
                job.profiles,
                f"{job.num_gpus:,}",
                f"{job.num_planned:,}/{job.num_iterations:,}",
                coloured(f"{job.num_failed:,}", "red" if job.num_failed else ""),
                age(job.created_at, now),
            )
            for job in found
        ),
        right=("GPUs", "planned", "failed"),
    )


@jobs.command("show")
@asks_service("jobs show")
def show_job(client: "PlannerClient", job: JobArgument, *, as_json: JsonOption = False) -> None:
    """Show how a job was registered."""
    from planner_client.commands.naming import job_named  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.shown import instant, print_facts, print_json  # noqa: PLC0415
    from planner_client.contract.wording import first_few  # noqa: PLC0415

    found = client.job(job_named(job))
    if as_json:
        print_json(found.model_dump(mode="json"))
        return
    spec = found.spec
    newest = client.iterations(found.name, newest_first=True, limit=1)
    options = spec.options.model_dump(mode="json", exclude_defaults=True)
    print_facts(
        (
            ("job", found.name),
            ("profile", found.profiles),
            ("GPUs", f"{found.num_gpus:,}"),
            ("strategies", _strategies(found)),
            ("sources", f"{found.num_sources:,}: {first_few(spec.sources)}"),
            ("source wait", f"{spec.source_wait_ms:,} ms; {_IF_MISSING[spec.missing_sources]}"),
            ("plan wait", None if spec.plan_wait_ms is None else f"{spec.plan_wait_ms:,} ms"),
            ("learning", _LEARNING[spec.learning]),
            ("options", ", ".join(f"{name}={value}" for name, value in options.items()) or None),
            ("registered", f"{instant(found.created_at)} UTC"),
            ("newest", f"iteration {newest[0].iteration:,}, {newest[0].state}" if newest else "no iteration yet"),
        )
    )


@jobs.command("learned")
@asks_service("jobs learned")
def show_learned(
    client: "PlannerClient",
    job: JobArgument,
    *,
    version: Annotated[
        int | None, typer.Option(min=1, help="A version; what is believed now if not given.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show what a job learned from measured times: costs before and after, slow ranks, drift, versions."""
    from planner_client.commands.learned_view import show_learning, show_version  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.naming import job_named  # noqa: PLC0415
    from planner_client.commands.shown import print_json  # noqa: PLC0415

    name = job_named(job)
    if version is not None:
        found = client.learned_version(name, version)
        if as_json:
            print_json(found.model_dump(mode="json"))
        else:
            show_version(found)
        return
    learning, versions = client.learning(name), client.learned_versions(name, limit=None if as_json else 10)
    if as_json:
        told = [one.model_dump(mode="json") for one in versions]
        print_json({**learning.model_dump(mode="json"), "versions": told})
        return
    show_learning(learning, versions, _LEARNING[learning.mode])


@jobs.command("reset")
@asks_service("jobs reset", needs="plan")
def reset_job(client: "PlannerClient", job: JobArgument) -> None:
    """Forget what a job learned: what was registered holds again, as a new version, and learning begins anew."""
    from planner_client.commands.naming import job_named  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.shown import note  # noqa: PLC0415

    version = client.reset_learning(job_named(job))
    note(f"what job {version.job} was registered with holds again, as version {version.version}")


@jobs.command("export")
@asks_service("jobs export")
def export_jobs(
    client: "PlannerClient",
    job: Annotated[list[str] | None, typer.Argument(help="Jobs; all if none is named.", show_default=False)] = None,
    *,
    output: OutputOption = "-",
    given_format: FormatOption = None,
    force: ForceOption = False,
) -> None:
    """Write jobs as they were registered (json), or a row for each (csv)."""
    from planner_client.commands.figures import JOB_HEADINGS, job_row  # noqa: PLC0415 - fast `--help`
    from planner_client.commands.naming import job_named  # noqa: PLC0415
    from planner_client.commands.paging import all_named, those_still_there  # noqa: PLC0415

    export(
        all_named("jobs", list(map(job_named, job)), client.job)
        if job
        else those_still_there("jobs", [found.name for found in _all(client, None)], client.job),
        as_document=lambda found: found.model_dump(mode="json"),
        headings=JOB_HEADINGS,
        as_rows=lambda found: [job_row(found)],
        output=output,
        given_format=given_format,
        force=force,
    )


@jobs.command("delete")
@asks_service("jobs delete", needs="admin")
def delete_jobs(
    client: "PlannerClient",
    job: Annotated[list[str], typer.Argument(help="Jobs to delete.", show_default=False)],
    *,
    yes: YesOption = False,
) -> None:
    """Delete jobs with their iterations and measured times; their plans stay until they are old."""
    from planner_client.commands.naming import job_named  # noqa: PLC0415 - fast `--help`

    names = [client.job(job_named(name)).name for name in job]  # so that nobody is asked about what is not there
    delete_all("job", names, client.delete_job, yes=yes, also=" with all iterations and measured times")


def _all(client: "PlannerClient", limit: int | None) -> "list[JobSummary]":
    from planner_client.commands.paging import read_list  # noqa: PLC0415 - fast `--help`

    return read_list(
        "jobs", lambda after, count: client.jobs(after=after or "", limit=count), lambda job: job.name, limit=limit
    )


def _strategies(job: "Job") -> str:
    from planner_client.contract import format_strategy  # noqa: PLC0415 - fast `--help`

    return "; ".join(map(format_strategy, job.spec.strategies)) or "all are searched"
