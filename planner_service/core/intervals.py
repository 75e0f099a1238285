"""Strategies for a data set by intervals of length: the proposal program published with Hydraulis, on our cost model.

The program (arXiv 2412.07894, strategy proposal) divides the lengths of a data set into consecutive intervals and gives
each to replicas of one layout, so that the slowest takes least: with ``t[n][s]`` the least time in which n GPUs run all
sequences up to length s, ``t[n][s] = min over k, m, s' of max(t[n - m g_k][s'], time of (s', s] on m replicas of k)``,
where k must hold length s. The table has the answer for every s at once, and batches whose longest sequence differs get
different strategies, which is the published list of candidates.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from planner_service.core.cost import sequence_ms
from planner_service.core.problem import Floats, Ints, Pool, ReplicaKind, Strategy

MOST_EDGES = 40
"""Ends of intervals that are considered, besides those asked for and the limits of the kinds: all lengths if there are
no more, else lengths at equal shares of the tokens."""

MOST_UNITS = 256
"""Larger clusters are divided into so many units of GPUs, of which every replica takes whole ones."""

REPLICA_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256)
"""Numbers of replicas that an interval may be given to; several intervals in a row may go to one kind."""


@dataclass(frozen=True)
class _Intervals:
    """Ends of intervals in tokens, ascending from 0, and the mean batch's sums up to each of them. Shapes (E,)."""

    ends: Ints
    tokens: Floats
    work_ms: dict[ReplicaKind, Floats]


def _intervals(kinds: Sequence[ReplicaKind], lengths: Ints, counts: Floats, wanted: Sequence[int]) -> _Intervals:
    tokens = np.concatenate([[0.0], np.cumsum(lengths * counts)])
    if len(lengths) <= MOST_EDGES:
        between = lengths
    else:
        between = lengths[np.searchsorted(tokens, np.linspace(0, tokens[-1], MOST_EDGES + 1)[1:-1]) - 1]
    longest = int(lengths[-1])
    limits = [kind.max_tokens for kind in kinds if kind.max_tokens < longest]
    ends = np.unique([0, longest, *limits, *(min(end, longest) for end in wanted), *between])
    upto = np.searchsorted(lengths, ends, side="right")
    return _Intervals(
        ends,
        tokens[upto],
        {kind: np.concatenate([[0.0], np.cumsum(sequence_ms(kind, lengths) * counts)])[upto] for kind in kinds},
    )


def _times_ms(kind: ReplicaKind, intervals: _Intervals, num_replicas: int) -> Floats:
    """Estimate the time of (row's end, column's end] on so many replicas; infinite if it is none or too long for them.

    As in the closed form with the largest micro-batch at the average or one sequence of the greatest length.
    """
    work = (intervals.work_ms[kind][None, :] - intervals.work_ms[kind][:, None]) / num_replicas
    tokens = (intervals.tokens[None, :] - intervals.tokens[:, None]) / num_replicas
    longest_ms = sequence_ms(kind, intervals.ends)
    num_micro_batches = np.maximum(1.0, np.ceil(tokens / kind.max_tokens))
    largest = np.maximum(work / num_micro_batches, np.where(tokens > 0, longest_ms[None, :], 0.0))
    time = np.maximum(work, largest) + kind.c * num_micro_batches + (kind.pp - 1) * (largest + kind.c)
    is_interval = np.triu(np.ones(time.shape, bool), 1)
    return np.where(is_interval & (intervals.ends <= kind.max_tokens)[None, :], time, np.inf)


@dataclass(frozen=True)
class _Part:
    """An interval's replicas: of which kind, how many, and how many units of GPUs they take."""

    kind: ReplicaKind
    num_replicas: int
    num_units: int
    times_ms: Floats


def _parts(kinds: Sequence[ReplicaKind], intervals: _Intervals, num_gpus: int, unit: int) -> list[_Part]:
    """List what an interval can be given to."""
    return [
        _Part(kind, count, kind.num_ranks * count // unit, _times_ms(kind, intervals, count))
        for kind in kinds
        for count in REPLICA_COUNTS
        if kind.num_ranks * count <= num_gpus and kind.num_ranks * count % unit == 0
    ]


def interval_strategies(
    kinds: Sequence[ReplicaKind], pool: Pool, lengths: Ints, counts: Floats, longest: Sequence[int]
) -> list[Strategy]:
    """Propose strategies by the published program.

    Parameters
    ----------
    kinds
        Kinds of the pool's device.
    pool
        GPUs of one type; the program has no notion of several.
    lengths, counts
        The data set's distinct lengths in tokens, ascending, and how many of each a mean batch has. Shapes (D,).
    longest
        Longest lengths (tokens) of the batches to expect: one strategy is proposed for each.

    Returns
    -------
    list[Strategy]
        Distinct strategies, in the order of ``longest``; lengths that nothing holds propose none. Some GPUs may be
        left over.
    """
    if not len(lengths) or not kinds:
        return []
    intervals = _intervals(kinds, lengths, counts, longest)
    unit = gcd(*(kind.num_ranks for kind in kinds))
    while pool.num_gpus // unit > MOST_UNITS:
        unit *= 2
    parts = _parts(kinds, intervals, pool.num_gpus, unit)
    num_units, num_ends = pool.num_gpus // unit, len(intervals.ends)
    least = np.full((num_units + 1, num_ends), np.inf)
    least[:, 0] = 0.0
    chosen = np.full((num_units + 1, num_ends, 2), -1)
    for units in range(1, num_units + 1):
        least[units], chosen[units] = least[units - 1], chosen[units - 1]
        for number, part in enumerate(parts):
            if part.num_units > units:
                continue
            reached = np.maximum(least[units - part.num_units][:, None], part.times_ms)
            start = reached.argmin(axis=0)
            value = reached[start, np.arange(num_ends)]
            better = value < least[units]
            least[units] = np.where(better, value, least[units])
            chosen[units][better] = np.column_stack([np.full(num_ends, number), start])[better]
    # Where a row was taken over from fewer units its choice leaves more units to the rest, which can only help.
    found = []
    for end in np.searchsorted(intervals.ends, np.minimum(longest, intervals.ends[-1])):
        if np.isfinite(least[num_units, end]):
            groups = list(_traced(parts, chosen, num_units, int(end)))
            if groups:
                found.append(Strategy.of(groups))
    return list(dict.fromkeys(found))


def _traced(parts: Sequence[_Part], chosen: Ints, units: int, end: int) -> Iterator[tuple[ReplicaKind, int]]:
    """Follow the choices from the longest interval down."""
    while end > 0:
        number, start = (int(value) for value in chosen[units, end])
        part = parts[number]
        yield part.kind, part.num_replicas
        units, end = units - part.num_units, start
