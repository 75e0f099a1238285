"""Strategies near others: fractional numbers of replicas made whole, and replicas exchanged for other kinds."""

from collections.abc import Iterator, Sequence

from planner_service.core.problem import Pool, ReplicaKind, Strategy

Counts = tuple[int, ...]
"""Replicas of each kind."""

ALMOST_WHOLE = 0.05
"""A fractional number of replicas this little below a whole one is rounded up to it."""


class Cluster:
    """The kinds and GPUs that strategies are made of.

    Parameters
    ----------
    kinds
        Replica kinds; strategies are written as their numbers, in this order.
    pools
        The GPUs by type.
    """

    def __init__(self, kinds: Sequence[ReplicaKind], pools: Sequence[Pool]) -> None:
        self.kinds = tuple(kinds)
        self._ranks = tuple(kind.num_ranks for kind in kinds)
        self._num_gpus = {pool.device: pool.num_gpus for pool in pools}
        self._of_device = {
            pool.device: sorted(
                (k for k, kind in enumerate(kinds) if kind.device == pool.device),
                key=lambda k: (-kinds[k].num_ranks, kinds[k].layout),
            )
            for pool in pools
        }

    def strategy(self, counts: Counts) -> Strategy:
        """Turn numbers of replicas into a strategy."""
        return Strategy.of((kind, count) for kind, count in zip(self.kinds, counts, strict=True) if count)

    def counts(self, strategy: Strategy) -> Counts:
        """Turn a strategy into numbers of replicas."""
        by_kind = dict(strategy.groups)
        return tuple(by_kind.get(kind, 0) for kind in self.kinds)

    def left(self, counts: Counts, device: str) -> int:
        """GPUs of a device that no replica takes."""
        taken = sum(counts[k] * self._ranks[k] for k in self._of_device[device])
        return self._num_gpus[device] - taken

    def fills(self, counts: Counts, device: str) -> Iterator[Counts]:
        """Fill the GPUs left of a device: as many replicas as fit of one kind, then of smaller ones."""
        own = self._of_device[device]
        for first in own:
            left = self.left(counts, device)
            if self._ranks[first] > left:
                continue
            filled = list(counts)
            for k in [first, *(k for k in own if self._ranks[k] < self._ranks[first])]:
                filled[k] += left // self._ranks[k]
                left %= self._ranks[k]
            yield tuple(filled)

    def whole(self, fractional: Sequence[float]) -> Iterator[Counts]:
        """Round fractional numbers of replicas down, or the largest parts up, and fill the GPUs that this leaves."""
        down = [int(value + ALMOST_WHOLE) for value in fractional]
        parts = sorted(range(len(down)), key=lambda k: (down[k] - fractional[k], k))
        partial = [k for k in parts if fractional[k] - down[k] > ALMOST_WHOLE][:4]
        for chosen in range(1 << len(partial)):
            counts = list(down)
            for bit, k in enumerate(partial):
                counts[k] += chosen >> bit & 1
            yield from self.completed(tuple(counts))

    def completed(self, counts: Counts) -> Iterator[Counts]:
        """Fill every device; nothing if the replicas take more GPUs than there are."""
        found = [counts]
        for device in self._of_device:
            if self.left(counts, device) < 0:
                return
            found = [filled for partly in found for filled in (list(self.fills(partly, device)) or [partly])]
        yield from found

    def neighbours(self, counts: Counts) -> Iterator[Counts]:
        """Give up some replicas of one kind, or one of each of two kinds, and fill their GPUs by others."""
        present = [k for k, count in enumerate(counts) if count]
        for k in present:
            for given in sorted({1, 2, 3, counts[k] // 4, counts[k] // 2, counts[k]}):
                if 0 < given <= counts[k]:
                    yield from self._refilled(counts, {k: given})
        for position, k in enumerate(present):
            for other in present[position + 1 :]:
                if self.kinds[k].device == self.kinds[other].device:
                    yield from self._refilled(counts, {k: 1, other: 1})

    def _refilled(self, counts: Counts, given: dict[int, int]) -> Iterator[Counts]:
        kept = list(counts)
        for k, count in given.items():
            kept[k] -= count
        if min(kept) < 0:
            return
        device = self.kinds[next(iter(given))].device
        own = self._of_device[device]
        yield from self.fills(tuple(kept), device)
        left = self.left(tuple(kept), device)
        for k in own:  # one of a kind, the rest by each other
            if self._ranks[k] < left:
                one = list(kept)
                one[k] += 1
                yield from self.fills(tuple(one), device)
