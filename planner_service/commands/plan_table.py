"""A plan for people: what each replica does, how loaded it is, and how good the plan is proven to be."""

from collections.abc import Sequence
from itertools import groupby

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from planner_client.contract import Plan, Replica

MAX_REPLICAS_SHOWN = 24
BAR_WIDTH = 10
RANKS_WIDTH = 13
"""Characters for the ranks of a replica; the table fits 80 columns."""

FOUND_BY = {"heuristic": "search", "cp-sat": "CP-SAT", "fallback": "the client itself, without the planner"}
"""Who found a plan, in words."""


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
    shown = ""
    for position, part in enumerate(parts):
        longer = f"{shown},{part}" if shown else part
        if shown and len(longer) > RANKS_WIDTH - (2 if position < len(parts) - 1 else 0):
            return shown + ",…"
        shown = longer
    return shown


def _bar(share: float) -> Text:
    filled = round(share * BAR_WIDTH)
    colour = "green" if share >= 0.95 else "yellow" if share >= 0.75 else "red"
    return Text("█" * filled, style=colour) + Text("·" * (BAR_WIDTH - filled), style="dim")


def _num_sequences(replica: Replica) -> int:
    return sum(entry.count for micro_batch in replica.micro_batches for entry in micro_batch.sequences)


def _num_tokens(replica: Replica) -> int:
    return sum(micro_batch.num_tokens for micro_batch in replica.micro_batches)


def _count(value: int) -> str:
    """Write a count so that it never takes more than eight characters."""
    if value < 10_000_000:
        return f"{value:,}" if value < 1_000_000 else f"{value}"
    for factor, suffix in ((10**6, "M"), (10**9, "G"), (10**12, "T")):
        if value < 1000 * factor:
            return f"{value / factor:.4g}{suffix}"
    return f"{value:.2e}"


def _milliseconds(value: float) -> str:
    """Write a time so that it never takes more than nine characters."""
    return f"{value:,.1f}" if value < 1e6 else f"{value:.0f}" if value < 1e9 else f"{value:.2e}"


def _replicas(plan: Plan) -> Table:
    has_several = len({replica.device for replica in plan.replicas}) > 1
    padded = ", cost: padded to the longest of each micro-batch" if plan.cost == "padded" else ""
    devices = list(dict.fromkeys(replica.device for replica in plan.replicas))
    legend = "; gpu: " + ", ".join(f"{_letter(i)} = {name}" for i, name in enumerate(devices)) if has_several else ""
    table = Table(
        title=f"{plan.strategy} on {plan.num_gpus} GPUs, profile {plan.profile}",
        caption=f"layout: (tp,pp); mb: micro-batches; cap: most tokens of one micro-batch{padded}{legend}",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=0,
    )
    for name in ("#", *(("gpu",) if has_several else ()), "layout", "ranks"):
        table.add_column(name, no_wrap=True)
    for name in ("seqs", "tokens", "mb", "cap", "load ms"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("load", no_wrap=True)
    for index, replica in enumerate(plan.replicas[:MAX_REPLICAS_SHOWN]):
        share = replica.makespan_ms / plan.makespan_ms if plan.makespan_ms else 0.0
        degrees = (replica.tp, replica.pp) if replica.cp == 1 else (replica.tp, replica.cp, replica.pp)
        table.add_row(
            str(index),
            *((_letter(devices.index(replica.device)),) if has_several else ()),
            "(" + ",".join(map(str, degrees)) + ")",
            _ranks(replica.ranks),
            _count(_num_sequences(replica)),
            _count(_num_tokens(replica)),
            _count(len(replica.micro_batches)) if replica.micro_batches else "idle",
            _count(replica.max_tokens),
            _milliseconds(replica.makespan_ms),
            _bar(share),
        )
    if len(plan.replicas) > MAX_REPLICAS_SHOWN:
        rest = plan.replicas[MAX_REPLICAS_SHOWN:]
        slowest = max(replica.makespan_ms for replica in rest)
        table.add_row(
            "…",
            *(("",) if has_several else ()),
            f"{len(rest):,} more",
            "",
            _count(sum(map(_num_sequences, rest))),
            _count(sum(map(_num_tokens, rest))),
            _count(sum(len(replica.micro_batches) for replica in rest)),
            "",
            _milliseconds(slowest),
            _bar(slowest / plan.makespan_ms if plan.makespan_ms else 0.0),
        )
    return table


def _letter(index: int) -> str:
    """Short name of a type of GPU: A to Z, then numbers."""
    return chr(ord("A") + index) if index < 26 else str(index)


def _summary(plan: Plan) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    table.add_column()
    table.add_row("sequences", f"{plan.num_sequences:,} with {plan.num_tokens:,} tokens in all")
    if plan.method != "hydraulis":
        table.add_row("method", f"{plan.method}, for comparison")
    table.add_row(
        "cost",
        "padded: each sequence of a micro-batch as long as its longest"
        if plan.cost == "padded"
        else "packed: sequences back to back",
    )
    table.add_row("makespan", f"{plan.makespan_ms:,.1f} ms  (1F1B simulation {plan.simulated_ms:,.1f} ms)")
    if plan.lower_bound_ms is not None and plan.gap is not None:
        scope = (
            "this strategy"
            if plan.bound_scope == "strategy"
            else f"every strategy of {plan.num_gpus} GPUs that was allowed"
        )
        table.add_row("lower bound", f"{plan.lower_bound_ms:,.1f} ms, proven for {scope}")
        proof = "proven optimal, " if plan.status == "optimal" else ""
        table.add_row("gap", f"{plan.gap:.2%}  ({proof}found by {FOUND_BY[plan.solved_by]})")
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
        table.add_row("dropped", f"{dropped:,} over-long sequence(s), the longest with {longest:,} tokens")
    for entry in plan.passed_over:
        table.add_row("passed over", f"{entry.strategy} {entry.reason}")
    return table
