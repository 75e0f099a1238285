"""What people use today, for comparison: our own code from published descriptions."""

from collections.abc import Sequence

from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.pack import EMPTY, first_fit, packing_of
from planner_service.core.problem import Batch, Strategy


def items_in_arrival_order(batch: Batch, arrival: Sequence[tuple[str, int]]) -> Items:
    """Make one item of each sequence, in arrival order, over-long ones left out.

    Parameters
    ----------
    batch
        The batch; lengths it does not hold are over-long.
    arrival
        (source, true length) of every sequence.
    """
    index_of = {row.length: int(length) for row, length in zip(batch.rows, batch.length_of_row, strict=True)}
    kept = [index_of[length] for _, length in arrival if length in index_of]
    tokens = tuple(int(batch.lengths[index]) for index in kept)
    return Items(
        tokens=tokens,
        squares=tuple(length * length for length in tokens),
        longest=tokens,
        contents=tuple(((index, 1),) for index in kept),
    )


def plain_loader(strategy: Strategy, items: Items) -> Dispatched:
    """Deal sequences to replicas in turn and fill micro-batches first-fit by tokens, as plain data loaders do.

    A replica that cannot hold a sequence passes it to the next.
    """
    kinds = strategy.replicas
    held: list[list[int]] = [[] for _ in kinds]
    turn = 0
    for item in range(len(items)):
        while items.tokens[item] > kinds[turn % len(kinds)].max_tokens:
            turn += 1
        held[turn % len(kinds)].append(item)
        turn += 1
    packings = []
    for kind, own in zip(kinds, held, strict=True):
        if own:
            bins = first_fit(own, items.tokens, kind.max_tokens)
            packings.append(packing_of(kind, items.costs_ms(kind), bins))
        else:
            packings.append(EMPTY)
    return Dispatched(kinds, tuple(packings))
