"""`hydraulis bench`: measure planning on published profiles and real streams."""

import json
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from planner_service.commands.options import OUTPUT, SEARCH

if TYPE_CHECKING:
    from planner_service.simulation.verdicts import CaseResult

BROKEN = 1
BAD_INPUT = 2
INTERRUPTED = 130

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

    Every plan is checked against batch and profile. Exits 1 if an invariant is broken: free strategies lose to a
    homogeneous strategy or a baseline, a cap is broken, or a plan is not what it says.
    """
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from planner_service.commands.inputs import check_writable  # noqa: PLC0415
    from planner_service.commands.progress import steps_on_stderr  # noqa: PLC0415
    from planner_service.simulation.bench import Limits, run_cases  # noqa: PLC0415 - loads the solver
    from planner_service.simulation.suite import cases_of  # noqa: PLC0415

    try:
        check_writable("--json", output)
        cases = cases_of(suite, only)
    except ValueError as error:
        _fail(str(error), BAD_INPUT)
    limits = Limits(published_deadline_ms=published_deadline_ms, published_iterations=published_iterations)
    started = time.perf_counter()
    results: list[CaseResult] = []
    try:
        with steps_on_stderr(len(cases)) as on_step:
            on_step("starting")
            for result in run_cases(cases, limits, min(jobs, len(cases))):
                results.append(result)
                on_step(f"{result.case}: {result.seconds:.0f} s")
    except BrokenProcessPool:
        _fail("a measuring process died, perhaps for want of memory; use fewer --jobs", BROKEN)
    except KeyboardInterrupt:
        _fail("stopped", INTERRUPTED)
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
            _fail(f"{output} cannot be written: {error.strerror}", BAD_INPUT)
    show_bench(results, run["seconds"])
    broken = document["broken_invariants"]
    if broken:
        _fail(f"{len(broken)} invariants are broken, the first: {broken[0]}", BROKEN)


def _fail(sentence: str, code: int) -> NoReturn:
    sys.stderr.write(f"hydraulis bench planning: {' '.join(sentence.split())}\n")
    raise typer.Exit(code)
