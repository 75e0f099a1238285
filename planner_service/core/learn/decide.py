"""Whether plans are made with other coefficients, or other pools of GPUs, from now on: pure, from the state alone."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner_service.core.learn.measured import Cost, Kind, Registered, Sample, weighted_median
from planner_service.core.learn.state import LearnerState, PublishedCost, SlowRank

FAR = 0.10
"""Predictions that differ by this share are worth a version at once."""

NEAR = 0.015
"""Predictions that differ by less are the same; between the two a version waits for half as many samples more."""

FEWEST_ITERATIONS = 4


@dataclass(frozen=True)
class CostChange:
    """One kind's cost before and after, and how far predictions by the registered and by the new one are off.

    Attributes
    ----------
    kind
        Which kind.
    registered, before, after
        Costs.
    num_samples
        Micro-batches that the new cost was made from; 0 if it follows other kinds of its type.
    registered_error, learned_error
        Median absolute error over the samples that are kept, as a share of the measured time; None without samples.
    """

    kind: Kind
    registered: Cost
    before: Cost
    after: Cost
    num_samples: int
    registered_error: float | None
    learned_error: float | None


@dataclass(frozen=True)
class Decision:
    """What plans are to be made with from now on.

    Attributes
    ----------
    reasons
        Sentences for people.
    changes
        Every kind, changed or not.
    slow
        Ranks that are slower than others.
    """

    reasons: tuple[str, ...]
    changes: tuple[CostChange, ...]
    slow: tuple[SlowRank, ...]


def decide(state: LearnerState, registered: Registered) -> Decision | None:
    """Return what changes, or None if nothing that matters does."""
    if state.num_iterations < FEWEST_ITERATIONS:
        return None
    changes = changes_of(state, registered)
    reasons = [reason for change in changes if (reason := _reason(change, state)) is not None]
    published = {slow.rank: slow.factor for slow in state.published_slow}
    if published != state.factors:
        reasons += _slow_reasons(published, state.factors)
    return Decision(tuple(reasons), tuple(changes), state.slow) if reasons else None


def published(state: LearnerState, decision: Decision) -> LearnerState:
    """Return the state once a decision holds."""
    return replace(
        state,
        version=state.version + 1,
        published=tuple(PublishedCost(own.kind, own.after, own.num_samples) for own in decision.changes),
        published_slow=decision.slow,
    )


def changes_of(state: LearnerState, registered: Registered) -> list[CostChange]:
    """Compare what is believed of every kind with what plans are made with."""
    before = {own.kind: own.cost for own in state.published}
    found = []
    for kind in sorted(registered.costs):
        known, given = state.of_kind(kind), registered.costs[kind]
        after = state.cost_of(kind, registered)
        found.append(
            CostChange(
                kind,
                given,
                before.get(kind, given),
                after,
                known.num_samples,
                _error(known.samples, given),
                _error(known.samples, after),
            )
        )
    return found


def _error(samples: Sequence[Sample], cost: Cost) -> float | None:
    errors = [
        (abs(cost.time_ms(squares, tokens) / time_ms - 1), 1.0) for squares, tokens, time_ms in samples if time_ms
    ]
    return weighted_median(errors) if errors else None


def difference(change: CostChange, samples: Sequence[Sample]) -> float:
    """Return how many times as long micro-batches are said to take as before, in the median over usual ones."""
    usual = [(squares, tokens) for squares, tokens, _ in samples] or [(4096.0**2, 4096.0)]
    pairs = [
        (change.after.time_ms(*sums) / before_ms, 1.0)
        for sums in usual
        if (before_ms := change.before.time_ms(*sums)) > 0
    ]
    return weighted_median(pairs) if pairs else 1.0


def _reason(change: CostChange, state: LearnerState) -> str | None:
    """Say why a kind's cost is worth a version; None if it is not."""
    known = state.of_kind(change.kind)
    ratio = difference(change, known.samples)
    spread = _spread(change, known.samples)
    if spread < NEAR:
        return None
    num_before = next((own.num_samples for own in state.published if own.kind == change.kind), 0)
    is_worth = known.cost is not None and change.num_samples >= 1.5 * num_before
    if abs(ratio - 1) < FAR and not is_worth:
        return None
    than = "than plans were made with" if state.version else "than registered"
    by = f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'} {than}"
    if abs(ratio - 1) < 0.005:
        by = f"as much as before in the middle, and up to {spread:.0%} more or less elsewhere"
    why = f"{change.num_samples} micro-batches" if known.cost is not None else "other layouts of this type"
    return f"micro-batches of {change.kind} take {by} (from {why})"


def _spread(change: CostChange, samples: Sequence[Sample]) -> float:
    """Return by what share predictions differ where they do most, from short to long usual micro-batches."""
    usual = sorted((squares, tokens) for squares, tokens, _ in samples) or [(4096.0**2, 4096.0)]
    asked = [usual[(len(usual) - 1) * step // 4] for step in range(5)]
    return max(
        abs(change.after.time_ms(*sums) / before_ms - 1) if (before_ms := change.before.time_ms(*sums)) > 0 else 0.0
        for sums in asked
    )


def _slow_reasons(before: dict[int, float], after: dict[int, float]) -> list[str]:
    reasons = []
    for factor in sorted(set(after.values())):
        ranks = [rank for rank, own in after.items() if own == factor and before.get(rank) != factor]
        if ranks:
            reasons.append(f"ranks {spans(ranks)} take {factor:g} times as long as others of their type")
    back = [rank for rank in before if rank not in after]
    if back:
        reasons.append(f"ranks {spans(back)} are as fast as others again")
    return reasons


def spans(ranks: Sequence[int]) -> str:
    """Write ranks as people do, such as ``0-7,12``."""
    found: list[list[int]] = []
    for rank in sorted(ranks):
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in found)
