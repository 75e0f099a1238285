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
since replicas of g_k GPUs each take N together; with GPUs of several types such a term for each type, and where some
numbers of replicas are given or limited the value of the fractional knapsack that they leave (`Fleet.capacity`). The
weights to begin with are those that depend on T: with ``W = 1``
and ``V = share * c / L`` a sequence takes at least ``min over admissible k of g_k (q_k(s) + V_k s) / G_k(T)`` GPUs, and
the sum over the batch is at most N. ``share = 0`` counts work alone; ``share = 1`` charges every token its part of a
full micro-batch's c.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.length_table import LengthTable
from planner_service.core.problem import Floats, Pool, ReplicaKind, Strategy

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of c charged by the token that are tried."""

RELATIVE_TOLERANCE = 1e-9
"""Bisection stops here; bounds are lowered by it so that rounding cannot lift one over the truth."""

LEAST_CAPACITY = 1e-30
"""Capacities below this (ms) count as none; costs below 1e-20 ms are taken for 0 where profiles are read."""

FIRST_GROWTH = 1 / 64
"""First step above a floor, as a share of it; each next one is twice as large, up to doubling. Floors are near."""

COARSE_TOLERANCE = 1e-5
"""Bisection stops here where the best of several bounds is bisected anew."""

GAINED, PROBED = 3e-4, 1e-3
"""Improving a bound ends where it gains less than this; times over it are not probed any closer together than this."""

RANKING_TOLERANCE = 1e-3
"""Bisection stops here where bounds only rank candidates."""

SINGLE_CLASSES = 6
"""Numbers of micro-batches that get a class of their own around the expected one, where few kinds are concerned."""

FEW_SINGLE_CLASSES = 3
"""The same where all kinds of a cluster are."""


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


def _least_time(
    enough: Callable[[float], bool], floor_ms: float, tolerance: float, upper_ms: float = math.inf
) -> float:
    """Largest time shown to be too short, by growing steps and bisection; ``enough`` must be monotone in time.

    Times over ``upper_ms`` are not looked at: a bound that reaches it is as good as any.
    """
    low = floor_ms
    high = max(floor_ms, 1e-9)
    if not enough(high):
        if upper_ms < math.inf and upper_ms > high and not enough(upper_ms):
            return upper_ms * (1 - RELATIVE_TOLERANCE)
        growth = FIRST_GROWTH
        while high < upper_ms and not enough(high):
            low, high = high, min(high * (1 + growth), upper_ms)
            growth = min(2 * growth, 1.0)
        while high - low > tolerance * high:
            middle = 0.5 * (low + high)
            if enough(middle):
                high = middle
            else:
                low = middle
    return low * (1 - RELATIVE_TOLERANCE)


def all_strategies_bound(
    table: LengthTable, pools: Sequence[Pool], shares: Sequence[float] = SHARES, known_ms: float = 0.0
) -> float:
    """Lower bound in ms on the makespan of every strategy of the pools' GPUs made of the table's kinds.

    Every length must fit some kind. The best of several shares is returned, or ``known_ms``, a bound that is proven
    already, if that is higher; each is a proof by itself.
    """
    if not len(table.lengths):
        return 0.0
    num_gpus = sum(pool.num_gpus for pool in pools)
    gpus = np.array([kind.num_ranks for kind in table.kinds], float)
    token_ms = np.array([kind.c / kind.max_tokens for kind in table.kinds])

    def bound(share: float, floor_ms: float, tolerance: float) -> float:
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

        return _least_time(enough, floor_ms, tolerance)

    best, best_ms = shares[0], max(table.floor_ms, known_ms)
    for share in shares:
        # What proves no more than another share is found out by one look.
        found = bound(share, best_ms, COARSE_TOLERANCE)
        if found > best_ms:
            best, best_ms = share, found
    return max(best_ms, bound(best, best_ms, RELATIVE_TOLERANCE))


@dataclass(frozen=True)
class Fleet:
    """Which replicas a bound speaks of: of each kind between some and some number, formed of the GPUs there are.

    Attributes
    ----------
    kinds
        Replica kinds; a table's rows are these, in order.
    fewest, most
        Replicas of each kind that there are at least, and at most (None: as many as the GPUs can form).
    pools
        The GPUs; those of kinds whose number is not fixed suffice.
    """

    kinds: tuple[ReplicaKind, ...]
    fewest: tuple[int, ...]
    most: tuple[int | None, ...]
    pools: tuple[Pool, ...] = ()

    @classmethod
    def of_strategy(cls, strategy: Strategy) -> "Fleet":
        """Take exactly a strategy's replicas."""
        kinds, counts = zip(*strategy.groups, strict=True)
        return cls(kinds, counts, counts)

    @classmethod
    def of_cluster(cls, kinds: Sequence[ReplicaKind], pools: Sequence[Pool]) -> "Fleet":
        """Take any replicas of these kinds."""
        return cls(tuple(kinds), (0,) * len(kinds), (None,) * len(kinds), tuple(pools))

    def gpus_left(self) -> dict[str, int]:
        """GPUs of each device that the fewest replicas leave; negative where they are too many."""
        left = {pool.device: pool.num_gpus for pool in self.pools}
        for kind, fewest in zip(self.kinds, self.fewest, strict=True):
            if kind.device in left:
                left[kind.device] -= fewest * kind.num_ranks
        return left

    def capacity(self, of_each_kind: Sequence[float]) -> float:
        """Most that the replicas can do together, from the most that one of each kind can (whole replicas or parts)."""
        total = sum(most * fewest for most, fewest in zip(of_each_kind, self.fewest, strict=True))
        left: dict[str, float] = dict(self.gpus_left())
        by_worth = sorted(range(len(self.kinds)), key=lambda k: -of_each_kind[k] / self.kinds[k].num_ranks)
        for k in by_worth:
            kind, most = self.kinds[k], self.most[k]
            more = left.get(kind.device, 0.0) / kind.num_ranks
            if most is not None:
                more = min(more, most - self.fewest[k])
            if more > 0:
                total += more * of_each_kind[k]
                left[kind.device] -= more * kind.num_ranks
        return total


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


def bound_with_weights(  # noqa: PLR0913, PLR0917 - what proves, and how far to look
    fleet: Fleet,
    table: LengthTable,
    weights: Weights,
    tolerance: float = RELATIVE_TOLERANCE,
    upper_ms: float = math.inf,
    known_ms: float = 0.0,
) -> float:
    """Lower bound in ms on the makespan of a fleet that these weights prove; the table's rows are its kinds.

    ``known_ms`` is a bound proven otherwise: weights that prove no more are not looked at any closer, and what is
    returned is then it.
    """
    groups = np.array([entry.group for entry in weights.classes])
    work, token = np.array(weights.work), np.array(weights.token)
    per_class = work[:, None] * table.work_ms[groups] + token[:, None] * table.lengths
    firsts = np.searchsorted(groups, np.arange(len(fleet.kinds)))
    ready = np.array(
        [fleet.kinds[entry.group].c * (entry.low + fleet.kinds[entry.group].pp - 1) for entry in weights.classes]
    )
    charged: dict[int, Floats] = {}

    def charged_at(time_ms: float) -> Floats:
        """Least charge of each length on each kind, over the classes that can end in time with their c alone."""
        in_time = ready <= time_ms
        num_ready = int(in_time.sum())  # tells which, since classes become ready one after another
        if num_ready not in charged:
            charged[num_ready] = np.minimum.reduceat(np.where(in_time[:, None], per_class, np.inf), firsts, axis=0)
        return charged[num_ready]

    def enough(time_ms: float) -> bool:
        least = np.where(table.alone_ms <= time_ms, charged_at(time_ms), np.inf).min(axis=0)
        best = [0.0] * len(fleet.kinds)
        for entry, of_work, of_token in zip(weights.classes, weights.work, weights.token, strict=True):
            capacity = capacity_ms(fleet.kinds[entry.group], time_ms, of_work, of_token, entry.low, entry.high)
            best[entry.group] = max(best[entry.group], capacity)
        return bool(least @ table.counts <= fleet.capacity(best))

    floor_ms = max(table.floor_ms, known_ms)
    return max(floor_ms, _least_time(enough, floor_ms, tolerance, upper_ms))


def _uniform_weights(fleet: Fleet, weight: Sequence[float], share: float) -> Weights:
    """One class a kind, each charging the same share of its c by the token."""
    return Weights(
        tuple(CapacityClass(group, 1, None) for group in range(len(fleet.kinds))),
        tuple(weight),
        tuple(value * share * kind.c / kind.max_tokens for kind, value in zip(fleet.kinds, weight, strict=True)),
    )


def quick_strategy_bound(
    strategy: Strategy,
    table: LengthTable,
    shares: Sequence[float] = (0.0, 1.0),
    tolerance: float = RANKING_TOLERANCE,
    upper_ms: float = math.inf,
) -> float:
    """Bound of one strategy from weights that are cheap to guess, for ranking many candidates.

    Each kind is weighed so that the batch costs the same on all of them, or by its ranks. A bound that reaches
    ``upper_ms`` is not raised further.
    """
    if not len(table.lengths):
        return 0.0
    whole_batch = table.work_ms @ table.counts
    evened = [1.0 / value if value > 0 else 1.0 for value in whole_batch]
    fleet = Fleet.of_strategy(strategy)
    by_ranks = [float(kind.num_ranks) for kind in fleet.kinds]
    guesses = [evened] if len(fleet.kinds) == 1 else [evened, by_ranks]
    best_ms = 0.0
    for weight in guesses:
        for share in shares:
            weights = _uniform_weights(fleet, weight, share)
            best_ms = bound_with_weights(fleet, table, weights, tolerance, upper_ms, best_ms)
    return best_ms


def capacity_classes(
    fleet: Fleet, table: LengthTable, time_ms: float, num_single: int = SINGLE_CLASSES
) -> tuple[CapacityClass, ...]:
    """Divide each kind's numbers of micro-batches into classes, finest around what fits the time.

    Parameters
    ----------
    fleet
        The replicas; the table's rows are its kinds.
    table
        Costs of the batch.
    time_ms
        About the makespan that is to be bounded.
    num_single
        Numbers of micro-batches of each kind with a class of their own.
    """
    tokens = float(table.lengths @ table.counts)
    classes: list[CapacityClass] = []
    for group, kind in enumerate(fleet.kinds):
        work_per_token = float(table.work_ms[group] @ table.counts) / tokens + kind.c / kind.max_tokens
        held = time_ms / work_per_token if work_per_token > 0 else tokens
        expected = max(1, round(held / kind.max_tokens))
        low = max(1, expected - num_single // 2 + (1 - num_single % 2))
        if low > 1:
            classes.append(CapacityClass(group, 1, low - 1))
        classes += [CapacityClass(group, v, v) for v in range(low, low + num_single)]
        classes.append(CapacityClass(group, low + num_single, None))
    return tuple(classes)


ChooseWeights = Callable[[Fleet, LengthTable, tuple[CapacityClass, ...], float], Weights | None]
"""Finds weights that prove a time too short; None where its search finds the time long enough."""


def improved_bound(  # noqa: PLR0913, PLR0917 - what is bounded, and how long to try
    fleet: Fleet,
    table: LengthTable,
    known_ms: float,
    choose: ChooseWeights,
    enough_ms: float = math.inf,
    rounds: int = 5,
    probes: int = 6,
) -> float:
    """Raise a lower bound (ms) on the makespan of a fleet by improving the weights a few times.

    Weights found just above a bound may prove hardly more than it, since many do there; those found at a time well
    above prove that time. So where improving stalls below ``enough_ms`` the time between is bisected.

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
    enough_ms
        A bound that is good enough, such as a little under a makespan that has been found.
    rounds, probes
        Most improvements, and most times in between, to try.
    """
    if not len(table.lengths):
        return known_ms
    raising = _Raising(fleet, table, choose, known_ms)
    if enough_ms < math.inf and raising.prove_at(enough_ms):
        rounds = 1
    while rounds and raising.prove_at(raising.bound_ms * (1 + 1e-6)):
        rounds -= 1
    high, time_ms = math.inf, enough_ms
    for _ in range(probes if enough_ms < math.inf else 0):
        if min(high, enough_ms) <= raising.bound_ms * (1 + PROBED):
            break
        time_ms = 0.5 * (raising.bound_ms + min(high, enough_ms))
        high = high if raising.prove_at(time_ms) else time_ms
    return raising.exact_ms()


class _Raising:
    """A bound while it is raised: coarse until the end, since only the best weights need an exact bisection."""

    def __init__(self, fleet: Fleet, table: LengthTable, choose: ChooseWeights, known_ms: float) -> None:
        self._fleet = fleet
        self._table = table
        self._choose = choose
        self._weights: Weights | None = None
        self.bound_ms = known_ms

    def prove_at(self, time_ms: float) -> bool:
        """Find weights for a time and take over their bound if it is higher; tell whether they gained or proved it."""
        classes = capacity_classes(self._fleet, self._table, time_ms)
        weights = self._choose(self._fleet, self._table, classes, time_ms)
        if weights is None:
            return False
        value = bound_with_weights(self._fleet, self._table, weights, COARSE_TOLERANCE, known_ms=self.bound_ms)
        gained = value > self.bound_ms * (1 + GAINED)
        if value > self.bound_ms:
            self.bound_ms, self._weights = value, weights
        return gained or value >= time_ms * (1 - COARSE_TOLERANCE)

    def exact_ms(self) -> float:
        """Return the bound without what coarse bisection left."""
        if self._weights is None:
            return self.bound_ms
        return bound_with_weights(self._fleet, self._table, self._weights, known_ms=self.bound_ms)


def strategy_bound(strategy: Strategy, table: LengthTable, choose: ChooseWeights, enough_ms: float = math.inf) -> float:
    """Lower bound in ms on the makespan of one strategy; the table's rows are its groups, in order.

    Not much is done to raise it over ``enough_ms``.
    """
    known = quick_strategy_bound(strategy, table, SHARES, COARSE_TOLERANCE)
    return improved_bound(Fleet.of_strategy(strategy), table, known, choose, enough_ms)
