"""`hydraulis propose`: choose the strategies that are worth profiling and keeping communicators for."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from planner_service.commands.failures import BAD_INPUT, fail, failures_of
from planner_service.commands.options import (
    BATCH,
    CONSTRAINTS,
    OUTPUT,
    SEARCH,
    AlignmentOption,
    AllowLayoutOption,
    GpusOption,
    HomogeneousOption,
    LengthsOption,
    MaxLengthOption,
    MaxTokensOption,
    OptimizerLayoutOption,
    ProfileOption,
    SeedOption,
    TpInsideNodeOption,
    VersionOption,
)

if TYPE_CHECKING:
    from planner_service.commands.data_set import DataSet
    from planner_service.core.field import Proposal
    from planner_service.core.problem import Problem


def propose(  # noqa: PLR0913 - the command's options
    *,
    profile: ProfileOption,
    gpus: GpusOption,
    lengths: LengthsOption,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of a batch, about this many.", rich_help_panel=BATCH)],
    max_length: MaxLengthOption = None,
    optimizer_layout: OptimizerLayoutOption = None,
    most: Annotated[
        int, typer.Option(min=1, max=100, help="Most strategies to propose.", rich_help_panel=CONSTRAINTS)
    ] = 4,
    max_process_groups: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Most process groups of two ranks or more for all proposed strategies together.",
            metavar="K",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    allow_layout: AllowLayoutOption = None,
    homogeneous: HomogeneousOption = False,
    tp_inside_node: TpInsideNodeOption = False,
    alignment: AlignmentOption = 1,
    max_tokens_per_micro_batch: MaxTokensOption = None,
    batches: Annotated[
        int,
        typer.Option(min=1, max=10_000, help="Batches to draw from the data set and plan.", rich_help_panel=SEARCH),
    ] = 16,
    deadline_ms: Annotated[
        int,
        typer.Option(
            help="Search each batch as hard as a plan with this deadline, counted in repeatable units and not by the "
            "clock.",
            rich_help_panel=SEARCH,
        ),
    ] = 1000,
    most_seconds: Annotated[
        float,
        typer.Option(min=0, help="Search no longer; batches not reached by then are left out.", rich_help_panel=SEARCH),
    ] = 600.0,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Save the proposal as JSON, for `hydraulis plan --strategies`.", metavar="FILE", rich_help_panel=OUTPUT
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the proposal as JSON and nothing else.", rich_help_panel=OUTPUT)
    ] = False,
    version: VersionOption = False,  # noqa: ARG001 - its callback answers
) -> None:
    """Choose the strategies of a data set that are worth profiling and keeping communicators for.

    Draws batches from the data set, finds the best of all strategies for each, judges all that were found on every
    batch, and proposes the few of which the best for each batch takes least on average. --lengths is the data set;
    sequences over --max-length are left out.
    Exits 2 on bad input.
    """
    from planner_client.contract import PlanRequest  # noqa: PLC0415 - keeps `hydraulis --help` fast
    from planner_service.commands import inputs  # noqa: PLC0415
    from planner_service.commands.data_set import read_data_set  # noqa: PLC0415
    from planner_service.commands.propose_output import document_of, show_proposal  # noqa: PLC0415
    from planner_service.translate import problem_of  # noqa: PLC0415 - loads the solver

    with failures_of("propose"):
        inputs.check_writable("--output", output)
        cluster = inputs.read_cluster(gpus, profile)
        fields = {**cluster.request_fields, "optimizer_layout": inputs.read_optimizer_layout(optimizer_layout)}
        options = {
            "alignment": alignment,
            "max_tokens_per_micro_batch": max_tokens_per_micro_batch,
            "allowed_layouts": inputs.read_layouts(allow_layout),
            "homogeneous": homogeneous,
            "tp_inside_node": tp_inside_node,
            "max_process_groups": max_process_groups,
            "deadline_ms": deadline_ms,
            "seed": seed,
        }
        request = PlanRequest.model_validate({**fields, "lengths": [], "options": options})
        problem = problem_of(request, cluster.profiles)
        most_held = max(kind.max_tokens for kind in problem.kinds)
        data_set = read_data_set(lengths, max_length, most_held, alignment, max_tokens_per_micro_batch)
        proposal = _run(problem, data_set, tokens, batches, most, deadline_ms, most_seconds)
    document = document_of(
        proposal,
        profile=request.profile_names,
        num_gpus=problem.num_gpus,
        num_tokens=tokens,
        data_set=data_set,
        seed=seed,
    )
    _save(document, output)
    if as_json:
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        show_proposal(document, output)


def _run(  # noqa: PLR0913, PLR0917 - what was asked for
    problem: "Problem",
    data_set: "DataSet",
    num_tokens: int,
    num_batches: int,
    most: int,
    deadline_ms: int,
    most_seconds: float,
) -> "Proposal":
    import time  # noqa: PLC0415

    from planner_client.contract.scalars import MAX_SEQUENCES_LISTED  # noqa: PLC0415
    from planner_service.commands.progress import steps_on_stderr  # noqa: PLC0415
    from planner_service.core.effort import Effort  # noqa: PLC0415
    from planner_service.core.propose import REFINING_STEPS, draw_batches, propose  # noqa: PLC0415
    from planner_service.translate import DETERMINISTIC_SHARE  # noqa: PLC0415

    if num_tokens > MAX_SEQUENCES_LISTED * data_set.mean_tokens:
        raise ValueError(
            f"{num_tokens} tokens would take more than {MAX_SEQUENCES_LISTED} sequences of the mean length "
            f"{data_set.mean_tokens:.1f}; take fewer tokens"
        )
    drawn = draw_batches(
        data_set.lengths, data_set.counts, num_tokens, num_batches, problem.options.seed, problem.batch.alignment
    )
    until = time.monotonic() + most_seconds
    effort = Effort(deadline_ms / 1000 * DETERMINISTIC_SHARE, lambda: (until - time.monotonic()) * 1000)
    with steps_on_stderr(2 * num_batches + REFINING_STEPS) as on_step:
        return propose(
            problem,
            drawn,
            effort,
            most=most,
            longest=int(data_set.lengths[-1]),
            report=lambda phase, done, total: on_step(f"{phase} {min(done + 1, total)}/{total}"),
        )


def _save(document: dict[str, Any], output: Path | None) -> None:
    if output is None:
        return
    try:
        output.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        fail("propose", f"--output {output} cannot be written: {error.strerror}", BAD_INPUT)
