"""Which ranks are slower than others of their type, from how long whole replicas took.

A replica is as slow as its slowest rank, so that a rank is at most as slow as the fastest replica that it was lately
in. Replicas of one kind are compared in one and the same iteration, so that what slows all of them does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner_service.core.learn.measured import Kind, Registered, Run, ratio_of, weighted_median
from planner_service.core.learn.state import LearnerState, SlowRank

BECOMES_SLOW = 1.25
"""A rank that takes so many times as long as most counts as slow."""

IS_NOT_SLOW = 1.12
"""A slow rank that takes no more than so many times as long as most does not any more."""

KEEPS_FACTOR = 0.08
"""A factor stays what it is while the estimate is within this share of it."""

SMOOTHING = 0.3
"""Weight of the newest iterations in an estimate."""

IS_ANOTHER = 0.25
"""What is measured is taken at once where it is further from the estimate."""

FEWEST_SEEN = 3
"""Replicas that a rank must have been in, of the recent iterations, before it counts as slow."""

FORGET_AFTER = 100
"""Iterations after which a slow rank that runs nothing is tried again."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A run, how many times as long it took as is believed of its kind, and as others took; None if nobody can tell."""

    run: Run
    ratio: float
    relative: float | None


def compared(state: LearnerState, registered: Registered) -> list[Measured]:
    """Compare the recent runs with those beside them."""
    ratios = [(run, ratio_of(run, state.cost_of(run.kind, registered))) for run in state.recent]
    found = []
    for iteration in state.iterations():
        for device in registered.ranks:
            beside = [(run, ratio) for run, ratio in ratios if (run.iteration, run.kind.device) == (iteration, device)]
            found += _compared_beside(beside, state)
    return found


def _compared_beside(beside: Sequence[tuple[Run, float]], state: LearnerState) -> list[Measured]:
    factors = state.factors
    like_most = [(run, ratio) for run, ratio in beside if factors.keys().isdisjoint(run.ranks)]
    by_kind: dict[Kind, list[tuple[float, float]]] = {}
    for run, ratio in like_most:
        by_kind.setdefault(run.kind, []).append((ratio, len(run.ranks)))
    known = {own.kind for own in state.kinds if own.cost is not None}
    level = level_of(like_most, known)
    found = []
    for run, ratio in beside:
        is_slow = not factors.keys().isdisjoint(run.ranks)
        of_kind = by_kind.get(run.kind, [])
        relative: float | None = None
        if len(of_kind) > (0 if is_slow else 1):
            relative = ratio / weighted_median(of_kind)
        elif run.kind in known and level is not None:
            relative = ratio / level
        elif is_slow:
            relative = max(factors.get(rank, 1.0) for rank in run.ranks)
        found.append(Measured(run, ratio, relative))
    return found


def level_of(like_most: Sequence[tuple[Run, float]], known: set[Kind]) -> float | None:
    """Return how many times as long as believed replicas of one type took in one iteration; of known kinds, if any."""
    pairs = [(ratio, float(len(run.ranks))) for run, ratio in like_most if run.kind in known]
    pairs = pairs or [(ratio, float(len(run.ranks))) for run, ratio in like_most]
    return weighted_median(pairs) if pairs else None


def slow_ranks(
    state: LearnerState, measured: Sequence[Measured], iteration: int, *, is_another: bool
) -> tuple[SlowRank, ...]:
    """Return which ranks are slow now.

    Parameters
    ----------
    state
        What was known before.
    measured
        How recent runs compare.
    iteration
        The newest one.
    is_another
        Whether this is the first that is heard of it.
    """
    by_rank: dict[int, dict[tuple[int, ...], list[float]]] = {}
    seen = {rank for entry in measured if entry.run.iteration == iteration for rank in entry.run.ranks}
    for entry in measured:
        if entry.relative is not None:
            for rank in entry.run.ranks:
                by_rank.setdefault(rank, {}).setdefault(entry.run.ranks, []).append(entry.relative)
    before = {slow.rank: slow for slow in state.slow}
    found = []
    for rank in sorted(by_rank.keys() | before.keys()):
        known = before.get(rank)
        num_unseen = 0 if rank in seen or known is None else known.num_unseen + is_another
        slow = _slow(rank, known, by_rank.get(rank, {}))
        if slow is not None and num_unseen < FORGET_AFTER:
            found.append(replace(slow, num_unseen=num_unseen))
    return tuple(found)


def _slow(rank: int, before: SlowRank | None, relatives: Mapping[tuple[int, ...], Sequence[float]]) -> SlowRank | None:
    """Return a rank if it is slow, given how the replicas did that it was in, by their ranks."""
    num_seen = sum(map(len, relatives.values()))
    if not num_seen or (before is None and num_seen < FEWEST_SEEN):
        return before
    slowness = min(sorted(held)[(len(held) - 1) // 2] for held in relatives.values())
    if before is None:
        return SlowRank(rank, rounded(slowness), slowness) if slowness >= BECOMES_SLOW else None
    if slowness <= IS_NOT_SLOW:
        return None
    is_new = abs(slowness / before.estimate - 1) > IS_ANOTHER
    estimate = slowness if is_new else before.estimate + SMOOTHING * (slowness - before.estimate)
    keeps = abs(estimate / before.factor - 1) <= KEEPS_FACTOR
    return replace(before, factor=before.factor if keeps else rounded(estimate), estimate=estimate)


def rounded(factor: float) -> float:
    """Round a factor to two digits, so that plans change with what matters."""
    return float(f"{factor:.2g}")
