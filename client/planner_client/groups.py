"""Atomic groups on the trainer's side: which of its sequences a plan keeps together.

A source says which of its sequences form groups by index. A plan names groups by their lengths only; which group it
means follows from the canonical order (`planner_client.run_order`): groups of the same lengths are taken in the order
of their first sequences, and inside a group its sequences by ascending length, then in the order held.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner_client.contract import AtomicGroup, MicroBatch, Plan
from planner_client.errors import HydraulisError
from planner_client.packing import Int64Array, Lengths, as_lengths

Groups = Sequence[Sequence[int]]
"""Groups of one source, each as the indices of its sequences."""

GroupKey = tuple[int, ...]
"""Lengths (tokens) of a group's sequences, ascending."""


class GroupMismatch(HydraulisError, ValueError):  # noqa: N818 - named after what happened, like the other faults of the client
    """The atomic groups a source holds are not those the plan was made for.

    Attributes
    ----------
    source
        The source whose groups differ.
    lengths
        The lengths (tokens) of the groups whose number differs; of one sequence where single ones are lacking.
    num_planned, num_given
        How many of them the plan names, and how many the source holds.
    """

    def __init__(self, source: str, lengths: GroupKey, num_planned: int, num_given: int) -> None:
        what = "groups" if len(lengths) > 1 else "single sequences"
        super().__init__(
            f"source {source!r} holds {num_given} {what} of lengths {list(lengths)} but the plan names {num_planned}; "
            "give the groups that were sent with the request, or ask for a new plan"
        )
        self.source = source
        self.lengths = lengths
        self.num_planned = num_planned
        self.num_given = num_given


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Which rows of a sequence table belong to groups; all columns are int64 of shape (num_placed,).

    Attributes
    ----------
    keys
        Source and lengths of each sort of group in the plan.
    key_ids
        Which of ``keys`` the row's group is of; -1 for a single sequence.
    copies
        The how-manieth group of its sort, from 0; for a single sequence the how-manieth of its source and length.
    positions
        Which of the group's sequences, by ascending length.
    """

    keys: tuple[tuple[str, GroupKey], ...]
    key_ids: Int64Array
    copies: Int64Array
    positions: Int64Array


@dataclass(frozen=True, eq=False)
class HeldGroups:
    """One source's sequences, told apart: groups by their lengths, single ones by their length, in the order held."""

    groups: Mapping[GroupKey, Sequence[Sequence[int]]]
    single: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, lengths: Int64Array, groups: Groups) -> "HeldGroups":
        """Tell a source's sequences apart (see `atomic_groups_of` for what is refused)."""
        checked = sorted(_checked(lengths, groups), key=min)
        by_lengths: dict[GroupKey, list[list[int]]] = {}
        grouped: set[int] = set()
        for group in checked:
            members = sorted(group, key=lambda index: (int(lengths[index]), index))
            by_lengths.setdefault(tuple(int(lengths[index]) for index in members), []).append(members)
            grouped.update(members)
        single: dict[int, list[int]] = {}
        for index, length in enumerate(lengths.tolist()):
            if index not in grouped:
                single.setdefault(length, []).append(index)
        return cls(by_lengths, single)


def atomic_groups_of(lengths: Lengths, groups: Groups) -> list[AtomicGroup]:
    """Turn groups of indices into what a request names as ``atomic_groups`` of a source.

    Parameters
    ----------
    lengths
        Lengths (tokens) of the source's sequences in the order held, shape (n,).
    groups
        Indices of the sequences of each group; a group of fewer than two sequences constrains nothing and is left out.

    Returns
    -------
    list of AtomicGroup
        By ascending lengths, equal ones counted.

    Raises
    ------
    ValueError
        If an index is outside the list, or stands twice.
    """
    held = HeldGroups.of(as_lengths(lengths), groups).groups
    return [AtomicGroup(lengths=list(key), count=len(held[key])) for key in sorted(held)]


def _checked(lengths: Int64Array, groups: Groups) -> list[list[int]]:
    seen: dict[int, int] = {}
    kept: list[list[int]] = []
    for number, group in enumerate(groups):
        members = [int(index) for index in group]
        for index in members:
            if not 0 <= index < lengths.size:
                raise ValueError(
                    f"group {number} names sequence {index} but the source holds {lengths.size}; "
                    "count indices from 0 in the order held"
                )
            if index in seen:
                raise ValueError(
                    f"sequence {index} is in group {seen[index]} and in group {number}; a sequence is in one group "
                    "at most, once"
                )
            seen[index] = number
        if len(members) > 1:
            kept.append(members)
    return kept


def group_rows(plan: Plan) -> GroupRows | None:
    """Tell which placed sequences of a plan belong to groups, in run order; None if the plan keeps none together.

    Of a micro-batch's sequences of one source and length the first are single and the last belong to its groups, in
    the order these are listed.

    Raises
    ------
    ValueError
        If a micro-batch names groups whose sequences it does not hold.
    """
    micro_batches = [micro_batch for replica in plan.replicas for micro_batch in replica.micro_batches]
    if not any(micro_batch.groups for micro_batch in micro_batches):
        return None
    keys: dict[tuple[str, GroupKey], int] = {}
    num_groups: dict[int, int] = {}
    num_single: dict[tuple[str, int], int] = {}
    rows: list[tuple[int, int, int]] = []
    for micro_batch in micro_batches:
        slots = _group_slots(micro_batch, keys, num_groups)
        place_in: dict[tuple[str, int], int] = {}
        of_group = {key: _number_held(micro_batch, key) - len(own) for key, own in slots.items()}
        for entry in micro_batch.sequences:
            key = (entry.source, entry.length)
            for _ in range(entry.count):
                place = place_in.get(key, 0)
                place_in[key] = place + 1
                first_of_groups = of_group.get(key)
                if first_of_groups is not None and place >= first_of_groups:
                    rows.append(slots[key][place - first_of_groups])
                else:
                    rows.append((-1, num_single.get(key, 0), 0))
                    num_single[key] = num_single.get(key, 0) + 1
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return GroupRows(tuple(keys), columns[:, 0], columns[:, 1], columns[:, 2])


def _number_held(micro_batch: MicroBatch, key: tuple[str, int]) -> int:
    return sum(entry.count for entry in micro_batch.sequences if (entry.source, entry.length) == key)


def _group_slots(
    micro_batch: MicroBatch, keys: dict[tuple[str, GroupKey], int], num_groups: dict[int, int]
) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    """List the groups' sequences by source and length as (key, copy, position); counts on in keys and num_groups."""
    slots: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for group in micro_batch.groups:
        lengths = sorted(group.lengths)
        key_id = keys.setdefault((group.source, tuple(lengths)), len(keys))
        for _ in range(group.count):
            copy = num_groups.get(key_id, 0)
            num_groups[key_id] = copy + 1
            for position, length in enumerate(lengths):
                slots.setdefault((group.source, length), []).append((key_id, copy, position))
    for (source, length), own in slots.items():
        held = _number_held(micro_batch, (source, length))
        if len(own) > held:
            raise ValueError(
                f"a micro-batch names groups with {len(own)} sequences of {length} tokens of {source} but holds {held}"
            )
    return slots


def placed_indices(rows: GroupRows, source: str, own: Int64Array, lengths: Int64Array, held: HeldGroups) -> Int64Array:
    """Return the index of each placed row of a source that holds groups, or whose plan names some.

    Parameters
    ----------
    rows
        The plan's groups.
    source
        The source.
    own
        The source's placed rows, ascending, shape (n,).
    lengths
        Length (tokens) of each of them, shape (n,).
    held
        The source's sequences.

    Raises
    ------
    GroupMismatch
        If the source's groups are not those of the plan.
    """
    _check_numbers(rows, source, own, lengths, held)
    indices = np.empty(own.size, dtype=np.int64)
    for at, (row, length) in enumerate(zip(own.tolist(), lengths.tolist(), strict=True)):
        key_id, copy = int(rows.key_ids[row]), int(rows.copies[row])
        if key_id < 0:
            indices[at] = held.single[length][copy]
        else:
            indices[at] = held.groups[rows.keys[key_id][1]][copy][int(rows.positions[row])]
    return indices


def _check_numbers(rows: GroupRows, source: str, own: Int64Array, lengths: Int64Array, held: HeldGroups) -> None:
    """Refuse fewer groups or single sequences than the plan places; more of them are its dropped ones."""
    key_ids = rows.key_ids[own]
    for key_id, (of, key) in enumerate(rows.keys):
        num_planned = int(np.count_nonzero(key_ids == key_id)) // len(key)
        num_held = len(held.groups.get(key, ()))
        if of == source and num_held < num_planned:
            raise GroupMismatch(source, key, num_planned, num_held)
    found, counts = np.unique(lengths[key_ids < 0], return_counts=True)
    for length, count in zip(found.tolist(), counts.tolist(), strict=True):
        num_held = len(held.single.get(length, ()))
        if num_held < count:
            raise GroupMismatch(source, (length,), count, num_held)
