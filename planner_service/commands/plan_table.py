"""A plan for people: what each replica does, how loaded it is, and how good the plan is proven to be."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner_client.contract import Plan, Replica

MAX_REPLICAS_SHOWN = 24
BAR_WIDTH = 10


def show_plan(plan: Plan, console: Console | None = None) -> None:
    """Print a plan as tables.

    Parameters
    ----------
    plan
        The plan.
    console
        Where to print; standard output if None.
    """
    out = console or Console()
    out.print(_replicas(plan))
    out.print(_summary(plan))
    out.print(f"[bold]digest[/bold] {plan.digest}", soft_wrap=True, highlight=False)


def _ranks(ranks: Sequence[int]) -> str:
    """Write ranks as ranges: 0-15,32."""
    parts = []
    for _, run in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        members = [rank for _, rank in run]
        parts.append(str(members[0]) if len(members) == 1 else f"{members[0]}-{members[-1]}")
    return ",".join(parts[:4]) + (",…" if len(parts) > 4 else "")


def _bar(share: float) -> Text:
    filled = round(share * BAR_WIDTH)
    colour = "green" if share >= 0.95 else "yellow" if share >= 0.75 else "red"
    return Text("█" * filled, style=colour) + Text("·" * (BAR_WIDTH - filled), style="dim")


def _num_sequences(replica: Replica) -> int:
    return sum(entry.count for micro_batch in replica.micro_batches for entry in micro_batch.sequences)


def _num_tokens(replica: Replica) -> int:
    return sum(micro_batch.num_tokens for micro_batch in replica.micro_batches)


def _replicas(plan: Plan) -> Table:
    table = Table(
        title=f"{plan.strategy} on {plan.num_gpus} GPUs, profile {plan.profile}",
        caption="layout: (tp,pp); mb: micro-batches; cap: most tokens of one micro-batch",
        title_justify="left",
        caption_justify="left",
    )
    for name in ("#", "layout", "ranks"):
        table.add_column(name, no_wrap=True)
    for name in ("seqs", "tokens", "mb", "cap", "load ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("load", no_wrap=True)
    for index, replica in enumerate(plan.replicas[:MAX_REPLICAS_SHOWN]):
        share = replica.makespan_ms / plan.makespan_ms if plan.makespan_ms else 0.0
        degrees = (replica.tp, replica.pp) if replica.cp == 1 else (replica.tp, replica.cp, replica.pp)
        table.add_row(
            str(index),
            "(" + ",".join(map(str, degrees)) + ")",
            _ranks(replica.ranks),
            f"{_num_sequences(replica):,}",
            f"{_num_tokens(replica):,}",
            str(len(replica.micro_batches)) if replica.micro_batches else "idle",
            f"{replica.max_tokens:,}",
            f"{replica.makespan_ms:,.1f}",
            _bar(share),
        )
    if len(plan.replicas) > MAX_REPLICAS_SHOWN:
        rest = plan.replicas[MAX_REPLICAS_SHOWN:]
        table.add_row(
            f"… {len(rest)} more",
            "",
            "",
            f"{sum(map(_num_sequences, rest)):,}",
            f"{sum(map(_num_tokens, rest)):,}",
            str(sum(len(replica.micro_batches) for replica in rest)),
            "",
            f"{min(r.makespan_ms for r in rest):,.1f}-{max(r.makespan_ms for r in rest):,.1f}",
            Text(""),
        )
    return table


def _summary(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("sequences", f"{plan.num_sequences:,} of {plan.num_tokens:,} tokens")
    table.add_row("makespan", f"{plan.makespan_ms:,.1f} ms  (1F1B simulation {plan.simulated_ms:,.1f} ms)")
    if plan.lower_bound_ms is not None and plan.gap is not None:
        scope = "this strategy" if plan.bound_scope == "strategy" else f"every strategy of {plan.num_gpus} GPUs"
        table.add_row("lower bound", f"{plan.lower_bound_ms:,.1f} ms, proven for {scope}")
        table.add_row("gap", f"{plan.gap:.2%}  ({plan.status}, by {plan.solved_by})")
    table.add_row(
        "planning", f"{plan.planning_ms:,.0f} ms" + (", cut by the deadline" if plan.cut_by_wall_clock else "")
    )
    idle = plan.num_gpus - plan.num_ranks
    if idle:
        table.add_row("idle GPUs", f"{idle:,} of {plan.num_gpus:,} are in no replica of this strategy")
    if plan.num_sequences == 0:
        table.add_row("note", "there is nothing to plan: the batch is empty, so every replica is idle")
    if plan.sync_ms:
        table.add_row("sync", f"{plan.sync_ms:,.1f} ms on top of the makespan")
    if plan.dropped:
        dropped = sum(entry.count for entry in plan.dropped)
        longest = max(entry.length for entry in plan.dropped)
        table.add_row("dropped", f"{dropped:,} over-long sequences, the longest of {longest:,} tokens")
    for entry in plan.passed_over:
        table.add_row("passed over", f"{entry.strategy} {entry.reason}")
    return table
