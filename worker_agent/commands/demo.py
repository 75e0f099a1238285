"""`hydraulis demo`: train a small model here, plainly packed, planned, and by changing strategies; report it all."""

import json
import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from worker_agent.demo.settings import DemoSettings


def demo(  # noqa: PLR0913 - one parameter for each option
    *,
    iterations: Annotated[int, typer.Option(help="Iterations of each mode, plain and planned.")] = 12,
    sequences: Annotated[int, typer.Option(help="Sequences of each global batch.")] = 12,
    max_length: Annotated[int, typer.Option(help="Longest sequence, and limit of a micro-batch (tokens).")] = 8192,
    profile_packings: Annotated[int, typer.Option(help="Different micro-batches to profile.")] = 28,
    profile_repeats: Annotated[int, typer.Option(help="Times each of them is measured on each rank.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed of weights, batches and plans.")] = 0,
    report: Annotated[Path, typer.Option(help="Where the HTML report goes.")] = Path("demo-report.html"),
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON document to stdout, progress to stderr.")
    ] = False,
) -> None:
    """Train a small decoder on this machine, plainly packed and planned, and report the difference.

    Starts a planner, profiles this machine, and trains on Python's own source files with 2 processes; then with 4
    processes and another parallel strategy in every iteration, next to one process alone. Writes a report.
    Exits 1 if losses disagree or a part fails, 2 on bad input.
    """
    try:
        settings = DemoSettings(
            report=report,
            iterations=iterations,
            num_sequences=sequences,
            max_length=max_length,
            seed=seed,
            profile_packings=profile_packings,
            profile_repeats=profile_repeats,
        )
    except ValueError as refused:
        _end(2, str(refused))
    _run(settings, as_json=as_json)


def _run(settings: DemoSettings, *, as_json: bool) -> None:
    from worker_agent.demo.service_process import ServiceUnavailable, missing_service_packages  # noqa: PLC0415

    if missing := missing_service_packages():
        _end(
            2,
            f"the planner service is not installed ({', '.join(missing)} missing): "
            "pip install 'hydraulis-planner[service,agent]'",
        )
    from rich.console import Console  # noqa: PLC0415

    from planner_client.errors import HydraulisError  # noqa: PLC0415
    from worker_agent.demo.progress import DemoDisplay  # noqa: PLC0415
    from worker_agent.demo.run import corpus_for, run_demo  # noqa: PLC0415 - brings torch, which takes seconds
    from worker_agent.local_ranks import RanksFailed  # noqa: PLC0415

    display = DemoDisplay(Console(stderr=as_json))
    try:
        corpus = corpus_for(settings)
    except (OSError, ValueError) as refused:
        _end(2, str(refused))
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGHUP, _leave)
    stopping: list[int] = []

    def stop(signal_number: int, _frame: object) -> None:
        # Ctrl-C reaches the planner too, so what fails after it fails because of it.
        stopping.append(signal_number)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    try:
        outcome = run_demo(settings, corpus, display)
    except (ServiceUnavailable, RanksFailed, HydraulisError, OSError, ValueError) as fault:
        _end(130 if stopping else 1, "stopped" if stopping else str(fault))
    except KeyboardInterrupt:
        _end(130, "stopped")
    display.show_outcome(outcome, settings.report.resolve())
    if as_json:
        sys.stdout.write(json.dumps(outcome.as_document()) + "\n")
    if not outcome.losses_agree:
        _end(
            1,
            f"the two modes' losses differ by up to {outcome.loss_difference:.1e}, more than fp32 explains: "
            "the loss must not depend on the plan",
        )
    if not outcome.changing.losses_agree:
        _end(
            1,
            f"the loss of changing strategies differs by up to {outcome.changing.loss_difference:.1e} from that of one "
            "process alone, more than fp32 explains: the loss must not depend on the strategy",
        )


def _leave(signal_number: int, _frame: object) -> None:
    """Turn SIGTERM into an exit that still stops the planner and the ranks."""
    sys.exit(128 + signal_number)


def _end(code: int, message: str) -> NoReturn:
    typer.echo(f"hydraulis demo: {message}", err=True)
    raise typer.Exit(code)
