"""`hydraulis profile`: measure this machine, for the planner to fit."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from planner_client.client import PlannerClient
    from worker_agent.profiler import ProfilingSettings

_READY_TIMEOUT_S = 10.0


def profile(  # noqa: PLR0913 - one parameter for each option
    *,
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "this-machine",
    max_tokens: Annotated[int, typer.Option(help="Limit of a micro-batch (tokens).")] = 8192,
    max_length: Annotated[int | None, typer.Option(help="Longest sequence (tokens); --max-tokens by default.")] = None,
    processes: Annotated[int, typer.Option(help="Processes that measure at once, one thread each.")] = 2,
    packings: Annotated[int, typer.Option(help="Different micro-batches to measure.")] = 28,
    repeats: Annotated[int, typer.Option(help="Times each of them is measured on each process.")] = 3,
    hidden_size: Annotated[int, typer.Option(help="Width of the decoder.")] = 64,
    layers: Annotated[int, typer.Option(help="Layers of the decoder.")] = 2,
    heads: Annotated[int, typer.Option(help="Attention heads of the decoder.")] = 2,
    vocab_size: Annotated[int, typer.Option(help="Token ids of the decoder.")] = 256,
    seed: Annotated[int, typer.Option(help="Seed of what is measured.")] = 0,
    output: Annotated[Path | None, typer.Option(help="File for the measurement; stdout by default.")] = None,
    planner_url: Annotated[str | None, typer.Option(help="Planner to send it to, such as http://host:8000.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --planner-url: write the fitted profile to stdout as JSON.")
    ] = False,
) -> None:
    """Measure forward and backward times of micro-batches on this machine's CPU cores.

    Writes the raw samples as JSON; with --planner-url sends them to the planner, which fits its cost model and keeps
    it under the name given. Exits 1 if measuring or sending fails, 2 on bad input.
    """
    if output is not None and not output.parent.is_dir():
        _end(2, f"--output {output} lies in {output.parent}, which is no directory; create it or name another file")
    from planner_client.client import PlannerClient  # noqa: PLC0415
    from planner_client.errors import HydraulisError  # noqa: PLC0415
    from worker_agent.executor.model import DecoderConfig  # noqa: PLC0415 - brings torch, which takes seconds
    from worker_agent.local_ranks import RanksFailed  # noqa: PLC0415
    from worker_agent.profiler import ProfilingSettings  # noqa: PLC0415

    try:
        settings = ProfilingSettings(
            name=name,
            config=DecoderConfig(vocab_size, hidden_size, layers, heads),
            max_tokens=max_tokens,
            max_length=max_tokens if max_length is None else max_length,
            num_ranks=processes,
            num_packings=packings,
            num_repeats=repeats,
            seed=seed,
        )
        client = None if planner_url is None else PlannerClient(planner_url)
    except ValueError as refused:
        _end(2, str(refused))
    try:
        if client is not None:
            # A planner that is away is better found out before minutes of measuring than after them.
            client.wait_ready(_READY_TIMEOUT_S)
        _measure(settings, output, client, as_json=as_json)
    except HydraulisError as fault:
        _end(1, f"planner {planner_url}: {fault}")
    except (RanksFailed, OSError, ValueError) as fault:
        _end(1, str(fault))


def _measure(
    settings: "ProfilingSettings", output: Path | None, client: "PlannerClient | None", *, as_json: bool
) -> None:
    from rich.console import Console  # noqa: PLC0415

    from worker_agent.profiler import measure  # noqa: PLC0415
    from worker_agent.step_bar import step_bar  # noqa: PLC0415

    console = Console(stderr=True)
    with step_bar(console, "micro-batches measured", settings.num_packings * settings.num_repeats) as bar:
        measurement = measure(settings, lambda progress: bar.move_to(progress.done))
    text = measurement.model_dump_json(indent=2) + "\n"
    if output is not None:
        output.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {len(measurement.layouts[0].samples)} samples to {output}", err=True)
    if client is None:
        if output is None:
            sys.stdout.write(text)
        return
    with client:
        fitted = client.register_profile(measurement)
    cost = fitted.layouts[0]
    if cost.fit is not None:
        typer.echo(
            f"the planner keeps profile {fitted.name!r}: R^2 {cost.fit.r2:.4f}, median error "
            f"{cost.fit.median_abs_pct_error:.1f} % over {cost.fit.num_samples} samples",
            err=True,
        )
    if as_json:
        sys.stdout.write(fitted.model_dump_json() + "\n")


def _end(code: int, message: str) -> NoReturn:
    typer.echo(f"hydraulis profile: {message}", err=True)
    raise typer.Exit(code)
