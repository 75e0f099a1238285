"""`hydraulis plan`: plan one batch in this process, without a server."""

import sys
from typing import Annotated, Literal

import typer

from planner_service.commands.failures import NO_PLAN_IN_TIME, fail, failures_of
from planner_service.commands.options import (
    BATCH,
    CONSTRAINTS,
    OUTPUT,
    SEARCH,
    AlignmentOption,
    AllowLayoutOption,
    DeadlineOption,
    GpusOption,
    HomogeneousOption,
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


def plan(  # noqa: PLR0913 - the command's options
    *,
    profile: ProfileOption,
    gpus: GpusOption,
    lengths: LengthsOption,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Take a batch of about this many tokens.", rich_help_panel=BATCH)
    ] = None,
    max_length: MaxLengthOption = None,
    over_long: OverLongOption = "reject",
    optimizer_layout: OptimizerLayoutOption = None,
    strategy: StrategyOption = None,
    strategies: StrategiesOption = None,
    allow_layout: AllowLayoutOption = None,
    homogeneous: HomogeneousOption = False,
    tp_inside_node: TpInsideNodeOption = False,
    max_process_groups: Annotated[
        int | None,
        typer.Option(help="Most process groups of two ranks or more.", metavar="K", rich_help_panel=CONSTRAINTS),
    ] = None,
    alignment: AlignmentOption = 1,
    max_tokens_per_micro_batch: MaxTokensOption = None,
    cost: Annotated[
        Literal["packed", "padded"],
        typer.Option(
            help="padded: for executors that pad each micro-batch to its longest sequence.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = "packed",
    equal_micro_batch_counts: Annotated[
        bool,
        typer.Option(
            "--equal-micro-batch-counts",
            help="Every replica runs equally many micro-batches.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = False,
    micro_batch_count_multiple: Annotated[
        int,
        typer.Option(
            help="Each busy replica runs a multiple of this many micro-batches.",
            metavar="N",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = 1,
    at_least_stages: Annotated[
        bool,
        typer.Option(
            "--at-least-stages",
            help="Each busy replica runs as many micro-batches as it has stages, or more.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = False,
    forbid_idle_replicas: Annotated[
        bool,
        typer.Option(
            "--forbid-idle-replicas", help="No replica may be left without sequences.", rich_help_panel=CONSTRAINTS
        ),
    ] = False,
    deadline_ms: DeadlineOption = 1000,
    target_gap: TargetGapOption = 0.002,
    seed: SeedOption = 0,
    method: Annotated[
        Literal["hydraulis", "plain", "off", "karmarkar-karp-tokens", "karmarkar-karp-work", "next-fit", "published"],
        typer.Option(
            help="Who assigns the sequences; all but hydraulis are for comparison. plain: a plain data loader; off: "
            "sequences stay in their order; published: Hydraulis as its authors describe it.",
            rich_help_panel=SEARCH,
        ),
    ] = "hydraulis",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the plan as JSON and nothing else.", rich_help_panel=OUTPUT)
    ] = False,
    version: VersionOption = False,  # noqa: ARG001 - its callback answers
) -> None:
    """Plan one batch: choose the strategy, dispatch and pack its sequences, and prove how good that is.

    Exits 2 on bad input and 3 if no plan was found by the deadline.
    """
    from planner_client.contract import PlanRequest  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_service.commands import inputs  # noqa: PLC0415
    from planner_service.commands.lengths_file import read_lengths, take_batch  # noqa: PLC0415
    from planner_service.simulation.in_time import plan_in_time  # noqa: PLC0415 - loads the solver

    with failures_of("plan"):
        cluster = inputs.read_cluster(gpus, profile)
        batch = take_batch(read_lengths(lengths), tokens, max_length, seed)
        request = PlanRequest.model_validate(
            {
                **cluster.request_fields,
                "optimizer_layout": inputs.read_optimizer_layout(optimizer_layout),
                "strategies": inputs.read_strategies(strategy, strategies),
                "lengths": batch.stream,
                "histograms": None if batch.histogram is None else {"local": batch.histogram},
                "options": {
                    "alignment": alignment,
                    "max_length": max_length,
                    "over_long": over_long,
                    "max_tokens_per_micro_batch": max_tokens_per_micro_batch,
                    "cost": cost,
                    "equal_micro_batch_counts": equal_micro_batch_counts,
                    "micro_batch_count_multiple": micro_batch_count_multiple,
                    "at_least_stages": at_least_stages,
                    "idle_replicas": "forbid" if forbid_idle_replicas else "allow",
                    "allowed_layouts": inputs.read_layouts(allow_layout),
                    "homogeneous": homogeneous,
                    "tp_inside_node": tp_inside_node,
                    "max_process_groups": max_process_groups,
                    "deadline_ms": deadline_ms,
                    "target_gap": target_gap,
                    "seed": seed,
                    "method": method,
                },
            }
        )
        found = plan_in_time(request, cluster.profiles)
    if found is None:
        fail("plan", f"no plan was found within {deadline_ms} ms; raise --deadline-ms", NO_PLAN_IN_TIME)
    if as_json:
        sys.stdout.write(found.model_dump_json() + "\n")
    else:
        from planner_service.commands.plan_table import show_plan  # noqa: PLC0415

        show_plan(found)
