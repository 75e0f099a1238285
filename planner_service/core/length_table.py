"""What the batch's lengths cost on some kinds of replica, in a table that bounds are computed from."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.cost import sequence_ms
from planner_service.core.problem import Batch, Floats, Ints, ReplicaKind, Strategy

MAX_GROUPS = 1024
"""Groups of neighbouring lengths that a table has at most; up to this many distinct lengths each is a group."""

RANKING_GROUPS = 64
"""Groups of neighbouring lengths where bounds only rank candidates."""


@dataclass(frozen=True)
class LengthTable:
    """Costs of the batch's distinct lengths on some kinds; rows are kinds, columns lengths.

    Very many lengths are grouped, without weakening a bound by more than a hundred-thousandth or so. A sequence of
    length s between ``low`` and ``high`` counts as ``(high - s) / (high - low)`` of one of length ``low`` and the rest
    of one of length ``high``: that keeps s and puts ``(high - s)(s - low)`` too much on s^2. Bounds add up the least of
    some sums ``A s^2 + B s``, which is concave, homogeneous and non-decreasing in (s^2, s); so counts scaled by one
    minus the largest such excess (relative) give no more than the true sum. A whole group runs where its shortest
    length does.

    Attributes
    ----------
    work_ms
        ``q_k(s)``. Shape (K, D).
    alone_ms
        ``p_k (c_k + q_k(s))``, infinite where the sequence does not fit. Shape (K, D).
    lengths
        Occupied lengths in tokens, ascending. Shape (D,).
    counts
        Sequences of each length, fractional where lengths are grouped. Shape (D,).
    """

    kinds: tuple[ReplicaKind, ...]
    work_ms: Floats
    alone_ms: Floats
    lengths: Floats
    counts: Floats

    @classmethod
    def of(cls, kinds: Sequence[ReplicaKind], batch: Batch, max_groups: int = MAX_GROUPS) -> "LengthTable":
        """Tabulate a batch for some kinds; the longest length always stands alone, in the last column."""
        lengths, runs_as, counts = _grouped(batch.lengths, batch.counts, max_groups)
        work = np.stack([sequence_ms(kind, lengths) for kind in kinds])
        alone = np.stack(
            [
                np.where(runs_as <= kind.max_tokens, kind.pp * (kind.c + sequence_ms(kind, runs_as)), np.inf)
                for kind in kinds
            ]
        )
        return cls(tuple(kinds), work, alone, lengths.astype(float), counts)

    def rows(self, strategy: Strategy) -> "LengthTable":
        """Select the rows of a strategy's groups, in their order."""
        return self.of_rows([self.kinds.index(kind) for kind, _ in strategy.groups])

    def of_rows(self, picked: Sequence[int]) -> "LengthTable":
        """Select rows by number."""
        return LengthTable(
            tuple(self.kinds[row] for row in picked),
            self.work_ms[list(picked)],
            self.alone_ms[list(picked)],
            self.lengths,
            self.counts,
        )

    @property
    def floor_ms(self) -> float:
        """Time below which some sequence runs nowhere."""
        return float(self.alone_ms.min(axis=0).max()) if len(self.lengths) else 0.0


def _grouped(lengths: Ints, counts: Ints, max_groups: int) -> tuple[Ints, Ints, Floats]:
    """Group neighbouring lengths: columns' lengths, the lengths that say where they run, and counts."""
    if len(lengths) <= max_groups:
        return lengths, lengths, counts.astype(float)
    tokens = np.cumsum(lengths * counts.astype(float))
    edges = np.searchsorted(tokens, np.linspace(0, tokens[-1], max_groups)[1:-1])
    starts = np.unique(np.concatenate([[0], edges, [len(lengths) - 1]]))
    group = np.searchsorted(starts, np.arange(len(lengths)), side="right") - 1
    low, high = lengths[starts], lengths[np.append(starts[1:] - 1, len(lengths) - 1)]
    below, above = lengths - low[group], high[group] - lengths
    share_high = below / np.maximum(high - low, 1)[group]
    excess = below * above / (lengths.astype(float) ** 2 + below * above)
    scale = 1.0 - np.maximum.reduceat(excess, starts)
    on_low = np.add.reduceat((1.0 - share_high) * counts, starts) * scale
    on_high = np.add.reduceat(share_high * counts, starts) * scale
    return np.ravel(np.column_stack([low, high])), np.repeat(low, 2), np.ravel(np.column_stack([on_low, on_high]))
