"""`hydraulis plan`: plan one batch in this process, without a server."""

import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn

import typer

if TYPE_CHECKING:
    from pydantic import ValidationError

    from planner_client.contract import Plan, PlanRequest, Profile

BAD_INPUT = 2
NO_PLAN_IN_TIME = 3

GRACE_SHARE = 0.1
"""Share of the deadline that a solver may overrun it by before the incumbent is taken from it."""


def plan(  # noqa: PLR0913, PLR0917 - the command's options
    profile: Annotated[str, typer.Option(help="Built-in profile, or a file with one (JSON).", metavar="NAME|FILE")],
    gpus: Annotated[int, typer.Option(help="GPUs to use.")],
    lengths: Annotated[
        str,
        typer.Option(
            help="Sequence lengths: .csv (length,count), .txt, .txt.gz, .npy, .json, or - for stdin.", metavar="FILE"
        ),
    ],
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="Candidate such as '(16,1)x1,(8,1)x6' of (tp,pp)xCOUNT groups; may be repeated. "
            "With none, candidates are generated.",
            metavar="GROUPS",
        ),
    ] = None,
    optimizer_layout: Annotated[
        str | None, typer.Option(help="Fixed sharding of the optimizer states.", metavar="DP,TP,PP")
    ] = None,
    tokens: Annotated[int | None, typer.Option(min=1, help="Take a batch of about this many tokens.")] = None,
    max_length: Annotated[int | None, typer.Option(min=1, help="Longest sequence to train on, in tokens.")] = None,
    over_long: Annotated[Literal["reject", "drop"], typer.Option(help="What becomes of longer sequences.")] = "reject",
    alignment: Annotated[int, typer.Option(help="Round each length up to a multiple of this.")] = 1,
    deadline_ms: Annotated[int, typer.Option(help="Return the best plan known by then.")] = 1000,
    target_gap: Annotated[float, typer.Option(help="Stop at this gap to the proven bound.")] = 0.002,
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    method: Annotated[
        Literal["hydraulis", "plain"], typer.Option(help="plain: what a plain data loader does, for comparison.")
    ] = "hydraulis",
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON and nothing else.")] = False,  # noqa: FBT002 - a flag
) -> None:
    """Plan one batch: choose the strategy, dispatch and pack its sequences, and prove how good that is."""
    from pydantic import ValidationError  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from planner_client.contract import PlanRequest, parse_strategy  # noqa: PLC0415
    from planner_service.commands.lengths_file import LengthsFileError, read_lengths, take_batch  # noqa: PLC0415
    from planner_service.core.faults import PlanningFault  # noqa: PLC0415

    try:
        chosen = _profile(profile)
        batch = take_batch(read_lengths(lengths), tokens, max_length, seed)
        request = PlanRequest.model_validate(
            {
                "profile": chosen,
                "num_gpus": gpus,
                "optimizer_layout": _optimizer_layout(optimizer_layout),
                "strategies": [parse_strategy(text) for text in strategy or []],
                "lengths": batch.stream,
                "histograms": None if batch.histogram is None else {"local": batch.histogram},
                "options": {
                    "alignment": alignment,
                    "max_length": max_length,
                    "over_long": over_long,
                    "deadline_ms": deadline_ms,
                    "target_gap": target_gap,
                    "seed": seed,
                    "method": method,
                },
            }
        )
        found = _plan_in_time(request, chosen)
    except PlanningFault as fault:
        _refuse(f"{fault.detail}; {fault.remedy}")
    except ValidationError as error:
        _refuse(_first_error(error))
    except (LengthsFileError, ValueError) as error:
        _refuse(str(error))
    if found is None:
        _fail(f"no plan was found within {deadline_ms} ms; raise --deadline-ms", NO_PLAN_IN_TIME)
    if as_json:
        sys.stdout.write(found.model_dump_json() + "\n")
    else:
        from planner_service.commands.plan_table import show_plan  # noqa: PLC0415

        show_plan(found)


def _refuse(sentence: str) -> NoReturn:
    _fail(sentence, BAD_INPUT)


def _fail(sentence: str, code: int) -> NoReturn:
    sys.stderr.write(f"hydraulis plan: {' '.join(sentence.split())}\n")
    raise typer.Exit(code)


def _first_error(error: "ValidationError") -> str:
    first = error.errors(include_url=False, include_context=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    value = repr(first["input"])
    shown = f" (got {value})" if len(value) <= 60 else ""
    more = f"; {error.error_count() - 1} more" if error.error_count() > 1 else ""
    return f"{where or 'request'}: {first['msg'].removeprefix('Value error, ')}{shown}{more}"


def _profile(name_or_file: str) -> "Profile":
    from pathlib import Path  # noqa: PLC0415 - keeps `hydraulis --help` fast

    from pydantic import ValidationError  # noqa: PLC0415

    from planner_client.contract import Profile  # noqa: PLC0415
    from planner_service.profiles import builtin_profiles  # noqa: PLC0415

    known = builtin_profiles()
    if name_or_file in known:
        return known[name_or_file]
    if not Path(name_or_file).is_file() and not name_or_file.endswith(".json"):
        raise ValueError(
            f"there is no profile {name_or_file!r}; use {', '.join(known)}, or a JSON file that holds a profile"
        )
    try:
        content = Path(name_or_file).read_bytes()
    except OSError as error:
        raise ValueError(f"profile {name_or_file} cannot be read: {error.strerror}") from error
    try:
        return Profile.model_validate_json(content)
    except ValidationError as error:
        hint = (
            "; it holds raw samples, which a planner service fits (POST /v1/profiles)"
            if b'"samples"' in content
            else ""
        )
        raise ValueError(f"profile {name_or_file} cannot be used: {_first_error(error)}{hint}") from error


def _optimizer_layout(text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if len(parts) != 3 or not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise ValueError(f"optimizer layout {text!r} cannot be read; write DP,TP,PP, for example 4,16,1")
    dp, tp, pp = (int(part) for part in parts)
    return {"dp": dp, "tp": tp, "pp": pp}


def _plan_in_time(request: "PlanRequest", profile: "Profile") -> "Plan | None":
    """Solve in a thread and take the best incumbent if it overruns the deadline; None if there is none."""
    from planner_service.translate import plan_request  # noqa: PLC0415 - loads the solver

    limit_ms = request.options.deadline_ms
    started = time.perf_counter()
    incumbents: list[Plan] = []
    failures: list[BaseException] = []
    final: list[Plan] = []

    def remaining_ms() -> float:
        return limit_ms - (time.perf_counter() - started) * 1000

    def search() -> None:
        try:
            final.append(plan_request(request, profile, remaining_ms=remaining_ms, on_incumbent=incumbents.append))
        except BaseException as failure:  # noqa: BLE001 - handed to the waiting thread, which raises it
            failures.append(failure)

    worker = threading.Thread(target=search, daemon=True)
    worker.start()
    worker.join(limit_ms * (1 + GRACE_SHARE) / 1000)
    if failures:
        raise failures[0]
    if final:
        return final[0]
    return incumbents[-1].model_copy(update={"cut_by_wall_clock": True}) if incumbents else None
