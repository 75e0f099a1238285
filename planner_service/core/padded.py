"""Packing where each sequence of a micro-batch takes as much as its longest.

A micro-batch of n sequences with the longest of m tokens takes ``n m`` tokens and ``c + n (a m^2 + b m)`` ms. Sorted by
length, micro-batches of consecutive sequences are the best: take any division, order its micro-batches by their longest
sequence, and refill them with as many sequences as each had, longest first; then no micro-batch's longest grows. So a
division is a chain of cuts, and a dynamic program over the cuts finds the best one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner_service.core.items import Items
from planner_service.core.problem import Floats, Ints, ReplicaKind
from planner_service.core.rules import PackingRules

MAX_CELLS = 2_000_000
"""Largest program over (cuts x numbers of micro-batches) that is run; beyond it runs are split to reach a number."""

FEW_RUNS = 16
"""Up to this many items every largest micro-batch is tried; beyond, each step lowers it by `STEP` at least."""

STEP = 0.93
MAX_STEPS = 24

Cuts = list[int]
"""Where each run begins, and the end of the last: ``[0, .., n]``."""


@dataclass(frozen=True)
class _Line:
    """A replica's items in descending order of their longest sequence.

    ``begins[i]`` counts the sequences before item i, shape (n + 1,); ``longest`` and ``each_ms`` are per item, the
    latter the cost of one sequence as long as its longest.
    """

    begins: Ints
    longest: Ints
    each_ms: Floats
    c: float
    max_tokens: int

    @classmethod
    def of(cls, kind: ReplicaKind, ordered: Sequence[int], items: Items) -> "_Line":
        sizes = np.array([items.num_sequences[item] for item in ordered], dtype=np.int64)
        longest = np.array([items.longest[item] for item in ordered], dtype=np.int64)
        each = kind.a * longest.astype(float) ** 2 + kind.b * longest
        return cls(np.concatenate([[0], np.cumsum(sizes)]), longest, each, kind.c, kind.max_tokens)

    def __len__(self) -> int:
        return len(self.longest)

    def ends(self, peak_ms: float) -> Ints:
        """For each item the last end of a run that begins with it, within the limit and within a time; shape (n,)."""
        most = self.max_tokens // self.longest
        if peak_ms < np.inf:
            with np.errstate(divide="ignore", invalid="ignore"):
                by_time = np.where(self.each_ms > 0, (peak_ms - self.c) * (1 + 1e-12) / self.each_ms, np.inf)
            most = np.minimum(most, np.clip(by_time, 0, self.begins[-1]).astype(np.int64))
        reached = np.searchsorted(self.begins, self.begins[:-1] + most, side="right") - 1
        return np.asarray(reached, dtype=np.int64)

    def times(self, cuts: Cuts) -> list[float]:
        return [
            self.c + float(self.begins[end] - self.begins[begin]) * float(self.each_ms[begin])
            for begin, end in pairwise(cuts)
        ]


def fewest_padded(kind: ReplicaKind, items: Sequence[int], all_items: Items) -> int:
    """Fewest micro-batches by consecutive runs: the longest possible run, again and again."""
    line = _Line.of(kind, sorted(items), all_items)
    return len(_longest_runs(np.maximum(line.ends(np.inf), np.arange(1, len(line) + 1)))) - 1


def pack_padded(
    kind: ReplicaKind, items: Sequence[int], all_items: Items, rules: PackingRules, exactly: int | None = None
) -> list[list[int]] | None:
    """Divide a replica's items into micro-batches of consecutive lengths with the least makespan found.

    For single sequences, and while the program stays small, the least there is.

    Parameters
    ----------
    kind
        Replica kind.
    items
        The replica's items, at least one; items are numbered in descending order of their longest sequence.
    all_items
        The batch's items.
    rules
        What the number of micro-batches has to keep.
    exactly
        The number of micro-batches, where it is prescribed.

    Returns
    -------
    list[list[int]] or None
        Items of each micro-batch; None if no permitted number of micro-batches holds them.
    """
    ordered = sorted(items)
    line = _Line.of(kind, ordered, all_items)
    best: Cuts | None = None
    best_ms = np.inf
    peak_ms = np.inf
    largest_item = kind.c + float(np.max(np.diff(line.begins) * line.each_ms))
    for _ in range(4 * MAX_STEPS if len(line) <= FEW_RUNS else MAX_STEPS):
        cuts = _shortest(line, kind.pp, rules, exactly, peak_ms)
        if cuts is None:
            break
        times = line.times(cuts)
        total, largest = sum(times), max(times)
        if total + (kind.pp - 1) * largest < best_ms:
            best, best_ms = cuts, total + (kind.pp - 1) * largest
        if kind.pp == 1 or total + (kind.pp - 1) * largest_item >= best_ms:
            break
        peak_ms = largest * (1 - 1e-9 if len(line) <= FEW_RUNS else STEP)
    if best is None:
        return None
    return [ordered[begin:end] for begin, end in pairwise(best)]


def _shortest(line: _Line, pp: int, rules: PackingRules, exactly: int | None, peak_ms: float) -> Cuts | None:
    """Find the division with the least total time whose micro-batches last at most so long."""
    ends = line.ends(peak_ms)
    if np.any(ends <= np.arange(len(line))):
        return None
    cuts = _free_chain(line, ends)
    count = len(cuts) - 1
    wanted = exactly if exactly is not None else rules.permitted(pp, count)
    if count == wanted:
        return cuts
    if exactly is None and rules.permitted(pp) == 1 and rules.count_multiple == 1:
        return cuts
    window = int(np.max(ends - np.arange(len(line))))
    most = wanted if exactly is not None else min(len(line), wanted + rules.count_multiple)
    if len(line) * window * most <= MAX_CELLS and most <= len(line):
        return _counted_chain(line, ends, pp, rules, exactly, most)
    if count > wanted:
        cuts = _longest_runs(ends)
    if len(cuts) - 1 > wanted or wanted > len(line):
        return None
    return _split(line, cuts, wanted)


def _longest_runs(ends: Ints) -> Cuts:
    """Fewest runs: each as long as it may be."""
    cuts = [0]
    while cuts[-1] < len(ends):
        cuts.append(int(ends[cuts[-1]]))
    return cuts


def _free_chain(line: _Line, ends: Ints) -> Cuts:
    """Least total time over any number of runs."""
    size = len(line)
    best = np.full(size + 1, np.inf)
    best[0] = 0.0
    previous = np.zeros(size + 1, dtype=np.int64)
    for begin in range(size):
        reach = slice(begin + 1, int(ends[begin]) + 1)
        total = best[begin] + line.c + (line.begins[reach] - line.begins[begin]) * line.each_ms[begin]
        better = total < best[reach]
        best[reach] = np.where(better, total, best[reach])
        previous[reach] = np.where(better, begin, previous[reach])
    cuts = [size]
    while cuts[-1]:
        cuts.append(int(previous[cuts[-1]]))
    return cuts[::-1]


def _counted_chain(  # noqa: PLR0913, PLR0917 - one step of `_shortest`
    line: _Line, ends: Ints, pp: int, rules: PackingRules, exactly: int | None, most: int
) -> Cuts | None:
    """Least total time over the permitted numbers of runs up to ``most``."""
    size = len(line)
    best = np.full((most + 1, size + 1), np.inf)
    best[0, 0] = 0.0
    previous = np.zeros((most + 1, size + 1), dtype=np.int64)
    for begin in range(size):
        reach = slice(begin + 1, int(ends[begin]) + 1)
        run = line.c + (line.begins[reach] - line.begins[begin]) * line.each_ms[begin]
        total = best[:-1, begin, None] + run[None, :]
        better = total < best[1:, reach]
        best[1:, reach] = np.where(better, total, best[1:, reach])
        previous[1:, reach] = np.where(better, begin, previous[1:, reach])
    permitted = [
        count
        for count in ([exactly] if exactly is not None else range(1, most + 1))
        if (exactly is not None or rules.permits(pp, count)) and np.isfinite(best[count, size])
    ]
    if not permitted:
        return None
    count = min(permitted, key=lambda number: (float(best[number, size]), number))
    cuts = [size]
    while cuts[-1]:
        cuts.append(int(previous[count, cuts[-1]]))
        count -= 1
    return cuts[::-1]


def _split(line: _Line, cuts: Cuts, wanted: int) -> Cuts:
    """Cut runs in two until there are so many; each cut saves the padding of the shorter half."""
    cuts = list(cuts)
    while len(cuts) - 1 < wanted:
        best_gain, best_cut = -1.0, -1
        for begin, end in pairwise(cuts):
            if end - begin < 2:
                continue
            inside = np.arange(begin + 1, end)
            gains = (line.begins[end] - line.begins[inside]) * (line.each_ms[begin] - line.each_ms[inside])
            at = int(np.argmax(gains))
            if float(gains[at]) > best_gain:
                best_gain, best_cut = float(gains[at]), int(inside[at])
        cuts = sorted([*cuts, best_cut])
    return cuts
