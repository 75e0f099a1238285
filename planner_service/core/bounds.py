"""Proven lower bounds on the makespan, for one strategy and over all strategies of N GPUs.

What one replica can do in time T. With work S (ms, without the c of each micro-batch), N tokens and v micro-batches
of at most L tokens, a replica of p stages needs at least ``S + c v + (p - 1)(S / v + c)``, since its largest
micro-batch is at least the average. Within T therefore ``S <= f(v) = (T - c (v + p - 1)) v / (v + p - 1)`` and
``N <= v L``, and for any weights ``W S + V N <= G(T) = max over v of W f(v) + V L v``. A sequence of length s runs on
the kind only if ``s <= L`` and ``p (c + a s^2 + b s) <= T``.

One strategy. Divide what a replica may do into classes by its number of micro-batches, ``low <= v <= high``. For any
weights ``W_r, V_r >= 0`` of the classes r, a batch that is done in time T satisfies
``sum over s of min over r of W_r q_k(s) + V_r s <= sum over k of n_k max over r of k of G_r(T)``, admissible kinds
only on the left. The left side falls and the right side grows with T, so the least T that satisfies it bounds every
plan, whatever the weights: a linear program chooses good ones, and the bound's proof does not rest on it.

All strategies of N GPUs. The same inequality with ``N * max over k of (max over r of k of G_r(T)) / g_k`` on the right,
since replicas of g_k GPUs each take N together. The weights to begin with are those that depend on T: with ``W = 1``
and ``V = share * c / L`` a sequence takes at least ``min over admissible k of g_k (q_k(s) + V_k s) / G_k(T)`` GPUs, and
the sum over the batch is at most N. ``share = 0`` counts work alone; ``share = 1`` charges every token its part of a
full micro-batch's c.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.cost import sequence_ms
from planner_service.core.problem import Batch, Floats, Ints, ReplicaKind, Strategy

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of c charged by the token that are tried."""

RELATIVE_TOLERANCE = 1e-9
"""Bisection stops here; bounds are lowered by it so that rounding cannot lift one over the truth."""

LEAST_CAPACITY = 1e-30
"""Capacities below this (ms) count as none; costs below 1e-20 ms are taken for 0 where profiles are read."""

RANKING_TOLERANCE = 1e-3
"""Bisection stops here where bounds only rank candidates."""

MAX_GROUPS = 1024
"""Groups of neighbouring lengths that a table has at most; up to this many distinct lengths each is a group."""

RANKING_GROUPS = 64
"""Groups of neighbouring lengths where bounds only rank candidates."""

SINGLE_CLASSES = 6
"""Numbers of micro-batches that get a class of their own around the expected one."""


def capacity_ms(  # noqa: PLR0913, PLR0917 - the formula's own symbols
    kind: ReplicaKind, time_ms: float, work: float = 1.0, token: float = 0.0, low: int = 1, high: int | None = None
) -> float:
    """Most ``work * S + token * N`` that one replica can do within a time.

    Parameters
    ----------
    kind
        Replica kind.
    time_ms
        Time T.
    work, token
        Weights of work (per ms) and of tokens (ms per token). ``token`` must be 0 where c is 0 and ``high`` is None.
    low, high
        Fewest and most micro-batches; None for any number.

    Returns
    -------
    float
        ``max over v of work f(v) + token L v``; 0 where no number of micro-batches ends in time.
    """
    stages_more = kind.pp - 1
    most = math.inf if high is None else float(high)
    if kind.c > 0:
        most = min(most, math.floor(time_ms / kind.c - stages_more + RELATIVE_TOLERANCE))
    if most < low or time_ms < 0:
        return 0.0
    gained, charged = token * kind.max_tokens, work * kind.c

    def at(v: float) -> float:
        return work * time_ms * (v / (v + stages_more)) + (gained - charged) * v

    if most == math.inf and charged <= gained:
        return work * time_ms  # more and more micro-batches: the bubble vanishes and they cost nothing
    if stages_more == 0 or charged <= gained:
        return max(at(float(low)), at(most))
    peak = math.sqrt(work * time_ms * stages_more / (charged - gained)) - stages_more
    nearest = min(max(math.floor(peak), low), most)
    return max(at(float(nearest)), at(float(min(nearest + 1, most))))


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
        picked = [self.kinds.index(kind) for kind, _ in strategy.groups]
        return LengthTable(
            tuple(self.kinds[row] for row in picked),
            self.work_ms[picked],
            self.alone_ms[picked],
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


def _least_time(enough: Callable[[float], bool], floor_ms: float, tolerance: float) -> float:
    """Largest time shown to be too short, by doubling and bisection; ``enough`` must be monotone in time."""
    low = floor_ms
    high = max(floor_ms, 1e-9)
    if not enough(high):
        while not enough(high):
            low, high = high, high * 2
        while high - low > tolerance * high:
            middle = 0.5 * (low + high)
            if enough(middle):
                high = middle
            else:
                low = middle
    return low * (1 - RELATIVE_TOLERANCE)


def all_strategies_bound(table: LengthTable, num_gpus: int, shares: Sequence[float] = SHARES) -> float:
    """Lower bound in ms on the makespan of every strategy of ``num_gpus`` GPUs made of the table's kinds.

    Every length must fit some kind. The best of several shares is returned; each is a proof by itself.
    """
    if not len(table.lengths):
        return 0.0
    gpus = np.array([kind.num_ranks for kind in table.kinds], float)
    token_ms = np.array([kind.c / kind.max_tokens for kind in table.kinds])

    def bound(share: float) -> float:
        charged = gpus[:, None] * (table.work_ms + share * token_ms[:, None] * table.lengths)

        def enough(time_ms: float) -> bool:
            capacity = np.array(
                [
                    capacity_ms(kind, time_ms, 1.0, share * charge)
                    for kind, charge in zip(table.kinds, token_ms, strict=True)
                ]
            )
            usable = (table.alone_ms <= time_ms) & (capacity > LEAST_CAPACITY)[:, None]
            per_sequence = np.where(usable, charged / np.maximum(capacity, LEAST_CAPACITY)[:, None], np.inf).min(axis=0)
            return bool(per_sequence @ table.counts <= num_gpus)

        return _least_time(enough, table.floor_ms, RELATIVE_TOLERANCE)

    return max(bound(share) for share in shares)


@dataclass(frozen=True)
class Fleet:
    """Which replicas a bound speaks of: exactly those of a strategy, or any that a number of GPUs can form.

    Attributes
    ----------
    kinds
        Replica kinds; a table's rows are these, in order.
    counts
        Replicas of each kind; None for any.
    num_gpus
        GPUs to form replicas of, where ``counts`` is None.
    """

    kinds: tuple[ReplicaKind, ...]
    counts: tuple[int, ...] | None
    num_gpus: int

    @classmethod
    def of_strategy(cls, strategy: Strategy) -> "Fleet":
        """Take exactly a strategy's replicas."""
        kinds, counts = zip(*strategy.groups, strict=True)
        return cls(kinds, counts, strategy.num_ranks)

    @classmethod
    def of_cluster(cls, kinds: Sequence[ReplicaKind], num_gpus: int) -> "Fleet":
        """Take any replicas of these kinds."""
        return cls(tuple(kinds), None, num_gpus)

    def capacity(self, of_each_kind: Sequence[float]) -> float:
        """Most that the replicas can do together, from the most that one of each kind can."""
        if self.counts is not None:
            return sum(most * count for most, count in zip(of_each_kind, self.counts, strict=True))
        return self.num_gpus * max(most / kind.num_ranks for most, kind in zip(of_each_kind, self.kinds, strict=True))


@dataclass(frozen=True, slots=True)
class CapacityClass:
    """Replicas of a fleet's kind number ``group`` that run ``low`` to ``high`` micro-batches (None: any number)."""

    group: int
    low: int
    high: int | None


@dataclass(frozen=True)
class Weights:
    """A proof of a fleet's bound: for each class a weight of its work and one of its tokens.

    Classes are in the order of the kinds, and those of one kind cover every number of micro-batches from 1.
    """

    classes: tuple[CapacityClass, ...]
    work: tuple[float, ...]
    token: tuple[float, ...]


def bound_with_weights(
    fleet: Fleet, table: LengthTable, weights: Weights, tolerance: float = RELATIVE_TOLERANCE
) -> float:
    """Lower bound in ms on the makespan of a fleet that these weights prove; the table's rows are its kinds."""
    groups = np.array([entry.group for entry in weights.classes])
    work, token = np.array(weights.work), np.array(weights.token)
    per_class = work[:, None] * table.work_ms[groups] + token[:, None] * table.lengths
    firsts = np.searchsorted(groups, np.arange(len(fleet.kinds)))
    charged = np.minimum.reduceat(per_class, firsts, axis=0)

    def enough(time_ms: float) -> bool:
        least = np.where(table.alone_ms <= time_ms, charged, np.inf).min(axis=0)
        best = [0.0] * len(fleet.kinds)
        for entry, of_work, of_token in zip(weights.classes, weights.work, weights.token, strict=True):
            capacity = capacity_ms(fleet.kinds[entry.group], time_ms, of_work, of_token, entry.low, entry.high)
            best[entry.group] = max(best[entry.group], capacity)
        return bool(least @ table.counts <= fleet.capacity(best))

    return _least_time(enough, table.floor_ms, tolerance)


def _uniform_weights(fleet: Fleet, weight: Sequence[float], share: float) -> Weights:
    """One class a kind, each charging the same share of its c by the token."""
    return Weights(
        tuple(CapacityClass(group, 1, None) for group in range(len(fleet.kinds))),
        tuple(weight),
        tuple(value * share * kind.c / kind.max_tokens for kind, value in zip(fleet.kinds, weight, strict=True)),
    )


def quick_strategy_bound(
    strategy: Strategy, table: LengthTable, shares: Sequence[float] = (0.0, 1.0), tolerance: float = RANKING_TOLERANCE
) -> float:
    """Bound of one strategy from weights that are cheap to guess, for ranking many candidates.

    Each kind is weighed so that the batch costs the same on all of them, or by its ranks.
    """
    if not len(table.lengths):
        return 0.0
    whole_batch = table.work_ms @ table.counts
    evened = [1.0 / value if value > 0 else 1.0 for value in whole_batch]
    fleet = Fleet.of_strategy(strategy)
    by_ranks = [float(kind.num_ranks) for kind in fleet.kinds]
    guesses = [evened] if len(fleet.kinds) == 1 else [evened, by_ranks]
    return max(
        bound_with_weights(fleet, table, _uniform_weights(fleet, weight, share), tolerance)
        for weight in guesses
        for share in shares
    )


def capacity_classes(fleet: Fleet, table: LengthTable, time_ms: float) -> tuple[CapacityClass, ...]:
    """Divide each kind's numbers of micro-batches into classes, finest around what fits the time.

    Parameters
    ----------
    fleet
        The replicas; the table's rows are its kinds.
    table
        Costs of the batch.
    time_ms
        About the makespan that is to be bounded.
    """
    tokens = float(table.lengths @ table.counts)
    classes: list[CapacityClass] = []
    for group, kind in enumerate(fleet.kinds):
        work_per_token = float(table.work_ms[group] @ table.counts) / tokens + kind.c / kind.max_tokens
        held = time_ms / work_per_token if work_per_token > 0 else tokens
        expected = max(1, round(held / kind.max_tokens))
        low = max(1, expected - SINGLE_CLASSES // 2 + 1)
        if low > 1:
            classes.append(CapacityClass(group, 1, low - 1))
        classes += [CapacityClass(group, v, v) for v in range(low, low + SINGLE_CLASSES)]
        classes.append(CapacityClass(group, low + SINGLE_CLASSES, None))
    return tuple(classes)


ChooseWeights = Callable[[Fleet, LengthTable, tuple[CapacityClass, ...], float], Weights | None]
"""Finds weights that prove a time too short; None where its search finds the time long enough."""


def improved_bound(fleet: Fleet, table: LengthTable, known_ms: float, choose: ChooseWeights, rounds: int = 5) -> float:
    """Raise a lower bound (ms) on the makespan of a fleet by improving the weights a few times.

    Parameters
    ----------
    fleet
        The replicas; the table's rows are its kinds.
    table
        Costs of the batch on those kinds.
    known_ms
        A bound that is proven already.
    choose
        Source of weights, such as the duals of a linear program.
    rounds
        Most improvements to try.
    """
    if not len(table.lengths):
        return known_ms
    best = known_ms
    classes = capacity_classes(fleet, table, best)
    for _ in range(rounds):
        weights = choose(fleet, table, classes, best * (1 + 1e-6))
        if weights is None:
            break
        value = bound_with_weights(fleet, table, weights)
        if value <= best * (1 + 1e-5):
            return max(best, value)
        best = value
    return best


def strategy_bound(strategy: Strategy, table: LengthTable, choose: ChooseWeights) -> float:
    """Lower bound in ms on the makespan of one strategy; the table's rows are its groups, in order."""
    known = quick_strategy_bound(strategy, table, SHARES, RELATIVE_TOLERANCE)
    return improved_bound(Fleet.of_strategy(strategy), table, known, choose)
