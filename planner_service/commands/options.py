"""Options that several commands take, declared once."""

import sys
from importlib.metadata import version
from typing import Annotated, Literal

import typer

BATCH = "Batch and cluster"
CONSTRAINTS = "Constraints"
SEARCH = "Search"
OUTPUT = "Output"


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - how typer calls back
    if wanted:
        sys.stdout.write(f"hydraulis {version('hydraulis-planner')}\n")
        raise typer.Exit


ProfileOption = Annotated[
    list[str],
    typer.Option(
        "--profile",
        help="Built-in profile, or a file with one (JSON); once for each type of GPU.",
        metavar="NAME|FILE",
        rich_help_panel=BATCH,
    ),
]
GpusOption = Annotated[
    str,
    typer.Option(
        "--gpus",
        help="GPUs to use; with several types 'A800 80GB:32,A100 40GB:32', ranks in this order.",
        metavar="N|DEVICE:N,...",
        rich_help_panel=BATCH,
    ),
]
LengthsOption = Annotated[
    str,
    typer.Option(
        "--lengths",
        help="Sequence lengths: .csv (length,count), .txt, .txt.gz, .npy, .json, - for stdin, or a built-in stream: "
        "alpacaeval, azure-conv, github, reuters21578, win32docs.",
        metavar="FILE|NAME",
        rich_help_panel=BATCH,
    ),
]
OptimizerLayoutOption = Annotated[
    str | None,
    typer.Option(help="Fixed sharding of the optimizer states.", metavar="DP,TP,PP", rich_help_panel=BATCH),
]
MaxLengthOption = Annotated[
    int | None, typer.Option(min=1, help="Longest sequence to train on, in tokens.", rich_help_panel=BATCH)
]
OverLongOption = Annotated[
    Literal["reject", "drop"], typer.Option(help="What becomes of longer sequences.", rich_help_panel=BATCH)
]
StrategyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        help="Candidate such as '(16,1)x1,(8,1)x6' of (tp,pp)xCOUNT or (tp,cp,pp)xCOUNT groups, each perhaps with "
        "@DEVICE; may be repeated. With none, all strategies are searched.",
        metavar="GROUPS",
        rich_help_panel=CONSTRAINTS,
    ),
]
StrategiesOption = Annotated[
    str | None,
    typer.Option(
        "--strategies",
        help="More candidates: a file as `hydraulis propose --output` writes it, or a JSON list of GROUPS.",
        metavar="FILE",
        rich_help_panel=CONSTRAINTS,
    ),
]
AllowLayoutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-layout",
        help="Layout (tp,pp) or (tp,cp,pp) that strategies may use; may be repeated. With none, all may be used.",
        metavar="LAYOUT",
        rich_help_panel=CONSTRAINTS,
    ),
]
HomogeneousOption = Annotated[
    bool,
    typer.Option("--homogeneous", help="Only strategies whose replicas are alike.", rich_help_panel=CONSTRAINTS),
]
TpInsideNodeOption = Annotated[
    bool,
    typer.Option("--tp-inside-node", help="Only layouts whose tp fits into a node.", rich_help_panel=CONSTRAINTS),
]
MaxTokensOption = Annotated[
    int | None,
    typer.Option("--max-tokens-per-micro-batch", help="Lower the limit of every layout.", rich_help_panel=CONSTRAINTS),
]
AlignmentOption = Annotated[
    int, typer.Option(help="Round each length up to a multiple of this.", rich_help_panel=CONSTRAINTS)
]
DeadlineOption = Annotated[
    int, typer.Option("--deadline-ms", help="Return the best plan known by then.", rich_help_panel=SEARCH)
]
TargetGapOption = Annotated[float, typer.Option(help="Stop at this gap to the proven bound.", rich_help_panel=SEARCH)]
SeedOption = Annotated[int, typer.Option(help="Seed of every random choice.", rich_help_panel=SEARCH)]
VersionOption = Annotated[
    bool,
    typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.", rich_help_panel=OUTPUT),
]
