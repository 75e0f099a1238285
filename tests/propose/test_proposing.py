import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from core_cases import NO_HURRY, PIPED, SMALL, WIDE, batch_of, best_makespan_ms, problem_for, published, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.choose import choose, set_value
from planner_service.core.effort import Effort
from planner_service.core.faults import PlanningFault
from planner_service.core.field import Proposal, process_groups_of
from planner_service.core.intervals import interval_strategies
from planner_service.core.judge import Judge
from planner_service.core.problem import Layout, Pool, Problem, ReplicaKind, Strategy
from planner_service.core.propose import draw_batches, propose
from planner_service.core.rules import num_process_groups
from planner_service.core.solve import solve
from planner_service.core.validate import check

KINDS_7B = tuple(published("llama-7b-a800-80g", 16).values())
LENGTHS, COUNTS = np.unique([length for length in stream("github") if length <= 16384], return_counts=True)
DRAWN = draw_batches(LENGTHS, COUNTS.astype(float), 40_000, 3, 0)
ON_16 = problem_for([], [], kinds=KINDS_7B, num_gpus=16)


@cache
def of_two() -> Proposal:
    return propose(ON_16, DRAWN, NO_HURRY, most=2)


def every_strategy(kinds: tuple[ReplicaKind, ...], num_gpus: int) -> list[Strategy]:
    most = [num_gpus // kind.num_ranks for kind in kinds]
    found = []
    for counts in itertools.product(*(range(number + 1) for number in most)):
        groups = [(kind, count) for kind, count in zip(kinds, counts, strict=True) if count]
        if groups and sum(kind.num_ranks * count for kind, count in groups) <= num_gpus:
            found.append(Strategy.of(groups))
    return found


def test_a_proposal_says_what_its_strategies_are_worth() -> None:
    """Invariants.

    1. At most as many strategies as asked for, each placeable; their shares of the batches add up to one.
    2. bound <= all <= set <= single, and the set's mean is that of the best of it for each batch.
    3. The process groups are those of all strategies together, shared ones once.
    """
    proposal = of_two()
    chosen = [entry.strategy for entry in proposal.strategies]
    assert 1 <= len(chosen) <= 2
    assert sum(entry.share for entry in proposal.strategies) == pytest.approx(1)
    assert 0 < proposal.bound_ms <= proposal.all_ms <= proposal.mean_ms <= proposal.single_ms
    rows = np.array([Judge(replace(ON_16, batch=batch), NO_HURRY).row(chosen) for batch in DRAWN])
    assert proposal.mean_ms == pytest.approx(rows.min(axis=1).mean())
    assert [entry.mean_ms for entry in proposal.strategies] == pytest.approx(list(rows.mean(axis=0)))
    groups = set.union(*(set(process_groups_of(strategy, ON_16.pools)) for strategy in chosen))
    assert proposal.num_process_groups == len(groups)
    assert proposal.num_batches == len(DRAWN)


def test_the_same_data_set_gives_the_same_proposal() -> None:
    again = draw_batches(LENGTHS, COUNTS.astype(float), 40_000, 6, 0)
    assert again[: len(DRAWN)] == DRAWN
    assert draw_batches(LENGTHS, COUNTS.astype(float), 40_000, 1, 1) != DRAWN[:1]
    assert propose(ON_16, DRAWN[:2], NO_HURRY, most=2) == propose(ON_16, DRAWN[:2], NO_HURRY, most=2)


def test_a_proposal_is_at_least_as_good_as_the_published_programs() -> None:
    lengths = np.array(sorted({int(length) for batch in DRAWN for length in batch.lengths}))
    counts = np.array([sum(row.count for batch in DRAWN for row in batch.rows if row.length == s) for s in lengths])
    longest = [batch.longest for batch in DRAWN]
    theirs = interval_strategies(KINDS_7B, ON_16.pools[0], lengths, counts / len(DRAWN), longest)
    assert theirs
    table = np.array([Judge(replace(ON_16, batch=batch), NO_HURRY).row(theirs) for batch in DRAWN])
    num_unable, total = set_value(table, choose(table, 2))
    proposal = of_two()
    assert num_unable > 0 or proposal.mean_ms <= total / len(DRAWN) * (1 + 1e-9)


def test_some_proposed_strategy_holds_the_longest_sequence_that_may_come() -> None:
    short = [batch_of([300, 400, 500, 200] * 4)] * 2
    problem = problem_for([], [], kinds=KINDS_7B, num_gpus=16)
    without = propose(problem, short, NO_HURRY, most=2)
    longest = max(kind.max_tokens for kind in KINDS_7B)
    assert max(entry.strategy.max_tokens for entry in without.strategies) < longest
    holding = propose(problem, short, NO_HURRY, most=2, longest=longest)
    assert max(entry.strategy.max_tokens for entry in holding.strategies) >= longest
    assert holding.mean_ms == pytest.approx(without.mean_ms)
    assert holding.single is not None
    assert holding.single.max_tokens >= longest


def test_the_limit_on_process_groups_holds_for_all_strategies_together() -> None:
    free = propose(ON_16, DRAWN, NO_HURRY, most=3)
    limit = free.num_process_groups - 1
    limited = propose(replace(ON_16, options=replace(ON_16.options, max_process_groups=limit)), DRAWN, NO_HURRY, most=3)
    assert limited.num_process_groups <= limit
    assert limited.mean_ms >= free.mean_ms * (1 - 1e-9)


def test_a_job_with_a_list_is_proposed_from_its_list_only() -> None:
    by_layout = {(kind.layout.tp, kind.layout.pp): kind for kind in KINDS_7B}
    listed = (Strategy.of([(by_layout[8, 1], 2)]), Strategy.of([(by_layout[8, 1], 1), (by_layout[4, 1], 2)]))
    proposal = propose(replace(ON_16, candidates=listed), DRAWN, NO_HURRY, most=2)
    assert {entry.strategy for entry in proposal.strategies} <= set(listed)
    assert proposal.num_considered <= 2


def test_strategies_given_are_considered() -> None:
    given_ = every_strategy((SMALL, WIDE), 5)
    problem = problem_for([], [], kinds=(SMALL, WIDE), num_gpus=5)
    proposal = propose(problem, [batch_of([600, 650, 1200])], NO_HURRY, most=1, given=given_)
    assert proposal.num_considered >= sum(strategy.max_tokens >= 1200 for strategy in given_)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.lists(st.integers(20, 1000), min_size=1, max_size=5), min_size=1, max_size=2))
def test_what_all_strategies_are_said_to_take_is_nearly_the_optimum(lengths: list[list[int]]) -> None:
    """Invariants.

    1. The mean over all strategies found is at least the mean of the exact optima over all strategies.
    2. It is at most 5% over it, and the bound is not over it.
    """
    kinds = (SMALL, PIPED, WIDE)
    exact = []
    for batch in lengths:
        holding = [s for s in every_strategy(kinds, 4) if s.max_tokens >= max(batch)]
        exact.append(min(best_makespan_ms(s.replicas, batch, {}) for s in holding))
    problem = problem_for([], [], kinds=kinds, num_gpus=4)
    proposal = propose(problem, [batch_of(batch) for batch in lengths], NO_HURRY, most=2)
    optimum = sum(exact) / len(exact)
    assert optimum * (1 - 1e-9) <= proposal.all_ms <= optimum * 1.05
    assert proposal.bound_ms <= optimum * (1 + 1e-9)


def test_batches_count_by_their_weights() -> None:
    """Invariants.

    1. Means and shares are weighted; equal weights are as none.
    2. A batch that weighs nearly everything decides the set.
    """
    problem = problem_for([], [], kinds=(SMALL, PIPED, WIDE), num_gpus=8)
    two = [batch_of([100, 200, 650] * 4), batch_of([900, 1200, 400])]
    equal = propose(problem, two, NO_HURRY, most=2, weights=[3.0, 3.0])
    assert equal == propose(problem, two, NO_HURRY, most=2)
    heavy = propose(problem, two, NO_HURRY, most=1, weights=[1e-9, 1.0])
    alone = propose(problem, two[1:], NO_HURRY, most=1)
    assert heavy.all_ms == pytest.approx(alone.all_ms)
    assert heavy.bound_ms == pytest.approx(alone.bound_ms)
    for weights in ([1.0], [1.0, 0.0], [1.0, float("inf")]):
        with pytest.raises(ValueError, match="positive one for each"):
            propose(problem, two, NO_HURRY, most=1, weights=weights)


def test_progress_is_told_phase_by_phase() -> None:
    told: list[tuple[str, int, int]] = []
    propose(ON_16, DRAWN[:2], NO_HURRY, most=1, report=lambda *step: told.append(step))
    phases = list(dict.fromkeys(phase for phase, _, _ in told))
    assert phases == ["search", "judge", "refine"]
    assert all(0 <= done <= total for _, done, total in told)
    assert told == sorted(told, key=lambda step: (phases.index(step[0]), step[1]))


def test_batches_that_are_not_reached_in_time_are_left_out() -> None:
    asked = iter(range(10_000))
    late = Effort(NO_HURRY.deterministic_s, lambda: 1e9 if next(asked) < 3 else -1.0)
    proposal = propose(ON_16, DRAWN, late, most=2)
    assert proposal.num_batches == 1
    assert np.isfinite(proposal.mean_ms)


def test_a_batch_that_nothing_runs_is_a_fault() -> None:
    with pytest.raises(PlanningFault, match="too long"):
        propose(ON_16, [batch_of([200_000])], NO_HURRY, most=1)


def test_an_empty_batch_takes_no_time() -> None:
    proposal = propose(ON_16, [batch_of([]), DRAWN[0]], NO_HURRY, most=2)
    alone = propose(ON_16, [DRAWN[0]], NO_HURRY, most=2)
    assert proposal.mean_ms == pytest.approx(alone.mean_ms / 2)


def test_no_batches_and_no_strategies_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        propose(ON_16, [], NO_HURRY, most=1)
    with pytest.raises(ValueError, match="at least one"):
        propose(ON_16, DRAWN, NO_HURRY, most=0)
    with pytest.raises(ValueError, match="no sequence"):
        draw_batches(np.array([], dtype=np.int64), np.array([]), 10, 1, 0)


def test_drawn_batches_end_with_the_sequence_that_reaches_the_tokens() -> None:
    for batch in draw_batches(np.array([3, 10]), np.array([1.0, 0.0]), 10, 20, 0, alignment=4):
        assert [(row.length, row.count) for row in batch.rows] == [(3, 4)]
        assert batch.num_occupied_tokens == 16
    drawn = draw_batches(np.array([1, 100]), np.array([1.0, 1.0]), 20_000, 1, 0)[0]
    assert 20_000 <= drawn.num_tokens < 20_100
    assert drawn.counts[0] == pytest.approx(drawn.counts[1], rel=0.3)


def test_process_groups_are_counted_where_replicas_are_placed() -> None:
    kind = ReplicaKind(Layout(2, 2, 2), "test", 1e-5, 0.01, 1.0, 1000)
    pools = (Pool("test", 16, 8),)
    groups = process_groups_of(Strategy.of([(kind, 2)]), pools)
    assert len(groups) == 2 * num_process_groups(kind.layout)
    assert (0, 1) in groups
    assert (0, 2) in groups
    assert (0, 4) in groups
    with pytest.raises(ValueError, match="cannot be placed"):
        process_groups_of(Strategy.of([(kind, 3)]), pools)


def test_quick_plans_are_plans() -> None:
    problem: Problem = replace(ON_16, batch=DRAWN[0])
    judge = Judge(problem, NO_HURRY)
    for strategy in judge.sources()[:3]:
        plan = judge.quick_plan(strategy)
        check(problem, plan)
        assert plan.strategy == strategy
        assert plan.makespan_ms == pytest.approx(judge.makespan_ms(strategy))
        assert solve(replace(problem, candidates=(strategy,)), NO_HURRY).makespan_ms <= plan.makespan_ms * (1 + 1e-9)


def interval_optimum(kinds: tuple[ReplicaKind, ...], num_gpus: int, lengths: list[int], first: int = 0) -> float:
    """Try every division into intervals of one replica each, each sequence in a micro-batch of its own interval's."""
    if first == len(lengths):
        return 0.0
    best = float("inf")
    for end in range(first + 1, len(lengths) + 1):
        held = lengths[first:end]
        for kind in kinds:
            if kind.num_ranks <= num_gpus and max(held) <= kind.max_tokens:
                own = sum(kind.a * s * s + kind.b * s for s in held) + kind.c * -(-sum(held) // kind.max_tokens)
                best = min(best, max(own, interval_optimum(kinds, num_gpus - kind.num_ranks, lengths, end)))
    return best


@settings(max_examples=60, deadline=None)
@given(st.sets(st.integers(20, 1400), min_size=1, max_size=5))
def test_intervals_are_given_to_layouts_as_brute_force_gives_them(distinct: set[int]) -> None:
    lengths = sorted(distinct)
    kinds = (SMALL, WIDE)
    found = interval_strategies(kinds, Pool("test", 6, 8), np.array(lengths), np.ones(len(lengths)), [lengths[-1]])
    (strategy,) = found
    assert strategy.num_ranks <= 6
    assert strategy.max_tokens >= lengths[-1]
    # Intervals of several replicas are shared out fractionally, so the program's optimum is at most brute force's.
    reached = fractional_ms(strategy, lengths)
    assert reached <= interval_optimum(kinds, 6, lengths) * (1 + 1e-9)


def fractional_ms(strategy: Strategy, lengths: list[int]) -> float:
    """Least time of a strategy's replicas of one kind, or of two kinds parted at a length, sharing fractionally."""

    def shared(kind: ReplicaKind, count: int, held: list[int]) -> float:
        if not held:
            return 0.0
        if max(held) > kind.max_tokens:
            return float("inf")
        costs = [kind.a * s * s + kind.b * s for s in held]
        num_micro_batches = max(1, -(-sum(held) / count // kind.max_tokens))
        return max(sum(costs) / count, *costs) + kind.c * num_micro_batches

    def least(groups: tuple[tuple[ReplicaKind, int], ...], held: list[int]) -> float:
        if not groups:
            return float("inf") if held else 0.0
        kind, count = groups[0]
        return min(
            max(
                shared(kind, used, held[at:]),
                least(((kind, count - used), *groups[1:]), held[:at]) if count > used else least(groups[1:], held[:at]),
            )
            for at in range(len(held) + 1)
            for used in range(1, count + 1)
        )

    return min(least(order, lengths) for order in itertools.permutations(strategy.groups))
