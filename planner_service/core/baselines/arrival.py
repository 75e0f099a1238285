"""Sequences in the order they arrive, for methods that keep to it."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items, items_of
from planner_service.core.problem import Batch, SourceRow
from planner_service.core.solution import PlannedMicroBatch, Solution

Arrival = Sequence[tuple[str, int]]
"""(source, true length) of each sequence."""


def without_over_long(batch: Batch, arrival: Arrival) -> list[tuple[str, int]]:
    """Leave out the sequences whose lengths the batch does not hold."""
    held = {row.length for row in batch.rows}
    return [(source, length) for source, length in arrival if length in held]


def items_in_arrival_order(batch: Batch, arrival: Arrival) -> Items:
    """Make one item of each sequence, in arrival order, over-long ones left out.

    Parameters
    ----------
    batch
        The batch; lengths it does not hold are over-long.
    arrival
        (source, true length) of every sequence.
    """
    single = items_of(batch, 0, max_items=batch.num_sequences)
    first_of = {single.contents[first][0][0]: first for first, _ in single.alike}
    item_of = {row.length: first_of[int(index)] for row, index in zip(batch.rows, batch.length_of_row, strict=True)}
    order = [item_of[length] for _, length in without_over_long(batch, arrival)]
    return Items(
        tokens=tuple(single.tokens[item] for item in order),
        squares=tuple(single.squares[item] for item in order),
        longest=tuple(single.longest[item] for item in order),
        contents=tuple(single.contents[item] for item in order),
    )


def named_as_they_came(solution: Solution, dispatched: Dispatched, kept: Arrival) -> Solution:
    """Name in each micro-batch the very sequences that a method put there.

    A solution hands sequences of one occupied length out in row order, whichever they are. That changes no time, but
    where several sources, or several lengths under alignment, occupy the same length, the order given would be lost.

    Parameters
    ----------
    solution
        The method's, with micro-batches in the order it gave.
    dispatched
        What it was assembled from; items are indices into ``kept``.
    kept
        (source, true length) of each sequence placed.
    """
    replicas = tuple(
        replace(
            replica,
            micro_batches=tuple(
                _named(micro_batch, [kept[item] for item in held])
                for micro_batch, held in zip(replica.micro_batches, packing.micro_batches, strict=True)
            ),
        )
        for replica, packing in zip(solution.replicas, dispatched.packings, strict=True)
    )
    return replace(solution, replicas=replicas)


def _named(micro_batch: PlannedMicroBatch, held: Arrival) -> PlannedMicroBatch:
    rows = tuple(SourceRow(source, length, count) for (source, length), count in sorted(Counter(held).items()))
    num_occupied = micro_batch.num_tokens + micro_batch.num_padding_tokens
    num_tokens = sum(length for _, length in held)
    return replace(micro_batch, rows=rows, num_tokens=num_tokens, num_padding_tokens=num_occupied - num_tokens)
