"""Which constraint cannot hold, and with which numbers."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.faults import PlanningFault
from planner_service.core.problem import Batch, GroupRow, Ints, Strategy
from planner_service.core.rules import PackingRules

MOST_NAMED = 3
"""Strategies named in a fault."""


def occupied(length: int, alignment: int) -> int:
    """Round a length up to the alignment, in tokens."""
    return -(-length // alignment) * alignment


def group_tokens(group: GroupRow, alignment: int, *, is_padded: bool) -> int:
    """Tokens that a group takes in a micro-batch of its own."""
    lengths = [occupied(length, alignment) for length in group.lengths]
    return max(lengths) * len(lengths) if is_padded else sum(lengths)


@dataclass(frozen=True)
class Demand:
    """A batch as what has to be placed whole: single sequences and atomic groups.

    Attributes
    ----------
    tokens, counts
        Tokens that each sort of unit takes, and how many there are. Shape (U,).
    largest
        The largest unit in words.
    has_groups
        Whether some units are groups.
    """

    tokens: Ints
    counts: Ints
    largest: str
    has_groups: bool

    @classmethod
    def of(cls, batch: Batch, groups: Sequence[GroupRow], rules: PackingRules) -> "Demand":
        """Count the units of a batch."""
        counts = batch.counts.copy()
        index_of = {row.length: int(index) for row, index in zip(batch.rows, batch.length_of_row, strict=True)}
        for group in groups:
            for length in group.lengths:
                counts[index_of[length]] -= group.count
        sizes = [group_tokens(group, batch.alignment, is_padded=rules.is_padded) for group in groups]
        tokens = np.concatenate([batch.lengths[counts > 0], np.array(sizes, dtype=np.int64)])
        numbers = np.concatenate([counts[counts > 0], np.array([group.count for group in groups], dtype=np.int64)])
        largest = "no sequence"
        if len(tokens):
            at = int(np.argmax(tokens)) - (len(tokens) - len(groups))
            largest = _described(groups[at], rules) if at >= 0 else "the longest sequence"
        return cls(tokens, numbers, largest, bool(groups))

    @property
    def num_units(self) -> int:
        """Units to place."""
        return int(self.counts.sum())

    @property
    def num_tokens(self) -> int:
        """Tokens that all units take at least."""
        return sum(int(tokens) * int(count) for tokens, count in zip(self.tokens, self.counts, strict=True))

    @property
    def most_tokens(self) -> int:
        """Tokens of the largest unit."""
        return int(self.tokens.max()) if len(self.tokens) else 0

    @property
    def what(self) -> str:
        """The units in words, with their number."""
        noun = "sequences and atomic groups" if self.has_groups else "sequences"
        return f"{self.num_units} {noun}"

    def fewest_micro_batches(self, max_tokens: int) -> int:
        """Micro-batches of so many tokens that are needed at least: two units of over half of it never share one."""
        over_half = int(self.counts[2 * self.tokens > max_tokens].sum())
        return max(-(-self.num_tokens // max_tokens), over_half)


def _described(group: GroupRow, rules: PackingRules) -> str:
    lengths = ", ".join(map(str, group.lengths[:8])) + (", .." if len(group.lengths) > 8 else "")
    padded = f", padded to {max(group.lengths)} each" if rules.is_padded else ""
    return f"an atomic group of {group.source} ({lengths} tokens{padded})"


def why_infeasible(strategy: Strategy, demand: Demand, rules: PackingRules) -> str | None:
    """Say which rule a strategy cannot keep with this batch, whatever the assignment.

    Parameters
    ----------
    strategy
        The strategy.
    demand
        The units of the batch (`Demand.of`).
    rules
        The rules of packing.

    Returns
    -------
    str or None
        A clause with the strategy as its subject; None if nothing speaks against it, which is no proof.
    """
    if demand.most_tokens > strategy.max_tokens:
        return (
            f"holds at most {strategy.max_tokens} tokens a micro-batch but {demand.largest} takes {demand.most_tokens}"
        )
    if demand.num_units == 0:
        return (
            None if rules.idle_allowed else "would leave every replica idle, which is forbidden: there are 0 sequences"
        )
    return _too_few_units(strategy, demand, rules)


def _too_few_units(strategy: Strategy, demand: Demand, rules: PackingRules) -> str | None:
    num_replicas, units = strategy.num_replicas, demand.num_units
    largest = max(kind.max_tokens for kind, _ in strategy.groups)
    fewest = demand.fewest_micro_batches(largest)
    if rules.equal_counts:
        count = rules.common(strategy, -(-fewest // num_replicas))
        if count * num_replicas > units:
            return _short(strategy, demand, f"{num_replicas} replicas with {count} micro-batches each", count)
        return None
    if not rules.may_idle:
        needed = sum(rules.permitted(kind.pp) * num for kind, num in strategy.groups)
        if needed > units:
            counts = sorted({rules.permitted(kind.pp) for kind, _ in strategy.groups})
            each = " or ".join(map(str, counts))
            what = f"{num_replicas} replicas with at least {each} micro-batches each, none of them idle,"
            return _short(strategy, demand, what, needed // num_replicas, needed)
    least = min(rules.permitted(kind.pp) for kind, _ in strategy.groups if kind.max_tokens >= demand.most_tokens)
    if least > units:
        what = f"a busy replica runs {least} micro-batches or more"
        if rules.count_multiple > 1:
            what += f", a multiple of {rules.count_multiple}"
        return f"has too few sequences: {what}, none of them empty, but there are {demand.what}"
    needed = -(-fewest // rules.count_multiple) * rules.count_multiple
    if needed > units:
        what = f"micro-batches in multiples of {rules.count_multiple}, of which the limits ask for {fewest},"
        return _short(strategy, demand, what, needed, needed)
    return None


def _short(strategy: Strategy, demand: Demand, what: str, count: int, needed: int | None = None) -> str:
    needed = count * strategy.num_replicas if needed is None else needed
    return f"has too few sequences: {what} need {needed}, none of them empty, but there are {demand.what}"


def infeasible_fault(
    batch: Batch, groups: Sequence[GroupRow], rules: PackingRules, strategies: Iterable[Strategy]
) -> PlanningFault:
    """Build the fault for a batch that no strategy can run under the rules.

    Parameters
    ----------
    batch, groups
        What was to be placed.
    rules
        The rules of packing.
    strategies
        Those that were tried; the first that a reason is known for is named.

    Returns
    -------
    PlanningFault
        To be raised by the caller.
    """
    demand = Demand.of(batch, groups, rules)
    tried = list(dict.fromkeys(strategies))
    reasons = [(str(s), reason) for s in tried if (reason := why_infeasible(s, demand, rules)) is not None]
    if reasons:
        return constraint_fault(reasons, len(tried), demand.num_units, rules)
    named = ", ".join(map(str, tried[:MOST_NAMED])) + (", .." if len(tried) > MOST_NAMED else "")
    return PlanningFault(
        "constraint-infeasible",
        f"no packing of {demand.what} was found that keeps the constraints ({rules}) within the limits of {named}",
        _remedy(rules),
        num_sequences=batch.num_sequences,
        num_units=demand.num_units,
        constraints=str(rules),
    )


def constraint_fault(
    reasons: Sequence[tuple[str, str]], num_tried: int, num_units: int, rules: PackingRules
) -> PlanningFault:
    """Build the fault from known reasons, as (strategy, clause)."""
    name, reason = reasons[0]
    more = f" (and {num_tried - 1} more strategies cannot either)" if num_tried > 1 else ""
    return PlanningFault(
        "constraint-infeasible",
        f"strategy {name} {reason}{more}",
        _remedy(rules),
        num_units=num_units,
        constraints=str(rules),
        strategy=name,
    )


def _remedy(rules: PackingRules) -> str:
    if rules.is_free:
        return "split the group, or offer a strategy or layouts that hold it"
    return "relax one of these constraints, use a larger batch, or strategies of fewer or larger replicas"
