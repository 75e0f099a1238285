"""`hydraulis simulate`: replay a stream of batches by several planners and compare what they cost."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from planner_service.commands.failures import BAD_INPUT, NO_PLAN_IN_TIME, fail, failures_of, in_options
from planner_service.commands.options import (
    BATCH,
    CONSTRAINTS,
    OUTPUT,
    SEARCH,
    AlignmentOption,
    AllowLayoutOption,
    DeadlineOption,
    GpusOption,
    LengthsOption,
    MaxLengthOption,
    MaxTokensOption,
    OptimizerLayoutOption,
    OverLongOption,
    ProfileOption,
    SeedOption,
    StrategiesOption,
    StrategyOption,
    TargetGapOption,
    TpInsideNodeOption,
    VersionOption,
)

if TYPE_CHECKING:
    from planner_client.contract import Method
    from planner_service.simulation.batches import Batches
    from planner_service.simulation.records import Candidates, Contender, Replay
    from planner_service.simulation.replay import Setting


def simulate(  # noqa: PLR0913 - the command's options
    *,
    profile: ProfileOption,
    gpus: GpusOption,
    lengths: LengthsOption,
    iterations: Annotated[int, typer.Option(min=1, max=100_000, help="Batches to replay.", rich_help_panel=BATCH)],
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of each batch, about this many.", rich_help_panel=BATCH)],
    max_length: MaxLengthOption = None,
    over_long: OverLongOption = "reject",
    optimizer_layout: OptimizerLayoutOption = None,
    baselines: Annotated[
        str,
        typer.Option(
            help="Planners to compare with, commas between; speed-ups are over the first. plain, off, "
            "karmarkar-karp-tokens, karmarkar-karp-work and next-fit keep the homogeneous strategy that suits them "
            "best over the whole stream; published chooses among --strategy, or its own list.",
            metavar="NAME,...",
            rich_help_panel=SEARCH,
        ),
    ] = "plain",
    static_strategy: Annotated[
        str | None,
        typer.Option(
            help="Strategy that the baselines keep, instead of the best homogeneous one.",
            metavar="GROUPS",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    strategy: StrategyOption = None,
    strategies: StrategiesOption = None,
    allow_layout: AllowLayoutOption = None,
    tp_inside_node: TpInsideNodeOption = False,
    alignment: AlignmentOption = 1,
    max_tokens_per_micro_batch: MaxTokensOption = None,
    deadline_ms: DeadlineOption = 1000,
    baseline_deadline_ms: Annotated[
        int, typer.Option(help="Deadline of each baseline's plan.", rich_help_panel=SEARCH)
    ] = 60_000,
    target_gap: TargetGapOption = 0.002,
    seed: SeedOption = 0,
    window: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=1000,
            help="Also plan so many known batches at a time: changes of strategy have to pay (planner window).",
            metavar="W",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    switch_ms: Annotated[
        float,
        typer.Option(min=0, help="What a change of strategy costs; charged to every planner.", rich_help_panel=SEARCH),
    ] = 0.0,
    html: Annotated[
        Path | None, typer.Option(help="Write a report with charts.", metavar="FILE", rich_help_panel=OUTPUT)
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON document and nothing else.", rich_help_panel=OUTPUT)
    ] = False,
    version: VersionOption = False,  # noqa: ARG001 - its callback answers
) -> None:
    """Replay a stream of batches by several planners and compare what they cost.

    Each batch is planned by: free (all strategies), homogeneous (those whose replicas are alike), fixed (those given
    by --strategy, if any), window (if --window is given) and the baselines. A planner that fails on a batch is
    listed with the reason.
    Exits 2 on bad input and 3 if no planner found any plan.
    """
    from planner_service.commands import inputs  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_service.simulation.replay import Setting  # noqa: PLC0415 - loads the solver

    with failures_of("simulate"):
        inputs.check_writable("--html", html)
        cluster = inputs.read_cluster(gpus, profile)
        setting = Setting(
            cluster.profiles,
            {**cluster.request_fields, "optimizer_layout": inputs.read_optimizer_layout(optimizer_layout)},
            {
                "alignment": alignment,
                "max_tokens_per_micro_batch": max_tokens_per_micro_batch,
                "allowed_layouts": inputs.read_layouts(allow_layout),
                "tp_inside_node": tp_inside_node,
                "target_gap": target_gap,
                "seed": seed,
            },
            deadline_ms,
            baseline_deadline_ms,
        )
        batches = _batches(setting, lengths, tokens, iterations, max_length, over_long, seed)
        race = _race(
            setting,
            batches,
            _methods(baselines),
            inputs.read_strategies(strategy, strategies),
            inputs.read_strategies([static_strategy], None) if static_strategy else [],
        )
        if window is not None:
            race = replace(race, names=(*race.names, "window"), window=window)
        replayed = _run(setting, batches, race, _description(setting, lengths, gpus, race, switch_ms, batches))
    _show(replayed, html, as_json=as_json)
    if all(outcome.planned is None for outcome in replayed.outcomes):
        reason = in_options(replayed.outcomes[0].failure or "")
        fail("simulate", f"no planner found any plan; the first said: {reason}", NO_PLAN_IN_TIME)


@dataclass(frozen=True)
class _Race:
    """Who takes part, and in which order they are shown."""

    static_methods: tuple["Method", ...]
    static_strategies: "Candidates"
    contenders: tuple["Contender", ...]
    names: tuple[str, ...]
    window: int | None = None


def _methods(baselines: str) -> list["Method"]:
    from typing import get_args  # noqa: PLC0415

    from planner_client.contract import Method  # noqa: PLC0415 - keeps `hydraulis --help` fast

    known = [name for name in get_args(Method) if name != "hydraulis"]
    named = list(dict.fromkeys(name.strip() for name in baselines.split(",") if name.strip()))
    for name in named:
        if name not in known:
            raise ValueError(f"there is no baseline {name!r}; use {', '.join(known)}, with commas between")
    if not named:
        raise ValueError(f"--baselines names none; use one or more of {', '.join(known)}")
    return [cast("Method", name) for name in named]


def _batches(  # noqa: PLR0913, PLR0917 - what a stream is cut by
    setting: "Setting",
    lengths: str,
    tokens: int,
    iterations: int,
    max_length: int | None,
    over_long: str,
    seed: int,
) -> "Batches":
    from planner_service.commands.data_set import lowered_by  # noqa: PLC0415
    from planner_service.commands.lengths_file import read_lengths, take_batch  # noqa: PLC0415
    from planner_service.simulation.batches import consecutive_batches  # noqa: PLC0415
    from planner_service.simulation.replay import longest_runnable  # noqa: PLC0415

    runnable = longest_runnable(setting)
    limit = min(max_length or runnable, runnable)
    held = read_lengths(lengths)
    if held.stream is not None:
        stream: Sequence[int] = held.stream
    else:
        drawn = [take_batch(held, tokens, max_length, seed + index).stream or [] for index in range(iterations)]
        stream = [length for batch in drawn for length in batch]
    try:
        return consecutive_batches(stream, tokens, iterations, limit, drops_over_long=over_long == "drop")
    except ValueError as error:
        cause = lowered_by(setting.options["max_tokens_per_micro_batch"], limit, setting.options["alignment"])
        raise ValueError(f"{error}{cause}") from error


def _race(
    setting: "Setting", batches: "Batches", methods: Sequence["Method"], fixed: list[Any], static: list[Any]
) -> _Race:
    from planner_service.core.screen import screen  # noqa: PLC0415
    from planner_service.simulation.records import Contender  # noqa: PLC0415
    from planner_service.simulation.replay import homogeneous_strategies  # noqa: PLC0415
    from planner_service.translate import problem_of  # noqa: PLC0415

    longest = max(max(lengths) for lengths in batches.lengths)
    given, kept = tuple(map(tuple, fixed)), tuple(map(tuple, static))
    for candidates in (given, kept):
        if candidates:
            screen(problem_of(setting.request([longest], Contender("", candidates=candidates)), setting.profiles))
    contenders = []
    if "published" in methods:
        contenders.append(Contender("published", "published", given or kept))
    if given:
        contenders.append(Contender("fixed", candidates=given))
    contenders += [Contender("homogeneous", homogeneous=True), Contender("free")]
    static_methods = tuple(method for method in methods if method != "published")
    return _Race(
        static_methods,
        (kept or homogeneous_strategies(setting, longest)) if static_methods else (),
        tuple(contenders),
        (*methods, *(contender.name for contender in contenders if contender.method == "hydraulis")),
    )


def _description(  # noqa: PLR0913, PLR0917 - what a replay is described by
    setting: "Setting", lengths: str, gpus: str, race: _Race, switch_ms: float, batches: "Batches"
) -> "Replay":
    from planner_service.simulation.records import Replay  # noqa: PLC0415

    request = setting.request([])
    return Replay(
        title=f"{len(batches.lengths)} batches of {lengths if lengths != '-' else 'standard input'}",
        profile=request.profile_names,
        gpus=gpus,
        num_gpus=request.total_gpus,
        planners=race.names,
        iterations=(),
        outcomes=(),
        switch_ms=switch_ms,
    )


def _run(setting: "Setting", batches: "Batches", race: _Race, description: "Replay") -> "Replay":
    from planner_service.commands.progress import steps_on_stderr  # noqa: PLC0415
    from planner_service.simulation.replay import replay, try_static  # noqa: PLC0415
    from planner_service.simulation.windows import plan_windows  # noqa: PLC0415

    num_iterations = len(batches.lengths)
    num_windows = -(-num_iterations // race.window) if race.window else 0
    per_iteration = len(race.static_methods) * len(race.static_strategies) + len(race.contenders)
    with steps_on_stderr(per_iteration * num_iterations + num_windows) as on_step:
        trials = [
            trial
            for method in race.static_methods
            for trial in try_static(setting, method, race.static_strategies, batches, on_step)
        ]
        found = replay(setting, batches, trials, race.contenders, description, on_step)
        if race.window is None:
            return found
        windows = plan_windows(setting, batches, race.window, description.switch_ms, on_step)
        return replace(found, outcomes=(*found.outcomes, *windows))


def _show(replayed: "Replay", html: Path | None, *, as_json: bool) -> None:
    if html is not None:
        from planner_service.simulation.page import render_page  # noqa: PLC0415

        try:
            html.write_text(render_page(replayed), encoding="utf-8")
        except OSError as error:
            fail("simulate", f"{html} cannot be written: {error.strerror}", BAD_INPUT)
    if as_json:
        from planner_service.simulation.document import document_of  # noqa: PLC0415

        sys.stdout.write(json.dumps(document_of(replayed), allow_nan=False) + "\n")
        return
    from planner_service.commands.simulate_table import show_replay  # noqa: PLC0415

    show_replay(replayed, html)
