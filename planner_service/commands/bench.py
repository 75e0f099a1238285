"""`hydraulis bench`: measure planning on published profiles and real streams."""

import json
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from planner_service.commands.failures import BAD_INPUT, BROKEN, fail, failures_of, stopped_by_hand
from planner_service.commands.options import OUTPUT, SEARCH

if TYPE_CHECKING:
    from planner_service.simulation.verdicts import CaseResult

COMMAND = "bench planning"

bench = typer.Typer(help="Measure planning.", no_args_is_help=True)


@bench.callback()
def _measure() -> None:
    """Measure planning."""


@bench.command()
def planning(  # noqa: PLR0913 - the command's options
    *,
    suite: Annotated[
        Literal["quick", "full"], typer.Option(help="quick takes seconds, full up to 40 minutes on two cores.")
    ] = "full",
    only: Annotated[str | None, typer.Option(help="Measure one built-in profile only.", metavar="PROFILE")] = None,
    jobs: Annotated[int, typer.Option(min=1, max=64, help="Processes that measure at the same time.")] = 2,
    published_deadline_ms: Annotated[
        int,
        typer.Option(min=1, max=600_000, help="Deadline of each plan of the published method.", rich_help_panel=SEARCH),
    ] = 10_000,
    published_iterations: Annotated[
        int,
        typer.Option(min=0, help="Iterations of each case for the published method.", rich_help_panel=SEARCH),
    ] = 1,
    output: Annotated[
        Path | None,
        typer.Option("--json", help="Write everything measured to this file.", metavar="FILE", rich_help_panel=OUTPUT),
    ] = None,
) -> None:
    """Measure gaps, planning times and speed-ups on published profiles and built-in streams.

    Every plan is checked against batch and profile. Exits 1 if an invariant is broken (free strategies lose to a
    homogeneous strategy or a baseline, a cap is broken, a plan is not what it says) or a bar is not met; --json says
    which. Exits 2 on bad input.
    """
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from planner_service.commands.inputs import check_writable  # noqa: PLC0415
    from planner_service.commands.progress import steps_on_stderr  # noqa: PLC0415
    from planner_service.simulation.bench import Limits, run_cases  # noqa: PLC0415 - loads the solver
    from planner_service.simulation.suite import cases_of  # noqa: PLC0415

    with failures_of(COMMAND):
        check_writable("--json", output)
        cases = cases_of(suite, only)
    limits = Limits(published_deadline_ms=published_deadline_ms, published_iterations=published_iterations)
    started = time.perf_counter()
    results: list[CaseResult] = []
    try:
        with stopped_by_hand(COMMAND), steps_on_stderr(len(cases)) as on_step:
            on_step("starting")
            for result in run_cases(cases, limits, min(jobs, len(cases))):
                results.append(result)
                on_step(f"{result.case}: {result.seconds:.0f} s")
    except BrokenProcessPool:
        fail(COMMAND, "a measuring process died, perhaps for want of memory; use fewer --jobs", BROKEN)
    run = {
        "suite": suite,
        "seconds": time.perf_counter() - started,
        "num_jobs": jobs,
        "machine": _machine(),
    }
    _show(results, published_deadline_ms, run, output)


def _machine() -> dict[str, Any]:
    from importlib.metadata import version  # noqa: PLC0415

    return {"num_cpus": os.cpu_count(), "python": platform.python_version(), "ortools": version("ortools")}


def _show(results: "list[CaseResult]", published_deadline_ms: int, run: dict[str, Any], output: Path | None) -> None:
    from planner_service.commands.bench_table import show_bench  # noqa: PLC0415
    from planner_service.simulation.bench_document import bench_document  # noqa: PLC0415

    document = bench_document(results, published_deadline_ms, run)
    if output is not None:
        try:
            output.write_text(json.dumps(document, allow_nan=False) + "\n", encoding="utf-8")
        except OSError as error:
            fail(COMMAND, f"{output} cannot be written: {error.strerror}", BAD_INPUT)
    show_bench(results, run["seconds"])
    wrong = _what_is_wrong(document)
    if wrong:
        fail(COMMAND, wrong, BROKEN)


def _what_is_wrong(document: dict[str, Any]) -> str:
    """Say which invariants are broken and which bars are not met; nothing if all is well."""
    broken = document["broken_invariants"]
    missed = [bar for bar in document["bars"] if bar["is_met"] is False]
    said = [f"{len(broken)} invariants are broken, the first: {broken[0]}"] if broken else []
    if missed:
        named = ", ".join(f"{bar['name']} ({bar['measured']}, asked for {bar['limit']})" for bar in missed)
        said.append(f"{len(missed)} bars are not met: {named}")
    return "; ".join(said)
