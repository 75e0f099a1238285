"""Which strategies to profile and keep communicators for: few that serve a data set about as well as all would.

Batches are drawn from the data set, the search over all strategies finds the best strategy of each, and every strategy
found is judged on every batch. Chosen are at most so many that the mean, over the batches, of the time on the best of
them is least.

The published proposal (`planner_service.core.intervals`) gives consecutive intervals of length to layouts, once for the
mean batch, on estimates. Ours is at least as good on the batches drawn, measured by plans: strategies of the published
program are judged along with those of the search, and the set chosen is never worse than the best that the same choice
(greedy, then swaps) makes of the published ones alone, since it starts from there as well. The search adds what
intervals cannot give: replicas whose lengths overlap, whole numbers of replicas that suit a batch's few longest
sequences, and bounds that say how much any other set could still gain.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from planner_service.core.effort import Effort
from planner_service.core.faults import PlanningFault
from planner_service.core.field import Field, Proposal
from planner_service.core.homogeneous import homogeneous
from planner_service.core.intervals import interval_strategies
from planner_service.core.judge import Judge
from planner_service.core.place import place
from planner_service.core.problem import Batch, Floats, Ints, Problem, SourceRow, Strategy
from planner_service.core.screen import screen

SOURCE = "data set"
"""Source of drawn sequences."""

REFINING_STEPS = 6
"""How often strategies near the chosen ones are judged, too."""

MOST_REFINED, FEWEST_REFINED, SEQUENCES_REFINED = 48, 8, 100_000
"""Strategies judged in each of these steps: as many as place so many sequences, within limits."""

Report = Callable[[str, int, int], None]
"""Told of progress as (phase, steps done, steps of the phase); phases are ``search``, ``judge`` and ``refine``."""


def draw_batches(  # noqa: PLR0913, PLR0917 - a draw's parameters
    lengths: Ints, weights: Floats, num_tokens: int, num_batches: int, seed: int, alignment: int = 1
) -> tuple[Batch, ...]:
    """Draw batches of about so many tokens from a data set, with replacement.

    Parameters
    ----------
    lengths
        Distinct lengths in tokens. Shape (D,).
    weights
        How often each occurs, relative to the others. Shape (D,).
    num_tokens
        Tokens of a batch; the sequence that reaches the number is the last one.
    num_batches
        Batches to draw.
    seed
        Batch i is the same whatever the number of batches.
    alignment
        Multiple of tokens that each sequence occupies.

    Raises
    ------
    ValueError
        If there is nothing to draw from.
    """
    if not len(lengths) or not weights.sum() > 0:
        raise ValueError("there is no sequence to draw; give a length with a positive weight")
    return tuple(
        _drawn(lengths, weights / weights.sum(), num_tokens, np.random.default_rng([seed, index]), alignment)
        for index in range(num_batches)
    )


def _drawn(lengths: Ints, shares: Floats, num_tokens: int, generator: np.random.Generator, alignment: int) -> Batch:
    drawn: Counter[int] = Counter()
    left = num_tokens
    mean = float(lengths @ shares)
    while left > 0:
        chunk = generator.choice(lengths, size=int(left / mean) + 16, p=shares)
        taken = chunk[: int(np.searchsorted(np.cumsum(chunk), left)) + 1]
        drawn.update(taken.tolist())
        left -= int(taken.sum())
    return Batch(tuple(SourceRow(SOURCE, length, drawn[length]) for length in sorted(drawn)), alignment)


def propose(  # noqa: PLR0913 - what is wanted of the set is given by name
    problem: Problem,
    batches: Sequence[Batch],
    effort: Effort,
    *,
    most: int,
    weights: Sequence[float] | None = None,
    longest: int = 0,
    given: Sequence[Strategy] = (),
    report: Report | None = None,
) -> Proposal:
    """Propose strategies for batches such as these.

    The limit on process groups, if the problem has one, holds for all strategies of the set together, which share the
    groups of equal ranks.

    Parameters
    ----------
    problem
        The cluster and what constrains plans; its batch is left aside. Candidates, if any, are the only strategies.
    batches
        Batches to expect, at least one; of equal ones each counts.
    effort
        How hard to search on each batch. Once no time is left, batches that were not reached are left out.
    most
        Most strategies to propose.
    weights
        How much each batch counts, all positive; equally if None. Means and shares are by these weights.
    longest
        Longest sequence (tokens) that a later batch may have, even if none of these does: one of the strategies holds
        it.
    given
        Further strategies to consider.
    report
        Told of progress.

    Raises
    ------
    PlanningFault
        If some batch or a sequence of the longest length cannot be run, or no strategy keeps the limit on process
        groups.
    ValueError
        If there are no batches, ``most`` is less than 1, or the weights are not one positive number for each batch.
    """
    if not batches or most < 1:
        raise ValueError(f"{len(batches)} batches and at most {most} strategies; give at least one of each")
    if weights is not None and (len(weights) != len(batches) or not all(0 < weight < np.inf for weight in weights)):
        raise ValueError(f"{len(weights)} weights of {len(batches)} batches; give a positive one for each")
    tell: Report = report or (lambda _phase, _done, _total: None)
    judges: list[Judge] = []
    for index, batch in enumerate(batches):
        tell("search", index, len(batches))
        if judges and effort.remaining_ms() <= 0:
            break
        judges.append(Judge(replace(problem, batch=batch, groups=(), arrival=()), effort))
    published = () if problem.candidates else _published(problem, judges)
    longest = _admitted(problem, longest)
    shares = np.array(weights[: len(judges)] if weights is not None else [1.0] * len(judges))
    field = Field(problem, judges, shares / shares.sum(), published, longest)
    field.add(
        (*_found(judges), *_holding(problem, judges[0].batch, longest), *given, *published),
        lambda done, total: tell("judge", done, total),
    )
    chosen = field.choose(most, ())
    if not chosen:
        raise _no_set(problem)
    may_vary = not problem.candidates and not problem.options.homogeneous
    for step in range(REFINING_STEPS if may_vary else 0):
        tell("refine", step, REFINING_STEPS)
        if effort.remaining_ms() <= 0:
            break
        varied = chosen if step % 2 else (field.single,)
        field.add(islice(field.neighbours(varied), _num_refined(judges)))
        chosen = field.choose(most, chosen)
    tell("refine", REFINING_STEPS, REFINING_STEPS)
    return field.proposal(chosen)


def _published(problem: Problem, judges: Sequence[Judge]) -> tuple[Strategy, ...]:
    """List strategies of the published program that can be placed; it knows one type of GPU only."""
    if len(problem.pools) != 1:
        return ()
    counts: Counter[int] = Counter()
    for judge in judges:
        for length, count in zip(judge.batch.lengths, judge.batch.counts, strict=True):
            counts[int(length)] += int(count)
    lengths = np.array(sorted(counts), dtype=np.int64)
    mean = np.array([counts[length] for length in sorted(counts)]) / len(judges)
    longest = sorted({judge.batch.longest for judge in judges if judge.batch.longest})
    found = interval_strategies(problem.kinds, problem.pools[0], lengths, mean, longest)
    return tuple(strategy for strategy in found if place(strategy.replicas, problem.pools) is not None)


def _found(judges: Sequence[Judge]) -> list[Strategy]:
    """List what is best for some batch and what it was chosen among, each once."""
    return list(dict.fromkeys(strategy for judge in judges for strategy in judge.sources()))


def _admitted(problem: Problem, longest: int) -> int:
    """Shorten a length to the longest that is not dropped as over-long, where over-long sequences are."""
    options, alignment = problem.options, problem.batch.alignment
    if options.over_long != "drop":
        return longest
    largest = max(kind.max_tokens for kind in problem.kinds) // alignment * alignment
    return min(longest, largest, options.max_length or largest)


def _holding(problem: Problem, batch: Batch, longest: int) -> tuple[Strategy, ...]:
    """List homogeneous strategies that hold a batch with one sequence of so many tokens more."""
    if problem.candidates or not longest:
        return ()
    with_longest = Batch((*batch.rows, SourceRow(SOURCE, longest, 1)), batch.alignment)
    alone = replace(problem, batch=with_longest, groups=(), arrival=())
    return tuple(homogeneous(alone, screen(alone)))


def _num_refined(judges: Sequence[Judge]) -> int:
    """Strategies near the chosen ones to judge in a step: as many as place so many sequences, within limits."""
    num_sequences = sum(judge.batch.num_sequences for judge in judges)
    return max(FEWEST_REFINED, min(MOST_REFINED, SEQUENCES_REFINED // max(1, num_sequences)))


def _no_set(problem: Problem) -> PlanningFault:
    return PlanningFault(
        "no-usable-strategy",
        f"no strategy needs at most {problem.options.max_process_groups} process groups on {problem.cluster}",
        "allow more process groups",
        max_process_groups=problem.options.max_process_groups,
    )
