"""From a plan's counts to indices: which sequence of which source runs in which micro-batch, and where in it.

`planner_client.run_order` states the canonical order that makes all sides come to the same indices.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from planner_client.contract import Plan
from planner_client.errors import HydraulisError
from planner_client.groups import GroupMismatch, Groups, atomic_groups_of
from planner_client.packing import Int64Array, Lengths, PackedMicroBatch, as_lengths
from planner_client.run_order import PlanInconsistent, SequenceTable, row_indices, run_order

__all__ = [
    "AssignedMicroBatch",
    "Assignment",
    "GroupMismatch",
    "LocalAssignment",
    "PackedMicroBatch",
    "PlanInconsistent",
    "PlanMismatch",
    "atomic_groups_of",
    "check_held",
    "local_assignment",
    "resolve",
]


class PlanMismatch(HydraulisError, ValueError):  # noqa: N818 - named after what happened, like the other faults of the client
    """The sequences a source holds are not those the plan was made for.

    Attributes
    ----------
    source
        The source whose sequences differ.
    length
        The first length (tokens) whose count differs.
    num_planned, num_given
        How many sequences of that length the plan names, and how many the source holds.
    """

    def __init__(self, source: str, length: int, num_planned: int, num_given: int) -> None:
        super().__init__(
            f"source {source!r} holds {num_given} sequences of length {length} but the plan names {num_planned}; "
            "run the plan on exactly the batch whose lengths were sent, or ask for a new plan"
        )
        self.source = source
        self.length = length
        self.num_planned = num_planned
        self.num_given = num_given


@dataclass(frozen=True, eq=False)
class AssignedMicroBatch:
    """One micro-batch of a plan: its geometry and which sequences fill it, in the order they are packed.

    Attributes
    ----------
    packed
        Lengths, ``cu_seqlens`` and position ids.
    source_ids
        Which of the assignment's ``sources`` holds each sequence, shape (n,), int64.
    indices
        Index of each sequence in its source, shape (n,), int64.
    """

    packed: PackedMicroBatch
    source_ids: Int64Array
    indices: Int64Array


@dataclass(frozen=True, eq=False)
class Assignment:
    """A plan resolved against all its sources.

    Attributes
    ----------
    sources
        Names that ``source_ids`` refer to.
    replicas
        Each replica's micro-batches in the order they run; an empty tuple is an idle replica.
    dropped
        Ascending indices of the sequences left out, by source, shape (n,); sources that lose none are not named.
    num_given
        Number of sequences each source holds.
    """

    sources: tuple[str, ...]
    replicas: tuple[tuple[AssignedMicroBatch, ...], ...]
    dropped: Mapping[str, Int64Array]
    num_given: Mapping[str, int]

    @property
    def num_placed(self) -> int:
        """Number of sequences that run."""
        return sum(micro_batch.packed.num_sequences for replica in self.replicas for micro_batch in replica)

    def for_rank(self, plan: Plan, rank: int) -> tuple[AssignedMicroBatch, ...]:
        """Return the micro-batches of the replica that a rank belongs to; none if the rank has no replica."""
        for replica, micro_batches in zip(plan.replicas, self.replicas, strict=True):
            if rank in replica.ranks:
                return micro_batches
        return ()

    def inverse_permutation(self, source: str) -> Int64Array:
        """Return, for each sequence of a source in the order given, its position in run order.

        Results computed sequence by sequence in run order (replicas, micro-batches, positions ascending) come back
        in the order given by ``results[permutation]``.

        Returns
        -------
        ndarray
            Shape (num_given,), int64; -1 for a dropped sequence.

        Raises
        ------
        KeyError
            If the assignment has no such source.
        """
        if source not in self.sources:
            raise KeyError(f"no source {source!r}; the assignment has {', '.join(self.sources) or 'none'}")
        return self._positions[self.sources.index(source)]

    def restore(self, results: npt.NDArray[Any], fill: float = float("nan")) -> dict[str, npt.NDArray[Any]]:
        """Bring one result per placed sequence, in run order, back to each source's given order.

        Parameters
        ----------
        results
            Shape (num_placed, ...).
        fill
            What a dropped sequence gets.

        Raises
        ------
        ValueError
            If there is not one result for each placed sequence.
        """
        if len(results) != self.num_placed:
            raise ValueError(f"{len(results)} results for {self.num_placed} placed sequences; give one for each")
        restored: dict[str, npt.NDArray[Any]] = {}
        for source in self.sources:
            permutation = self.inverse_permutation(source)
            placed = permutation >= 0
            if placed.all():
                restored[source] = results[permutation]
                continue
            dtype = np.result_type(results.dtype, np.min_scalar_type(fill))
            restored[source] = np.full((permutation.size, *results.shape[1:]), fill, dtype=dtype)
            restored[source][placed] = results[permutation[placed]]
        return restored

    @cached_property
    def _positions(self) -> tuple[Int64Array, ...]:
        positions = tuple(np.full(self.num_given[source], -1, dtype=np.int64) for source in self.sources)
        micro_batches = [micro_batch for replica in self.replicas for micro_batch in replica]
        if micro_batches:
            source_ids = np.concatenate([micro_batch.source_ids for micro_batch in micro_batches])
            indices = np.concatenate([micro_batch.indices for micro_batch in micro_batches])
            for source_id, of_source in enumerate(positions):
                rows = np.flatnonzero(source_ids == source_id)
                of_source[indices[rows]] = rows
        return positions


@dataclass(frozen=True, eq=False)
class LocalAssignment:
    """What one source can know alone: where its own sequences go.

    Attributes
    ----------
    source
        The source.
    replicas
        Per replica and micro-batch the indices of the source's sequences in it, in the plan's entry order, shape (n,);
        n is 0 where the source sends nothing.
    dropped
        Ascending indices of the sequences left out.
    """

    source: str
    replicas: tuple[tuple[Int64Array, ...], ...]
    dropped: Int64Array


def resolve(
    plan: Plan, lengths_by_source: Mapping[str, Lengths], groups_by_source: Mapping[str, Groups] | None = None
) -> Assignment:
    """Turn a plan into indices, given the lengths (tokens) of every source's sequences in the order held.

    Parameters
    ----------
    plan
        The plan.
    lengths_by_source
        For each source the lengths of its sequences, shape (n,). A source without sequences may be left out.
    groups_by_source
        For each source that has atomic groups, the indices of each group's sequences: those the request's
        ``atomic_groups`` were made of (`atomic_groups_of`).

    Raises
    ------
    PlanMismatch
        If a source's lengths are not those the plan was made for.
    GroupMismatch
        If a source's groups are not those the plan was made for.
    PlanInconsistent
        If the plan contradicts itself.
    ValueError
        If a list of lengths is not one of integers of at least 1.
    """
    table = run_order(plan)
    lengths = {source: as_lengths(given) for source, given in lengths_by_source.items()}
    _check_counts(table, lengths, set(table.sources) | set(lengths))
    indices = row_indices(table, lengths, groups_by_source)
    sources = (*table.sources, *sorted(set(lengths) - set(table.sources)))
    return Assignment(
        sources=sources,
        replicas=tuple(
            tuple(
                AssignedMicroBatch(packed, table.source_ids[begin:end], indices[begin:end])
                for packed, begin, end in zip(
                    table.packed(replica, plan.alignment), bounds[:-1].tolist(), bounds[1:].tolist(), strict=True
                )
            )
            for replica, bounds in enumerate(table.micro_batch_bounds)
        ),
        dropped=_dropped(table, indices),
        num_given={source: int(lengths[source].size) for source in sources},
    )


def local_assignment(plan: Plan, source: str, lengths: Lengths, groups: Groups = ()) -> LocalAssignment:
    """Turn a plan into one source's own indices, given only that source's lengths (tokens) in the order held.

    ``groups`` are the source's atomic groups as indices, as for `resolve`.

    Raises
    ------
    PlanMismatch
        If the lengths are not those the plan was made for.
    GroupMismatch
        If the groups are not those the plan was made for.
    PlanInconsistent
        If the plan contradicts itself.
    ValueError
        If the lengths are not integers of at least 1.
    """
    table = run_order(plan)
    given = {source: as_lengths(lengths)}
    _check_counts(table, given, {source})
    indices = row_indices(table, given, {source: groups})
    return LocalAssignment(
        source=source,
        replicas=tuple(
            tuple(own[own >= 0] for own in np.split(indices[bounds[0] : bounds[-1]], bounds[1:-1] - bounds[0]))
            if bounds.size > 1
            else ()
            for bounds in table.micro_batch_bounds
        ),
        dropped=_dropped(table, indices).get(source, np.zeros(0, dtype=np.int64)),
    )


def check_held(table: SequenceTable, lengths_by_source: Mapping[str, Int64Array]) -> None:
    """Refuse sequences that are not those the plan was made for, looking only at the sources given.

    Raises
    ------
    PlanMismatch
        Naming the source, the length and both counts.
    """
    _check_counts(table, lengths_by_source, set(lengths_by_source))


def _check_counts(table: SequenceTable, given: Mapping[str, Int64Array], sources: set[str]) -> None:
    id_of = {source: number for number, source in enumerate(table.sources)}
    for source in sorted(sources):
        planned = table.lengths[table.source_ids == id_of.get(source, -1)]
        held = given.get(source, np.zeros(0, dtype=np.int64))
        planned_lengths, planned_counts = np.unique(planned, return_counts=True)
        held_lengths, held_counts = np.unique(held, return_counts=True)
        if np.array_equal(planned_lengths, held_lengths) and np.array_equal(planned_counts, held_counts):
            continue
        num_planned = dict(zip(planned_lengths.tolist(), planned_counts.tolist(), strict=True))
        num_held = dict(zip(held_lengths.tolist(), held_counts.tolist(), strict=True))
        for length in sorted(num_planned.keys() | num_held.keys()):
            if num_planned.get(length, 0) != num_held.get(length, 0):
                raise PlanMismatch(source, length, num_planned.get(length, 0), num_held.get(length, 0))


def _dropped(table: SequenceTable, indices: Int64Array) -> dict[str, Int64Array]:
    source_ids = table.source_ids[table.num_placed :]
    left_out = indices[table.num_placed :]
    dropped = {}
    for source_id, source in enumerate(table.sources):
        own = np.sort(left_out[(source_ids == source_id) & (left_out >= 0)])
        if own.size:
            dropped[source] = own
    return dropped
