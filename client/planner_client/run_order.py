"""The canonical order of a plan's sequences: what all sides can know from the plan alone.

A plan travels without token ids or indices: it says how many sequences of each source and length go to each
micro-batch. The *canonical order* turns that into indices, so that all sides agree without a word more: a source's
sequences of one length are taken in the order the source holds them, by the replicas in the plan's order, their
micro-batches in the order they run, the entries of a micro-batch as listed; the dropped entries take what is left.
*Run order* is the order of the placed sequences under the same rule.

Where a plan keeps atomic groups together, groups are taken whole, those of the same lengths in the order held, and
single sequences are taken in the order held among those that are in no group (`planner_client.groups`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner_client.contract import Plan, SequenceCount
from planner_client.errors import HydraulisError
from planner_client.groups import GroupRows, Groups, HeldGroups, group_rows, placed_indices
from planner_client.packing import Int64Array, PackedMicroBatch


class PlanInconsistent(HydraulisError, ValueError):  # noqa: N818 - named after what happened, like the other faults of the client
    """A plan whose own totals contradict its sequences; nothing can be run by it."""


@dataclass(frozen=True, eq=False)
class SequenceTable:
    """Every sequence of a plan, one row each: the placed ones in run order, then the dropped ones.

    All columns are int64 of shape (num_placed + num_dropped,).

    Attributes
    ----------
    sources
        Names of all sources of the plan, in alphabetical order.
    source_ids
        Which of ``sources`` holds the sequence.
    lengths
        Tokens of the sequence.
    ordinals
        The how-manieth of its source's sequences of that length it is, from 0.
    num_placed
        Rows before this one are placed, the others dropped.
    micro_batch_bounds
        Per replica, the rows at which its micro-batches begin, and the end of the last; shape (micro-batches + 1,).
    groups
        Which placed rows belong to atomic groups; None where the plan keeps none together.
    """

    sources: tuple[str, ...]
    source_ids: Int64Array
    lengths: Int64Array
    ordinals: Int64Array
    num_placed: int
    micro_batch_bounds: tuple[Int64Array, ...]
    groups: GroupRows | None = None

    @cached_property
    def replica_bounds(self) -> Int64Array:
        """Rows at which the replicas begin, and the end of the last; shape (replicas + 1,)."""
        return np.array([0, *(int(bounds[-1]) for bounds in self.micro_batch_bounds)], dtype=np.int64)

    def packed(self, replica: int, alignment: int) -> tuple[PackedMicroBatch, ...]:
        """Return the geometry of a replica's micro-batches, in the order they run; known without any source."""
        bounds = self.micro_batch_bounds[replica]
        return tuple(
            PackedMicroBatch(self.lengths[begin:end], alignment)
            for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)
        )


def run_order(plan: Plan) -> SequenceTable:
    """List every sequence of a plan in canonical order; what all sides can know from the plan alone.

    Raises
    ------
    PlanInconsistent
        If a micro-batch's or the plan's totals contradict the sequences listed.
    """
    entries = [entry for replica in plan.replicas for micro in replica.micro_batches for entry in micro.sequences]
    num_placed = sum(entry.count for entry in entries)
    entries += plan.dropped
    sources = tuple(sorted({entry.source for entry in entries}))
    id_of = {source: number for number, source in enumerate(sources)}
    counts = np.array([entry.count for entry in entries], dtype=np.int64)
    begins = np.cumsum(counts) - counts
    rows = np.arange(int(counts.sum()), dtype=np.int64)
    table = SequenceTable(
        sources=sources,
        source_ids=np.repeat(np.array([id_of[entry.source] for entry in entries], dtype=np.int64), counts),
        lengths=np.repeat(np.array([entry.length for entry in entries], dtype=np.int64), counts),
        ordinals=rows + np.repeat(_first_ordinals(entries) - begins, counts),
        num_placed=num_placed,
        micro_batch_bounds=_micro_batch_bounds(plan),
        groups=_groups(plan),
    )
    _check_totals(plan, table)
    return table


def _groups(plan: Plan) -> GroupRows | None:
    try:
        return group_rows(plan)
    except ValueError as contradiction:
        raise PlanInconsistent(f"{contradiction}; ask for a new plan") from contradiction


def row_indices(
    table: SequenceTable,
    lengths_by_source: Mapping[str, Int64Array],
    groups_by_source: Mapping[str, Groups] | None = None,
) -> Int64Array:
    """Return each row's index in its source; -1 where the source is not among those given.

    The lengths must be those of the plan; `planner_client.sequences` checks that. ``groups_by_source`` gives the
    indices of each atomic group's sequences, for sources that have some.

    Raises
    ------
    planner_client.groups.GroupMismatch
        If a source's groups are not those of the plan.
    """
    indices = np.full(table.lengths.size, -1, dtype=np.int64)
    for source_id, source in enumerate(table.sources):
        if source not in lengths_by_source:
            continue
        lengths = lengths_by_source[source]
        rows = np.flatnonzero(table.source_ids == source_id)
        groups = (groups_by_source or {}).get(source, ())
        if len(groups) or table.groups is not None:
            indices[rows] = _rows_with_groups(table, source, rows, lengths, groups)
            continue
        held = np.argsort(lengths, kind="stable")
        first = np.searchsorted(lengths[held], table.lengths[rows], side="left")
        indices[rows] = held[first + table.ordinals[rows]]
    return indices


def _rows_with_groups(
    table: SequenceTable, source: str, rows: Int64Array, lengths: Int64Array, groups: Groups
) -> Int64Array:
    """Resolve one source's rows where groups matter: the placed ones first; the dropped ones take what is left."""
    own = rows[rows < table.num_placed]
    none = np.full(table.num_placed, -1, dtype=np.int64)
    of_groups = table.groups or GroupRows((), none, table.ordinals[: table.num_placed], none)
    placed = placed_indices(of_groups, source, own, table.lengths[own], HeldGroups.of(lengths, groups))
    left = np.setdiff1d(np.arange(lengths.size), placed)
    left = left[np.argsort(lengths[left], kind="stable")]
    dropped = rows[rows >= table.num_placed]
    by_length = np.argsort(table.lengths[dropped], kind="stable")
    taken = np.empty(dropped.size, dtype=np.int64)
    taken[by_length] = left
    return np.concatenate([placed, taken])


def _first_ordinals(entries: Sequence[SequenceCount]) -> Int64Array:
    """Count, for each entry, the sequences of the same source and length that the entries before it take."""
    taken: dict[tuple[str, int], int] = {}
    first = np.zeros(len(entries), dtype=np.int64)
    for number, entry in enumerate(entries):
        key = (entry.source, entry.length)
        first[number] = taken.get(key, 0)
        taken[key] = taken.get(key, 0) + entry.count
    return first


def _micro_batch_bounds(plan: Plan) -> tuple[Int64Array, ...]:
    bounds: list[Int64Array] = []
    at = 0
    for replica in plan.replicas:
        of_replica = [at]
        for micro_batch in replica.micro_batches:
            at += sum(entry.count for entry in micro_batch.sequences)
            of_replica.append(at)
        bounds.append(np.array(of_replica, dtype=np.int64))
    return tuple(bounds)


def _check_totals(plan: Plan, table: SequenceTable) -> None:
    ends = np.concatenate([[0], np.cumsum(table.lengths)])
    physical = np.concatenate([[0], np.cumsum(-(-table.lengths // plan.alignment) * plan.alignment)])
    for number, (replica, bounds) in enumerate(zip(plan.replicas, table.micro_batch_bounds, strict=True)):
        for order, micro_batch in enumerate(replica.micro_batches):
            begin, end = bounds[order], bounds[order + 1]
            where = f"micro-batch {order} of replica {number}"
            _check_total(where, "tokens", micro_batch.num_tokens, int(ends[end] - ends[begin]))
            with_padding = int(physical[end] - physical[begin])
            if plan.cost == "padded":
                longest = int(np.max(table.lengths[begin:end], initial=0))
                with_padding = int(end - begin) * (-(-longest // plan.alignment) * plan.alignment)
            padding = with_padding - micro_batch.num_tokens
            _check_total(where, "padding tokens", micro_batch.num_padding_tokens, padding)
            if with_padding > replica.max_tokens:
                raise PlanInconsistent(
                    f"{where} holds {with_padding} tokens with padding, over its cap of {replica.max_tokens}; "
                    "do not run this plan, ask for a new one"
                )
    _check_total("the plan", "sequences", plan.num_sequences, table.num_placed)
    _check_total("the plan", "tokens", plan.num_tokens, int(ends[table.num_placed]))


def _check_total(where: str, what: str, declared: int, listed: int) -> None:
    if declared != listed:
        raise PlanInconsistent(
            f"{where} declares {declared} {what} but its sequences come to {listed}; ask for a new plan"
        )
