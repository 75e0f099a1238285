"""`hydraulis profile`: measure this machine, for the planner to fit."""

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from worker_agent.commands.profile_model import DEFAULT_MODEL, read_model
from worker_agent.measuring_limits import MOST_RUNS

if TYPE_CHECKING:
    from planner_client.client import PlannerClient
    from planner_client.contract import Profile, ProfileMeasurement
    from worker_agent.profiler import ProfilingSettings

FAILED, BAD_INPUT, INTERRUPTED = 1, 2, 130

_READY_TIMEOUT_S = 10.0
_FEWEST_PROCESSES = 2
_REPEATS_AT_MOST = 3
_PLANNER = "Planner"


@dataclass(frozen=True)
class _Destination:
    """Where a measurement goes, checked before anything is measured."""

    output: Path | None
    journal: Path | None
    as_json: bool


def profile(  # noqa: PLR0913 - one parameter for each option
    *,
    name: Annotated[str, typer.Option(help="Name of the profile.")] = "this-machine",
    layouts: Annotated[
        str, typer.Option(help="Layouts to measure, tensor x pipeline parallel degrees, such as 1x1,2x1,1x2.")
    ] = "1x1",
    model: Annotated[
        str,
        typer.Option(help="Shape of the decoder, or a folder with a Hugging Face config.json.", metavar="SHAPE|DIR"),
    ] = DEFAULT_MODEL,
    max_tokens: Annotated[int, typer.Option(help="Largest micro-batch measured (tokens).")] = 8192,
    max_length: Annotated[int | None, typer.Option(help="Longest sequence (tokens); --max-tokens by default.")] = None,
    limit_by_memory: Annotated[
        bool,
        typer.Option(help="Let the planner derive each layout's limit from peak memory; it is --max-tokens otherwise."),
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(help="Ranks that measure at once, one thread or GPU each; 2, or as many as a layout needs."),
    ] = None,
    packings: Annotated[int, typer.Option(help="Different micro-batches to measure for each layout.")] = 28,
    repeats: Annotated[int, typer.Option(help="Times each of them is run at least.")] = 3,
    max_repeats: Annotated[
        int | None, typer.Option(help="Times it is run at most, until its times agree; 3 times --repeats by default.")
    ] = None,
    collectives: Annotated[bool, typer.Option(help="Time collectives among the ranks, too.")] = True,
    clock: Annotated[
        Literal["wall", "cpu"],
        typer.Option(help="What to measure by; cpu leaves other processes out, and waiting for other ranks."),
    ] = "wall",
    device: Annotated[
        Literal["auto", "cpu", "cuda"], typer.Option(help="What the ranks compute on; GPUs if there are any.")
    ] = "auto",
    seed: Annotated[int, typer.Option(help="Seed of what is measured.")] = 0,
    time_limit: Annotated[float, typer.Option(help="Longest time to measure (s).")] = 3600.0,
    output: Annotated[Path | None, typer.Option(help="File for the measurement; stdout by default.")] = None,
    journal: Annotated[
        Path | None,
        typer.Option(
            help="File in which to keep what is finished, to go on from; --output's with .journal by default."
        ),
    ] = None,
    planner_url: Annotated[
        str | None,
        typer.Option(
            "--planner",
            "--planner-url",
            help="Planner to send it to, such as http://host:8000.",
            metavar="URL",
            rich_help_panel=_PLANNER,
        ),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="HYDRAULIS_TOKEN", help="Token to show, of scope plan.", rich_help_panel=_PLANNER),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File that holds the token instead.", rich_help_panel=_PLANNER)
    ] = None,
    ca_file: Annotated[
        str | None,
        typer.Option(
            envvar="HYDRAULIS_CA_FILE",
            help="Certificates (PEM) to trust instead of the public ones.",
            rich_help_panel=_PLANNER,
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write the fitted profile, or without --planner the measurement, to stdout.")
    ] = False,
) -> None:
    """Measure what micro-batches cost on this machine, layout by layout, by the executor that trains.

    Writes raw samples as JSON; with --planner sends them to the planner, which fits its cost model and keeps it under
    the name given. Stopped, it goes on where it was when it is asked for the same again. Exits 1 if measuring or
    sending fails, 2 on bad input.
    """
    from planner_client.errors import HydraulisError  # noqa: PLC0415
    from worker_agent.local_ranks import RanksFailed  # noqa: PLC0415

    try:
        destination = _destination(output, journal, as_json=as_json)
        client = _client(planner_url, token, token_file, ca_file)
        settings = _settings(
            {
                "layouts": layouts,
                "model": model,
                "processes": processes,
                "device": device,
                "max_length": max_length,
                "max_repeats": max_repeats,
            },
            name=name,
            max_tokens=max_tokens,
            limit="memory" if limit_by_memory else "measured",
            num_packings=packings,
            num_repeats=repeats,
            with_collectives=collectives,
            clock=clock,
            seed=seed,
            timeout_s=time_limit,
        )
    except (ValueError, OSError) as refused:
        _end(BAD_INPUT, str(refused))
    try:
        _run(settings, destination, client)
    except HydraulisError as fault:
        _end(FAILED, f"planner {planner_url}: {fault}{_kept(destination)}")
    except KeyboardInterrupt:
        _end(INTERRUPTED, f"stopped{_kept(destination)}")
    except (RanksFailed, OSError) as fault:
        _end(FAILED, f"{fault}{_kept(destination)}")
    except ValueError as refused:
        _end(BAD_INPUT, str(refused))


def _destination(output: Path | None, journal: Path | None, *, as_json: bool) -> _Destination:
    if journal is None and output is not None:
        journal = output.with_name(output.name + ".journal")
    for option, path in (("--output", output), ("--journal", journal)):
        if path is not None:
            _refuse_unwritable(option, path)
    if output is not None and journal is not None and output.absolute() == journal.absolute():
        raise ValueError(f"--output and --journal are both {output}; name two files")
    return _Destination(output, journal, as_json)


def _refuse_unwritable(option: str, path: Path) -> None:
    """Refuse a path that cannot be written, leaving nothing there: minutes of measuring would be lost."""
    folder = path.parent
    if not folder.is_dir():
        raise ValueError(f"{option} {path} lies in {folder}, which is no directory; create it or name another file")
    if path.is_dir():
        raise ValueError(f"{option} {path} is a directory; name a file in it")
    try:
        with path.open("r+b") if path.exists() else tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as refused:
        raise ValueError(
            f"{option} {path} cannot be written ({refused.strerror or refused}); name another file"
        ) from refused


def _client(url: str | None, token: str | None, token_file: Path | None, ca_file: str | None) -> "PlannerClient | None":
    if url is None:
        if token_file is not None:
            raise ValueError("--token-file is given but no --planner to show the token to; give its URL")
        return None
    from planner_client.client import PlannerClient  # noqa: PLC0415

    if token_file is not None:
        token = token_file.read_text(encoding="utf-8").strip()
        if not token:
            raise ValueError(f"--token-file {token_file} is empty; write the token into it")
    return PlannerClient(url, token=token or None, ca_file=ca_file)


def _settings(given: dict[str, Any], **same: Any) -> "ProfilingSettings":
    from worker_agent.profiler import ProfilingSettings, parse_layouts  # noqa: PLC0415 - brings torch

    layouts = parse_layouts(given["layouts"])
    device = _device(given["device"])
    needed = max(_FEWEST_PROCESSES, *(layout.num_ranks for layout in layouts))
    num_ranks = needed if given["processes"] is None else given["processes"]
    _refuse_few_gpus(device, num_ranks)
    return ProfilingSettings(
        config=read_model(given["model"]),
        layouts=layouts,
        num_ranks=num_ranks,
        max_length=same["max_tokens"] if given["max_length"] is None else given["max_length"],
        num_memory_levels=4,
        max_repeats=_max_repeats(given["max_repeats"], same["num_repeats"], MOST_RUNS // max(1, same["num_packings"])),
        device=device,
        **same,
    )


def _max_repeats(asked: int | None, num_repeats: int, most: int) -> int:
    return max(num_repeats, min(_REPEATS_AT_MOST * num_repeats, most)) if asked is None else asked


def _device(asked: str) -> Literal["cpu", "cuda"]:
    import torch  # noqa: PLC0415 - takes seconds to import

    if asked == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return "cuda" if asked == "cuda" else "cpu"


def _refuse_few_gpus(device: str, num_ranks: int) -> None:
    import torch  # noqa: PLC0415 - takes seconds to import

    if device == "cuda" and torch.cuda.device_count() < num_ranks:
        raise ValueError(
            f"{num_ranks} ranks would measure but this machine has {torch.cuda.device_count()} GPUs; lower "
            "--processes, or give --device cpu"
        )


def _run(settings: "ProfilingSettings", destination: _Destination, client: "PlannerClient | None") -> None:
    from rich.console import Console  # noqa: PLC0415

    from worker_agent.commands.profile_report import say, show_measurement, show_profile, shown_progress  # noqa: PLC0415
    from worker_agent.profiler import Journal, measure  # noqa: PLC0415

    console = Console(stderr=True)
    with ExitStack() as stack:
        if client is not None:
            stack.enter_context(client)
            _check_planner(client, settings.name)
        kept = None
        if destination.journal is not None:
            kept = stack.enter_context(Journal(destination.journal, settings))
            if kept.records:
                say(console, f"going on after {len(kept.records)} rounds kept in {destination.journal}")
        with shown_progress(console) as show:
            measurement = measure(settings, show, kept)
        show_measurement(console, measurement)
        if destination.output is not None:
            destination.output.write_text(measurement.model_dump_json(indent=2) + "\n", encoding="utf-8")
            say(console, f"wrote {_num_samples(measurement)} samples to {destination.output}")
        fitted = None if client is None else client.register_profile(measurement)
        if fitted is not None:
            show_profile(console, fitted)
        _write(measurement, fitted, destination)
        if kept is not None:
            kept.close(discard=True)


def _check_planner(client: "PlannerClient", name: str) -> None:
    """Find out before minutes of measuring, not after them, that a planner is away or will not take the profile."""
    client.wait_ready(_READY_TIMEOUT_S)
    if any(known.is_builtin and known.name == name for known in client.profiles()):
        raise ValueError(f"--name {name} is that of a profile built in; give another")


def _num_samples(measurement: "ProfileMeasurement") -> int:
    return sum(len(layout.samples) for layout in measurement.layouts)


def _write(measurement: "ProfileMeasurement", fitted: "Profile | None", destination: _Destination) -> None:
    if fitted is not None:
        if destination.as_json:
            sys.stdout.write(fitted.model_dump_json(exclude_none=True) + "\n")
    elif destination.as_json or destination.output is None:
        sys.stdout.write(measurement.model_dump_json(indent=2) + "\n")
    sys.stdout.flush()


def _kept(destination: _Destination) -> str:
    """Say how to go on, where something was kept to go on from."""
    journal = destination.journal
    if journal is None or not journal.exists():
        return ""
    return f"; what was finished is kept in {journal}: ask for the same again to go on"


def _end(code: int, message: str) -> NoReturn:
    typer.echo(f"hydraulis profile: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)
