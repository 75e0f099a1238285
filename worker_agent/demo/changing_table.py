"""The iterations of the demo's second part as rows of text, for the terminal and for the report. Pure."""

from worker_agent.demo.changing import ChangingRecord, ChangingRun, ReplicaRun

ChangingRow = tuple[str, str, str, str, str, str, str]
"""One cell for each of `CHANGING_HEADING`."""

CHANGING_HEADING: ChangingRow = (
    "iteration",
    "strategy",
    "ranks: tokens",
    "loss",
    "one process alone",
    "relative difference",
    "propagation",
)


def changing_rows(changing: ChangingRun) -> list[ChangingRow]:
    """Return one row an iteration."""
    return [changing_row(record) for record in changing.records]


def changing_row(record: ChangingRecord) -> ChangingRow:
    """Return the row of one iteration."""
    return (
        str(record.iteration),
        record.strategy,
        "; ".join(f"{_ranks(replica)}: {_load(replica)}" for replica in record.replicas),
        f"{record.loss:.6f}",
        f"{record.reference_loss:.6f}",
        f"{record.loss_difference:.1e}",
        f"{100 * record.propagation_share:.1f} %",
    )


def _load(replica: ReplicaRun) -> str:
    return f"{replica.num_tokens:,}" if replica.num_micro_batches else "idle"


def _ranks(replica: ReplicaRun) -> str:
    """Write ranks as ``0-1``, or as ``0,2-3`` where they have a gap."""
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in replica.rank_runs)
