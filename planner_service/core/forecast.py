"""What lengths to expect, from past iterations, and which strategies to keep warm for them.

Data loaders mix their sources anew as training goes on, so recent iterations count for more: an iteration's weight
halves with every half-life that has passed since.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner_service.core.effort import Effort
from planner_service.core.field import Proposal
from planner_service.core.problem import Batch, Floats, Ints, Problem, Strategy
from planner_service.core.propose import Report, draw_batches, propose

HALF_LIFE = 8.0
"""Iterations in which the weight of an iteration halves, unless told otherwise."""

MOST_PAST = 16
LEAST_WEIGHT = 1e-3
"""So many of the latest iterations are planned again as they were, if they weigh so much of what the latest does."""


@dataclass(frozen=True)
class Forecast:
    """The batch to expect.

    Attributes
    ----------
    lengths
        Distinct lengths in tokens, ascending, before alignment. Shape (D,).
    counts
        Sequences of each length to expect. Shape (D,).
    """

    lengths: Ints
    counts: Floats

    @property
    def num_tokens(self) -> int:
        """Tokens of the batch to expect."""
        return round(float(self.lengths @ self.counts))

    def draw(self, num_batches: int, seed: int, alignment: int = 1) -> tuple[Batch, ...]:
        """Draw batches as they may come (see `planner_service.core.propose.draw_batches`).

        Raises
        ------
        ValueError
            If no sequence is to be expected.
        """
        return draw_batches(self.lengths, self.counts, self.num_tokens, num_batches, seed, alignment)


def forecast(history: Sequence[Batch], half_life: float = HALF_LIFE) -> Forecast:
    """Average the histograms of past iterations, recent ones weighing more.

    Parameters
    ----------
    history
        Batches of past iterations, the latest last, at least one.
    half_life
        Iterations after which a batch weighs half; infinite for equal weights.

    Raises
    ------
    ValueError
        If there is no past iteration or the half-life is not positive.
    """
    if not history or not half_life > 0:
        raise ValueError(
            f"a forecast from {len(history)} iterations with half-life {half_life}; "
            "give at least one iteration and a positive half-life"
        )
    weights = _weights(len(history), half_life)
    expected: defaultdict[int, float] = defaultdict(float)
    for batch, weight in zip(history, weights / weights.sum(), strict=True):
        for row in batch.rows:
            expected[row.length] += weight * row.count
    lengths = sorted(expected)
    return Forecast(np.array(lengths, dtype=np.int64), np.array([expected[length] for length in lengths], float))


def _weights(num_iterations: int, half_life: float) -> Floats:
    """Weigh each iteration, the latest last with weight 1."""
    ages = np.arange(num_iterations - 1, -1, -1, dtype=float)
    return np.exp2(-ages / half_life)


def strategies_to_keep_warm(  # noqa: PLR0913 - what is wanted of the set is given by name
    problem: Problem,
    history: Sequence[Batch],
    effort: Effort,
    *,
    most: int,
    half_life: float = HALF_LIFE,
    num_batches: int = 8,
    longest: int = 0,
    given: Sequence[Strategy] = (),
    report: Report | None = None,
) -> Proposal:
    """Propose strategies for the iterations to come, from those that were.

    They are chosen for the latest batches as they were and for as much weight of batches drawn from the forecast:
    lengths that stand together in a corpus come together, which draws do not show, and draws combine lengths that have
    not yet come together.

    Parameters
    ----------
    problem
        The cluster and what constrains plans; its batch is left aside.
    history
        Batches of past iterations, the latest last, at least one of them with sequences.
    effort
        How hard to search on each batch.
    most
        Most strategies to keep.
    half_life
        See `forecast`.
    num_batches
        Batches to draw from the forecast, possibly none.
    longest
        Longest sequence (tokens) that may come; that of the history at least.
    given
        Further strategies to consider, for instance those that are warm already.
    report
        Told of progress.

    Raises
    ------
    PlanningFault
        If a drawn batch cannot be run, or no strategy keeps the limit on process groups.
    ValueError
        If nothing is to be expected.
    """
    expected = forecast(history, half_life)
    drawn = expected.draw(num_batches, problem.options.seed, problem.batch.alignment)
    alignment = problem.batch.alignment
    past = [
        (Batch(batch.rows, alignment), float(weight))
        for batch, weight in zip(history, _weights(len(history), half_life), strict=True)
        if weight >= LEAST_WEIGHT
    ][-MOST_PAST:]
    of_past = sum(weight for _, weight in past)
    return propose(
        problem,
        [*(batch for batch, _ in reversed(past)), *drawn],
        effort,
        most=most,
        weights=[*(weight for _, weight in reversed(past)), *[of_past / max(1, len(drawn))] * len(drawn)],
        longest=max(int(expected.lengths[-1]), longest),
        given=given,
        report=report,
    )
