"""The order in which a replica runs its micro-batches: the one with the least simulated time that was found.

An order that rises to the largest micro-batch and falls from there never runs over the closed form
``sum t + (pp - 1) max t``, whatever the times and whatever share of them is forward:

1. The simulated time is the longest of a fixed set of paths through the operations, hence sublinear in the times:
   ``T(x + y) <= T(x) + T(y)`` and ``T(l x) = l T(x)`` for ``l >= 0``.
2. Rising-then-falling times are a sum of non-negative multiples of intervals, vectors that are 1 from one position to
   another and 0 elsewhere, all of which cover the largest micro-batch, so that their closed forms add up to that of the
   whole.
3. An interval of n micro-batches takes ``n + pp - 1``, its closed form. Those of time zero before it delay nothing:
   their backwards wait only for forwards of the warm-up, which run as early as if they stood alone, and what comes
   after them waits for those forwards anyway. Those after it do not either, by the same argument in reversed time,
   under which 1F1B is 1F1B with forward and backward exchanged.

Sorted orders are the two extremes of that family. Tests check point 3 exactly for every interval up to 8 stages and 40
micro-batches with a third of the time forward, which by 1 and 2 covers all times there are at those sizes.
"""

from collections.abc import Sequence

from planner_service.core.simulate import simulate_1f1b

MOST_OPERATIONS = 12_000
"""Operations simulated for one replica before the search ends: about 2 ms."""

LEAST_GAIN = 1e-9
"""Share of the simulated time by which an order must be better to be taken, so that rounding decides nothing."""


class _Search:
    """The best order so far, and what may still be spent on better ones."""

    def __init__(self, num_stages: int, micro_batches_ms: Sequence[float], good_enough_ms: float) -> None:
        self.order: list[int] = []
        self.simulated_ms = float("inf")
        self._num_stages = num_stages
        self._times_ms = micro_batches_ms
        self._good_enough_ms = good_enough_ms
        self._left = MOST_OPERATIONS
        self._cost = 2 * num_stages * len(micro_batches_ms)

    @property
    def may_go_on(self) -> bool:
        """Whether another order may be simulated and is worth it."""
        return self._left >= self._cost and self.simulated_ms > self._good_enough_ms

    def take_if_better(self, order: list[int]) -> bool:
        """Simulate an order and keep it if it is the best."""
        self._left -= self._cost
        simulated = simulate_1f1b(self._num_stages, [self._times_ms[index] for index in order])
        better = simulated < self.simulated_ms * (1 - LEAST_GAIN) or not self.order
        if better:
            self.order, self.simulated_ms = order, simulated
        return better


def best_order(
    num_stages: int, micro_batches_ms: Sequence[float], *, good_enough_ms: float = 0.0
) -> tuple[list[int], float]:
    """Choose the order of micro-batches by 1F1B simulation.

    From the best of four rising-then-falling orders, one micro-batch at a time changes sides, smallest first; then two
    change places, also from the order given where that is better. The result is never slower than the ascending order,
    so it never runs over the closed form, nor than the order given.

    Parameters
    ----------
    num_stages
        Pipeline stages of the replica.
    micro_batches_ms
        Time of each micro-batch on one stage.
    good_enough_ms
        The search ends at an order that takes no longer, for instance because another replica takes that long anyway.

    Returns
    -------
    tuple[list[int], float]
        Indices in the order to run, and its simulated time in ms.
    """
    count = len(micro_batches_ms)
    ascending = sorted(range(count), key=lambda index: (micro_batches_ms[index], index))
    search = _Search(num_stages, micro_batches_ms, good_enough_ms)
    search.take_if_better(ascending)
    if num_stages == 1 or count <= 1 or min(micro_batches_ms) == max(micro_batches_ms):
        return search.order, search.simulated_ms
    _change_sides(search, ascending)
    search.take_if_better(list(range(count)))
    _exchange(search)
    return search.order, search.simulated_ms


def _built(ascending: Sequence[int], is_before: Sequence[bool]) -> list[int]:
    """Put each micro-batch before or after all larger ones."""
    rising = [index for index, before in zip(ascending, is_before, strict=True) if before]
    falling = [index for index, before in zip(ascending, is_before, strict=True) if not before]
    return rising + falling[::-1]


def _change_sides(search: _Search, ascending: Sequence[int]) -> None:
    """Try rising-then-falling orders: small ones at both ends, or the largest in front; then changes of one side."""
    count = len(ascending)
    sides = [True] * count
    for start in ([rank % 2 == 1 for rank in range(count)], [rank % 2 == 0 for rank in range(count)], [False] * count):
        if search.may_go_on and search.take_if_better(_built(ascending, start)):
            sides = start
    improved = True
    while improved:
        improved = False
        for rank in range(count - 1):  # of the largest, both sides are the same order
            if not search.may_go_on:
                return
            changed = [*sides[:rank], not sides[rank], *sides[rank + 1 :]]
            if search.take_if_better(_built(ascending, changed)):
                sides, improved = changed, True


def _exchange(search: _Search) -> None:
    """Try exchanging any two micro-batches, near ones first."""
    count = len(search.order)
    improved = True
    while improved:
        improved = False
        for distance in range(1, count):
            for first in range(count - distance):
                if not search.may_go_on:
                    return
                order = list(search.order)
                order[first], order[first + distance] = order[first + distance], order[first]
                improved |= search.take_if_better(order)
