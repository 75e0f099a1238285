"""A proposal for machines and for people."""

import math
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from planner_service.commands.data_set import DataSet
from planner_service.core.field import Proposal


def document_of(  # noqa: PLR0913 - what was asked for is given by name
    proposal: Proposal, *, profile: str, num_gpus: int, num_tokens: int, data_set: DataSet, seed: int
) -> dict[str, Any]:
    """Write a proposal as JSON values; what is infinite becomes null.

    * ``profile``, ``num_gpus``, ``num_tokens`` (of a batch), ``longest`` (longest sequence, in tokens), ``seed``, and
      ``num_left_out`` (sequences of the data set that were too long);
    * ``strategies``: those proposed as ``strategy``, ``share`` (of the batches that it is fastest on) and
      ``mean_makespan_ms`` (on its own; null if it cannot run every batch);
    * ``mean_makespan_ms`` with the best of them for each batch, ``single_mean_makespan_ms`` with the best single
      strategy, ``single``, for all, ``all_mean_makespan_ms`` with the best of all strategies found, and
      ``mean_lower_bound_ms``, which no strategies can go below;
    * ``num_batches``, ``num_considered`` (strategies judged), ``num_process_groups`` (of the set).
    """
    return {
        "profile": profile,
        "num_gpus": num_gpus,
        "num_tokens": num_tokens,
        "longest": int(data_set.lengths[-1]),
        "seed": seed,
        "num_left_out": data_set.num_left_out,
        "strategies": [
            {
                "strategy": str(entry.strategy),
                "share": entry.share,
                "mean_makespan_ms": _finite(entry.mean_ms),
            }
            for entry in proposal.strategies
        ],
        "mean_makespan_ms": _finite(proposal.mean_ms),
        "single": None if proposal.single is None else str(proposal.single),
        "single_mean_makespan_ms": _finite(proposal.single_ms),
        "all_mean_makespan_ms": _finite(proposal.all_ms),
        "mean_lower_bound_ms": proposal.bound_ms,
        "num_batches": proposal.num_batches,
        "num_considered": proposal.num_considered,
        "num_process_groups": proposal.num_process_groups,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def show_proposal(document: dict[str, Any], output: Path | None = None, console: Console | None = None) -> None:
    """Print a proposal.

    Parameters
    ----------
    document
        As `document_of` writes it.
    output
        Where it was saved.
    console
        Where to print; standard output if None.
    """
    out = console or Console()
    title = f"Strategies for {document['profile']} on {document['num_gpus']} GPUs"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    table.add_column("strategy", overflow="fold")
    table.add_column("batches won", justify="right")
    table.add_column("mean alone, s", justify="right")
    for entry in document["strategies"]:
        table.add_row(entry["strategy"], f"{entry['share']:.0%}", _seconds(entry["mean_makespan_ms"]))
    out.print(table)
    worth = Table(title="Mean time of a batch", title_justify="left", box=box.SIMPLE_HEAD)
    worth.add_column("with", overflow="fold")
    worth.add_column("s", justify="right")
    worth.add_column("over the bound", justify="right")
    single = f"the best single strategy, {document['single']}" if document["single"] else "any single strategy"
    for name, key in {
        single: "single_mean_makespan_ms",
        "the strategies above": "mean_makespan_ms",
        "all strategies found": "all_mean_makespan_ms",
    }.items():
        worth.add_row(name, _seconds(document[key]), _over(document[key], document["mean_lower_bound_ms"]))
    worth.add_row("no strategies less than", _seconds(document["mean_lower_bound_ms"]), "")
    out.print(worth)
    left_out = (
        f"; {document['num_left_out']} sequences of the data set are too long" if document["num_left_out"] else ""
    )
    out.print(
        f"{document['num_batches']} batches of about {document['num_tokens']} tokens, "
        f"{document['num_considered']} strategies judged, {document['num_process_groups']} process groups to keep"
        + left_out,
        highlight=False,
    )
    if output is not None:
        out.print(f"saved: {output}", highlight=False, soft_wrap=True, markup=False)


def _seconds(value_ms: float | None) -> str:
    return "cannot run all" if value_ms is None else f"{value_ms / 1000:,.3f}"


def _over(value_ms: float | None, bound_ms: float) -> str:
    return "" if value_ms is None or bound_ms <= 0 else f"{value_ms / bound_ms - 1:.1%}"
