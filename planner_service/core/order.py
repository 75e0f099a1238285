"""The order in which a replica runs its micro-batches: the one with the least simulated time."""

from collections.abc import Sequence

from planner_service.core.simulate import simulate_1f1b

MANY_MICRO_BATCHES = 200
"""Beyond this many the bubble is a small share, and only the sorted orders are compared."""


VERY_MANY_MICRO_BATCHES = 1000
"""Beyond this many only the ascending order is simulated."""


def _arrangements(micro_batches_ms: Sequence[float]) -> list[list[int]]:
    """Orders worth simulating: sorted either way, small ones at both ends, large ones at both ends."""
    ascending = sorted(range(len(micro_batches_ms)), key=lambda index: (micro_batches_ms[index], index))
    descending = ascending[::-1]
    if len(ascending) > VERY_MANY_MICRO_BATCHES:
        return [ascending]
    if len(ascending) > MANY_MICRO_BATCHES:
        return [ascending, descending]
    small_ends = ascending[0::2] + ascending[1::2][::-1]
    large_ends = descending[0::2] + descending[1::2][::-1]
    return [ascending, descending, small_ends, large_ends]


def best_order(num_stages: int, micro_batches_ms: Sequence[float]) -> tuple[list[int], float]:
    """Choose the order of micro-batches by 1F1B simulation.

    Sorted orders never ran over the closed form in any case tried, in contrast to arbitrary ones; a sorted order is
    always among those compared.

    Parameters
    ----------
    num_stages
        Pipeline stages of the replica.
    micro_batches_ms
        Time of each micro-batch on one stage.

    Returns
    -------
    tuple[list[int], float]
        Indices in the order to run, and its simulated time in ms.
    """
    if num_stages == 1 or len(micro_batches_ms) <= 1:
        order = sorted(range(len(micro_batches_ms)), key=lambda index: (micro_batches_ms[index], index))
        return order, simulate_1f1b(num_stages, [micro_batches_ms[index] for index in order])
    best: tuple[list[int], float] | None = None
    for order in _arrangements(micro_batches_ms):
        simulated = simulate_1f1b(num_stages, [micro_batches_ms[index] for index in order])
        if best is None or simulated < best[1]:
            best = (order, simulated)
    assert best is not None  # noqa: S101 - there is always an arrangement
    return best
