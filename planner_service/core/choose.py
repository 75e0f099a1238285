"""Which few of many strategies: those of which the best one for each batch takes least time on average.

That is a facility-location problem (the p-median): batches are clients, strategies are places, makespans are distances.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations
from math import comb

import numpy as np

from planner_service.core.problem import Floats

Chosen = tuple[int, ...]
"""Strategies by number, ascending."""

MOST_ENUMERATED = 20_000
"""Up to so many sets all of them are compared."""

GAIN = 1e-9
"""A set counts as better from this relative gain on."""


def unrestricted(_: Chosen) -> bool:
    """Allow every set."""
    return True


def set_value(makespans_ms: Floats, chosen: Chosen) -> tuple[int, float]:
    """Value of a set, less is better: batches that no strategy of it can run, then the sum of the best of the others.

    Parameters
    ----------
    makespans_ms
        Makespan of each batch (row) on each strategy (column), infinite where it cannot run it. Shape (B, S).
    chosen
        Columns.
    """
    if not chosen:
        return len(makespans_ms), 0.0
    best = makespans_ms[:, list(chosen)].min(axis=1)
    able = np.isfinite(best)
    return int((~able).sum()), float(best[able].sum())


def choose(
    makespans_ms: Floats,
    most: int,
    is_allowed: Callable[[Chosen], bool] = unrestricted,
    starts: Iterable[Sequence[int]] = (),
) -> Chosen:
    """Choose at most ``most`` strategies: all sets are compared if they are few, else by greedy choice and swaps.

    Parameters
    ----------
    makespans_ms
        Makespan of each batch (row) on each strategy (column). Shape (B, S).
    most
        Most strategies to choose, at least 1.
    is_allowed
        Whether a set may be chosen; every subset of such a set may be, too.
    starts
        Sets that the result is not to be worse than, of at most ``most`` strategies, if they are allowed.

    Returns
    -------
    tuple[int, ...]
        The set, without strategies that do not lower its value; empty if no strategy is allowed.
    """
    num_strategies = makespans_ms.shape[1]
    most = min(most, num_strategies)
    if sum(comb(num_strategies, size) for size in range(1, most + 1)) <= MOST_ENUMERATED:
        found = _best_of_all(makespans_ms, most, is_allowed)
    else:
        begun = [_greedy(makespans_ms, most, is_allowed, ())]
        begun += [tuple(sorted(set(start))) for start in starts if is_allowed(tuple(sorted(set(start))))]
        tried = [_swapped(makespans_ms, most, is_allowed, start) for start in begun]
        found = min(tried, key=lambda chosen: (set_value(makespans_ms, chosen), chosen))
    return _without_idle(makespans_ms, found)


def _best_of_all(makespans_ms: Floats, most: int, is_allowed: Callable[[Chosen], bool]) -> Chosen:
    best: Chosen = ()
    best_value = set_value(makespans_ms, best)
    for size in range(1, most + 1):
        for chosen in combinations(range(makespans_ms.shape[1]), size):
            value = set_value(makespans_ms, chosen)
            if _is_better(value, best_value) and is_allowed(chosen):
                best, best_value = chosen, value
    return best


def _is_better(value: tuple[int, float], other: tuple[int, float]) -> bool:
    return value[0] < other[0] or (value[0] == other[0] and value[1] < other[1] * (1 - GAIN))


def _greedy(makespans_ms: Floats, most: int, is_allowed: Callable[[Chosen], bool], start: Chosen) -> Chosen:
    """Add the strategy that gains most until none does."""
    chosen = start
    while len(chosen) < most:
        larger = [tuple(sorted((*chosen, column))) for column in range(makespans_ms.shape[1]) if column not in chosen]
        best = min(
            (candidate for candidate in larger if is_allowed(candidate)),
            key=lambda candidate: (set_value(makespans_ms, candidate), candidate),
            default=chosen,
        )
        if not _is_better(set_value(makespans_ms, best), set_value(makespans_ms, chosen)):
            break
        chosen = best
    return chosen


def _swapped(makespans_ms: Floats, most: int, is_allowed: Callable[[Chosen], bool], start: Chosen) -> Chosen:
    """Exchange one strategy for another while that gains, and add what there is still room for."""
    chosen = _greedy(makespans_ms, most, is_allowed, start)
    while True:
        exchanged = (
            tuple(sorted((*(kept for kept in chosen if kept != given), taken)))
            for given in chosen
            for taken in range(makespans_ms.shape[1])
            if taken not in chosen
        )
        best = min(
            (candidate for candidate in exchanged if is_allowed(candidate)),
            key=lambda candidate: (set_value(makespans_ms, candidate), candidate),
            default=chosen,
        )
        if not _is_better(set_value(makespans_ms, best), set_value(makespans_ms, chosen)):
            return chosen
        chosen = _greedy(makespans_ms, most, is_allowed, best)


def _without_idle(makespans_ms: Floats, chosen: Chosen) -> Chosen:
    """Leave out what does not lower the value, costliest alone first."""
    for column in sorted(chosen, key=lambda column: (set_value(makespans_ms, (column,)), column), reverse=True):
        rest = tuple(kept for kept in chosen if kept != column)
        if rest and not _is_better(set_value(makespans_ms, chosen), set_value(makespans_ms, rest)):
            chosen = rest
    return chosen
