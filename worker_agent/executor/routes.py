"""Which sequence travels from which rank to which: pure, no torch.

A `RouteTable` has one row per delivery of an iteration, in run order of the sequences, and says where a sequence is
held and which rank gets it: each that embeds its tokens or computes its loss. What each rank sends and receives is read
off the table; the way back is the same table, of the ranks that report, with its two columns exchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from planner_client.contract import Plan
from planner_client.packing import Int64Array
from planner_client.run_order import SequenceTable, run_order
from worker_agent.executor.faults import LayoutRefused
from worker_agent.executor.layout import rank_roles, reporting_rank, token_ranks


@dataclass(frozen=True, eq=False)
class Leg:
    """What one rank sends and receives in one all-to-all.

    Attributes
    ----------
    sent_rows, received_rows
        Sequences in the order their data lie in the send and in the receive buffer, shape (n,), int64; a sequence
        that goes to several ranks is sent several times.
    send_sequences, receive_sequences
        Sequences to and from each rank, shape (world size,), int64.
    send_tokens, receive_tokens
        Tokens to and from each rank, shape (world size,), int64.
    """

    sent_rows: Int64Array
    received_rows: Int64Array
    send_sequences: Int64Array
    receive_sequences: Int64Array
    send_tokens: Int64Array
    receive_tokens: Int64Array


@dataclass(frozen=True, eq=False)
class RouteTable:
    """Where sequences come from and go to; all columns of shape (num_deliveries,), int64, in run order.

    Attributes
    ----------
    world_size
        Number of ranks that take part.
    sequences
        The sequence delivered, as its row in the plan's `SequenceTable`.
    from_rank, to_rank
        The rank that has the sequence, and the rank that gets it.
    lengths
        Tokens of the sequence.

    Raises
    ------
    ValueError
        If the columns differ in shape.
    LayoutRefused
        If they name a rank outside the group.
    """

    world_size: int
    sequences: Int64Array
    from_rank: Int64Array
    to_rank: Int64Array
    lengths: Int64Array

    def __post_init__(self) -> None:
        for name, ranks in (("from", self.from_rank), ("to", self.to_rank)):
            if ranks.shape != self.lengths.shape:
                raise ValueError(f"{ranks.size} ranks to send {name} for {self.lengths.size} deliveries")
            outside = ranks[(ranks < 0) | (ranks >= self.world_size)]
            if outside.size:
                raise LayoutRefused(
                    f"a sequence is to be sent {name} rank {int(outside[0])} but the group has ranks 0 to "
                    f"{self.world_size - 1}"
                )

    def leg(self, rank: int) -> Leg:
        """Return what one rank sends and receives; both buffers are in rank order, then in run order."""
        sent = np.flatnonzero(self.from_rank == rank)
        sent = sent[np.argsort(self.to_rank[sent], kind="stable")]
        received = np.flatnonzero(self.to_rank == rank)
        received = received[np.argsort(self.from_rank[received], kind="stable")]
        return Leg(
            sent_rows=self.sequences[sent],
            received_rows=self.sequences[received],
            send_sequences=self._sum_by_rank(self.to_rank[sent], np.ones_like(sent)),
            receive_sequences=self._sum_by_rank(self.from_rank[received], np.ones_like(received)),
            send_tokens=self._sum_by_rank(self.to_rank[sent], self.lengths[sent]),
            receive_tokens=self._sum_by_rank(self.from_rank[received], self.lengths[received]),
        )

    def inverse(self) -> "RouteTable":
        """Return the way back: from the ranks that got the sequences to those that had them."""
        return RouteTable(self.world_size, self.sequences, self.to_rank, self.from_rank, self.lengths)

    def of_rows(self, rows: Int64Array) -> "RouteTable":
        """Return some deliveries, given as ascending rows of this table."""
        return RouteTable(
            self.world_size, self.sequences[rows], self.from_rank[rows], self.to_rank[rows], self.lengths[rows]
        )

    def _sum_by_rank(self, ranks: Int64Array, amounts: Int64Array) -> Int64Array:
        totals = np.zeros(self.world_size, dtype=np.int64)
        np.add.at(totals, ranks, amounts)
        return totals


@dataclass(frozen=True, eq=False)
class SequenceRoutes:
    """The sequence exchange of one plan.

    Attributes
    ----------
    table
        All sequences of the plan, the placed ones in run order.
    outward
        From the sources' ranks to every rank that needs the tokens.
    reports
        Rows of `outward` whose recipient tells the sequence's loss, one for each sequence, ascending.
    alignment
        Each sequence occupies a multiple of this many tokens where it is computed.
    """

    table: SequenceTable
    outward: RouteTable
    reports: Int64Array
    alignment: int

    @cached_property
    def inward(self) -> RouteTable:
        """The way back, from the ranks that tell losses to the sources' ranks."""
        return self.outward.of_rows(self.reports).inverse()


def default_rank_of_source(world_size: int) -> dict[str, int]:
    """Return the usual naming: source ``rank-<r>`` is held by rank r."""
    return {f"rank-{rank}": rank for rank in range(world_size)}


def sequence_routes(plan: Plan, world_size: int, rank_of_source: Mapping[str, int] | None = None) -> SequenceRoutes:
    """Derive the sequence exchange of a plan.

    Parameters
    ----------
    plan
        The plan.
    world_size
        Number of ranks in the group.
    rank_of_source
        The rank that holds each source's sequences; ``rank-<r>`` on rank r by default.

    Raises
    ------
    LayoutRefused
        If the plan's strategy does not run here, or it names a source that no rank holds.
    planner_client.run_order.PlanInconsistent
        If the plan's sequences do not fill its micro-batches exactly.
    """
    rank_roles(plan, world_size)
    ranks = default_rank_of_source(world_size) if rank_of_source is None else rank_of_source
    table = run_order(plan)
    unknown = [source for source in table.sources if source not in ranks]
    if unknown:
        raise LayoutRefused(
            f"the plan takes sequences from source {unknown[0]!r} but no rank holds it (known: "
            f"{', '.join(sorted(ranks)) or 'none'}); give rank_of_source the rank that does"
        )
    rank_of_id = np.array([ranks[source] for source in table.sources], dtype=np.int64)
    rows, recipients, reports = _deliveries(plan, table)
    outward = RouteTable(
        world_size,
        sequences=rows,
        from_rank=rank_of_id[table.source_ids[rows]],
        to_rank=recipients,
        lengths=table.lengths[rows],
    )
    return SequenceRoutes(table, outward, np.flatnonzero(reports), plan.alignment)


def _deliveries(plan: Plan, table: SequenceTable) -> tuple[Int64Array, Int64Array, npt.NDArray[np.bool_]]:
    """Return for each delivery the sequence, the rank that gets it and whether that rank reports its loss."""
    rows, recipients, reports = [_NONE], [_NONE], [_NONE.astype(np.bool_)]
    for number, replica in enumerate(plan.replicas):
        own = np.arange(*table.replica_bounds[number : number + 2], dtype=np.int64)
        to = np.array(token_ranks(replica), dtype=np.int64)
        rows.append(np.repeat(own, to.size))
        recipients.append(np.tile(to, own.size))
        reports.append(np.tile(to == reporting_rank(replica), own.size))
    return np.concatenate(rows), np.concatenate(recipients), np.concatenate(reports)


_NONE = np.zeros(0, dtype=np.int64)
