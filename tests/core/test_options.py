import itertools
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from core_cases import DEEP, PIPED, SMALL, WIDE, batch_of, kind, problem_for
from hypothesis import given, settings
from hypothesis import strategies as st
from option_cases import Unit, best_under, groups_of, planned

from planner_service.core.dispatch import first_assignment, pack_all
from planner_service.core.faults import PlanningFault
from planner_service.core.infeasible import Demand, infeasible_fault, why_infeasible
from planner_service.core.items import Workload, bundle_tokens, items_of
from planner_service.core.problem import GroupRow, Options, Problem, ReplicaKind, SourceRow, Strategy
from planner_service.core.rules import FREE, PackingRules, num_process_groups_of
from planner_service.core.screen import screen
from planner_service.core.solution import Solution

KINDS = st.lists(st.sampled_from([SMALL, PIPED, DEEP, WIDE]), min_size=1, max_size=4)
OPTIONS = st.fixed_dictionaries(
    {
        "is_padded": st.booleans(),
        "equal_counts": st.booleans(),
        "count_multiple": st.sampled_from([1, 1, 2, 3, 4]),
        "at_least_stages": st.booleans(),
        "idle_allowed": st.booleans(),
    }
)
LENGTH = st.one_of(st.integers(1, 64), st.integers(1, 400))
UNITS = st.lists(
    st.one_of(LENGTH.map(lambda s: (s,)), st.lists(st.integers(1, 90), min_size=2, max_size=4).map(tuple)), max_size=40
)
TINY = st.lists(
    st.one_of(
        st.sampled_from([1, 7, 64, 300, 450, 500, 650]).map(lambda s: (s,)),
        st.lists(st.sampled_from([1, 7, 64, 300]), min_size=2, max_size=3).map(lambda held: tuple(sorted(held))),
    ),
    min_size=1,
    max_size=5,
)


def _problem(units: list[Unit], strategies: list[Strategy], alignment: int = 1, **options: object) -> Problem:
    lengths = [length for unit in units for length in unit]
    return replace(
        problem_for(lengths, strategies, alignment=alignment, **options),  # type: ignore[arg-type]
        groups=groups_of(units),
    )


def _planned_or_refused(problem: Problem, most_steps: int = 200) -> tuple[Solution | None, str | None]:
    """Plan; else the code of the refusal, or None where no assignment was found."""
    try:
        return planned(problem, most_steps=most_steps), None
    except PlanningFault as refused:
        return None, refused.code


def _counts(solution: Solution) -> list[int]:
    return [len(replica.micro_batches) for replica in solution.replicas]


@settings(max_examples=250, deadline=None)
@given(UNITS, KINDS, OPTIONS, st.sampled_from([1, 8, 32]))
def test_any_batch_under_any_options_is_planned_by_them_or_refused(
    units: list[Unit], kinds: list[ReplicaKind], options: dict[str, object], alignment: int
) -> None:
    """Invariants, for any batch, replicas and options:

    1. A plan passes the validator: caps after padding, conservation, counts, idle replicas, groups together.
    2. A refusal names a constraint, as ``constraint-infeasible``; without constraints nothing is refused.
    3. Local search keeps the rules and never makes the plan slower (`option_cases.planned`).
    4. Numbers of micro-batches never fall below what the caps need.
    """
    aligned = [replace(k, max_tokens=k.max_tokens // alignment * alignment) for k in kinds]
    strategy = Strategy.of((k, 1) for k in aligned)
    problem = _problem(units, [strategy], alignment, over_long="drop", **options)
    rules = PackingRules.of(problem.options)
    solution, code = _planned_or_refused(problem, most_steps=20)
    if solution is None:
        assert code in {None, "constraint-infeasible"}
        assert not rules.is_free
        fault = infeasible_fault(problem.batch, problem.groups, rules, [strategy])
        assert fault.code == "constraint-infeasible"
        assert fault.numbers["constraints"] == str(rules)
        assert any(word in fault.detail for word in (str(rules), "too few sequences", "replica idle"))
        return
    for replica in solution.replicas:
        held = sum(m.num_tokens for m in replica.micro_batches)
        assert len(replica.micro_batches) >= -(-held // replica.kind.max_tokens)


@settings(max_examples=300, deadline=None)
@given(TINY, st.lists(st.sampled_from([SMALL, PIPED, DEEP, WIDE]), min_size=1, max_size=3), OPTIONS)
def test_tiny_plans_are_refused_only_if_infeasible_and_near_the_constrained_optimum(
    units: list[Unit], kinds: list[ReplicaKind], options: dict[str, object]
) -> None:
    """Invariants, against every assignment and every packing:

    1. What is refused or has no first assignment is infeasible, and the other way round.
    2. No plan beats the optimum under the options.
    3. No plan is over 1.5 times of it, before any further search (how many are at it is counted below).
    """
    strategy = Strategy.of((k, 1) for k in kinds)
    optimum = best_under(strategy.replicas, units, Options(**options))  # type: ignore[arg-type]
    if max(length for unit in units for length in unit) > strategy.max_tokens:
        return
    solution, code = _planned_or_refused(_problem(units, [strategy], **options))
    assert code in {None, "constraint-infeasible"}
    assert (solution is None) == math.isinf(optimum)
    if solution is not None:
        assert optimum * (1 - 1e-9) <= solution.makespan_ms <= optimum * 1.5


def test_most_tiny_plans_under_options_are_the_constrained_optimum() -> None:
    """Invariant: over a fixed grid at least 97 % of the feasible ones are within 3 % of the optimum."""
    draw = np.random.default_rng(5)
    ratios: list[float] = []
    for _ in range(900):
        strategy = Strategy.of(
            ([SMALL, PIPED, DEEP, WIDE][int(which)], 1) for which in draw.integers(4, size=int(draw.integers(1, 4)))
        )
        units: list[Unit] = [
            tuple(sorted(int(s) for s in draw.choice([1, 7, 64, 300], size=int(draw.integers(2, 4)))))
            if draw.random() < 0.25
            else (int(draw.choice([1, 7, 64, 300, 450, 500])),)
            for _ in range(int(draw.integers(1, 6)))
        ]
        options = Options(
            is_padded=bool(draw.random() < 0.4),
            equal_counts=bool(draw.random() < 0.4),
            count_multiple=int(draw.choice([1, 1, 2, 3])),
            at_least_stages=bool(draw.random() < 0.3),
            idle_allowed=bool(draw.random() < 0.6),
        )
        optimum = best_under(strategy.replicas, units, options)
        if math.isfinite(optimum):
            problem = replace(_problem(units, [strategy]), options=options)
            solution = planned(problem)
            assert solution is not None
            ratios.append(solution.makespan_ms / optimum)
    assert len(ratios) > 400
    assert min(ratios) >= 1 - 1e-9
    assert sum(ratio <= 1.03 for ratio in ratios) >= 0.97 * len(ratios)


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("multiple", [1, 3])
def test_the_hard_sizes_are_planned_under_counts(equal: bool, multiple: int) -> None:  # noqa: FBT001 - a parameter
    options = {"equal_counts": equal, "count_multiple": multiple}
    two = Strategy.of([(SMALL, 2)])
    for lengths in ([50] * 12, [700] + [10] * 11, [700] * 6, [1] * 100, [700] * 102):
        solution = planned(_problem([(s,) for s in lengths], [two], **options))
        assert solution is not None
        assert all(count % multiple == 0 for count in _counts(solution))


def test_five_sequences_cannot_fill_four_replicas_with_two_micro_batches_each_and_the_fault_says_so() -> None:
    strategy = Strategy.of([(SMALL, 4)])
    with pytest.raises(PlanningFault) as refused:
        screen(_problem([(50,)] * 5, [strategy], equal_counts=True, count_multiple=2))
    assert refused.value.code == "constraint-infeasible"
    assert "4 replicas with 2 micro-batches each need 8" in refused.value.detail
    assert "there are 5 sequences" in refused.value.detail


@pytest.mark.parametrize(("num_sequences", "num_replicas"), [(3, 7), (1, 8), (0, 2)])
def test_forbidden_idle_replicas_are_refused_with_the_numbers_and_allowed_ones_declared(
    num_sequences: int, num_replicas: int
) -> None:
    strategy = Strategy.of([(SMALL, num_replicas)])
    units: list[Unit] = [(30,)] * num_sequences
    with pytest.raises(PlanningFault) as refused:
        screen(_problem(units, [strategy], idle_allowed=False))
    assert refused.value.code == "constraint-infeasible"
    assert f"{num_sequences} sequences" in refused.value.detail
    solution = planned(_problem(units, [strategy]))
    assert solution is not None
    assert _counts(solution).count(0) == num_replicas - num_sequences


def test_an_empty_batch_that_may_not_leave_replicas_idle_is_refused_without_candidates_too() -> None:
    with pytest.raises(PlanningFault, match="0 sequences"):
        screen(problem_for([], [], kinds=[SMALL], idle_allowed=False))


def test_no_count_is_rounded_down_below_what_the_caps_need() -> None:
    solution = planned(_problem([(600,)] * 5 + [(1,)] * 3, [Strategy.of([(SMALL, 1)])], count_multiple=4))
    assert solution is not None
    assert _counts(solution) == [8]
    with pytest.raises(PlanningFault, match="multiples of 4, of which the limits ask for 5, need 8"):
        screen(_problem([(600,)] * 5, [Strategy.of([(SMALL, 1)])], count_multiple=4))


def test_pipelines_get_at_least_as_many_micro_batches_as_stages() -> None:
    deep = kind(1, 4, 0.0, 0.01, 50.0, 10_000)  # so costly a micro-batch that one would be best
    free = planned(_problem([(100,)] * 6, [Strategy.of([(deep, 1)])]))
    asked = planned(_problem([(100,)] * 6, [Strategy.of([(deep, 1)])], at_least_stages=True))
    assert free is not None
    assert asked is not None
    assert (_counts(free), _counts(asked)) == ([1], [4])


def test_eight_of_seven_at_cap_eight_run_in_equal_counts() -> None:
    tight = kind(1, 1, 0, 1, 1, 8)
    solution = planned(_problem([(7,)] * 8, [Strategy.of([(tight, 2)])], equal_counts=True))
    assert solution is not None
    assert _counts(solution) == [4, 4]


def test_the_only_pairing_that_fits_is_found_under_an_equal_count_of_two() -> None:
    wide = kind(1, 1, 0, 1, 1, 32768)
    solution = planned(_problem([(3317,), (23302,), (6946,), (27375,)], [Strategy.of([(wide, 1)])], count_multiple=2))
    assert solution is not None
    held = sorted(sorted(row.length for row in m.rows) for m in solution.replicas[0].micro_batches)
    assert held == [[3317, 27375], [6946, 23302]]


def test_padded_cost_packs_ten_thousand_with_hundreds_under_a_cap_of_twenty_thousand() -> None:
    wide = kind(1, 1, 1e-6, 0.01, 5.0, 20_000)
    solution = planned(_problem([(10_000,)] + [(100,)] * 150, [Strategy.of([(wide, 1)])], is_padded=True))
    assert solution is not None
    for micro_batch in solution.replicas[0].micro_batches:
        count = sum(row.count for row in micro_batch.rows)
        longest = max(row.length for row in micro_batch.rows)
        assert micro_batch.num_tokens + micro_batch.num_padding_tokens == count * longest <= 20_000
    assert solution.makespan_ms == pytest.approx(5 + 1e-6 * 1e8 + 100 + 5 + 150 * (1e-6 * 1e4 + 1))


def test_padding_is_listed_so_that_it_can_be_left_out_of_losses() -> None:
    dear = kind(1, 1, 0.0, 0.001, 1000.0, 400)
    solution = planned(_problem([(100,), (50,), (10,)], [Strategy.of([(dear, 1)])], is_padded=True))
    assert solution is not None
    (micro_batch,) = solution.replicas[0].micro_batches
    assert (micro_batch.num_tokens, micro_batch.num_padding_tokens) == (160, 140)


def test_preference_pairs_stay_together_over_sources_and_are_named() -> None:
    rows = (SourceRow("a", 100, 3), SourceRow("a", 200, 3), SourceRow("b", 100, 1), SourceRow("b", 200, 2))
    groups = (GroupRow("a", (100, 200), 2), GroupRow("b", (200, 200), 1))
    base = problem_for([100], [Strategy.of([(kind(1, 1, 0, 1, 1, 400), 3)])])
    problem = replace(base, batch=replace(base.batch, rows=rows), groups=groups)
    solution = planned(problem)
    assert solution is not None
    kept = Counter[tuple[str, tuple[int, ...]]]()
    for micro_batch in (m for replica in solution.replicas for m in replica.micro_batches):
        for group in micro_batch.groups:
            kept[group.source, group.lengths] += group.count
    assert kept == {("a", (100, 200)): 2, ("b", (200, 200)): 1}


def test_a_group_larger_than_every_cap_is_refused_naming_it_or_dropped_whole() -> None:
    units: list[Unit] = [(400, 400), (10,), (20,)]
    strategy = Strategy.of([(SMALL, 1)])
    with pytest.raises(PlanningFault) as refused:
        screen(_problem(units, [strategy]))
    assert refused.value.code == "constraint-infeasible"
    assert refused.value.numbers["num_tokens"] == 800
    assert refused.value.numbers["limit"] == 700
    solution = planned(_problem(units, [strategy], over_long="drop"))
    assert solution is not None
    assert [(row.length, row.count) for row in solution.dropped] == [(400, 2)]


def test_a_group_is_charged_padded_where_cost_is_padded() -> None:
    with pytest.raises(PlanningFault) as refused:
        screen(_problem([(300, 10, 10)], [Strategy.of([(SMALL, 1)])], is_padded=True))
    assert refused.value.numbers["num_tokens"] == 900


def test_a_group_with_an_over_long_member_is_dropped_whole_and_listed() -> None:
    units: list[Unit] = [(30, 5000), (30, 40), (30,), (40,)]
    solution = planned(_problem(units, [Strategy.of([(SMALL, 2)])], over_long="drop"))
    assert solution is not None
    assert [(row.length, row.count) for row in solution.dropped] == [(30, 1), (5000, 1)]
    assert sum(group.count for r in solution.replicas for m in r.micro_batches for group in m.groups) == 1


def test_alignment_is_a_multiple_that_each_member_of_a_group_is_rounded_up_to() -> None:
    tight = replace(SMALL, max_tokens=48)
    assert planned(_problem([(17, 15)], [Strategy.of([(tight, 1)])], alignment=16)) is not None
    with pytest.raises(PlanningFault):
        screen(_problem([(17, 17)], [Strategy.of([(tight, 1)])], alignment=16))


def test_candidates_that_cannot_keep_the_options_are_passed_over_with_the_reason() -> None:
    candidates = [
        Strategy.of([(SMALL, 6)]),
        Strategy.of([(SMALL, 1), (WIDE, 1)]),
        Strategy.of([(PIPED, 2)]),
        Strategy.of([(SMALL, 2)]),
    ]
    problem = _problem([(30,)] * 4, candidates, idle_allowed=False, homogeneous=True, max_process_groups=3)
    screened = screen(problem)
    assert screened.usable == (candidates[3],)
    reasons = dict(screened.passed_over)
    assert "need 6" in reasons["(1,1)x6"]
    assert "2 kinds" in reasons["(4,1)x1,(1,1)x1"]
    assert reasons["(2,2)x2"] == "needs 8 process groups but at most 3 are allowed"


def test_process_groups_of_two_ranks_or_more_are_counted() -> None:
    assert num_process_groups_of(Strategy.of([(SMALL, 5)])) == 0
    assert num_process_groups_of(Strategy.of([(PIPED, 1)])) == 4  # two stages of two ranks, two pipelines of two
    whole = replace(PIPED, layout=replace(PIPED.layout, cp=2))
    assert num_process_groups_of(Strategy.of([(whole, 1)])) == 4 + 4 + 4
    assert num_process_groups_of(Strategy.of([(DEEP, 2), (WIDE, 3)])) == 2 + 3


def test_all_candidates_passed_over_is_a_fault_that_says_which_constraint_cannot_hold() -> None:
    with pytest.raises(PlanningFault, match="at most 0 are allowed") as refused:
        screen(_problem([(30,)], [Strategy.of([(PIPED, 1)])], max_process_groups=0))
    assert refused.value.code == "constraint-infeasible"


def test_items_hold_groups_whole_also_where_there_are_very_many() -> None:
    rows = (SourceRow("a", 7, 9_000), SourceRow("a", 20, 3_000), SourceRow("a", 31, 6_000))
    base = batch_of([1])
    batch = replace(base, rows=rows)
    groups = (GroupRow("a", (7, 31), 5_000), GroupRow("a", (20, 20, 20), 10))
    for padded in (False, True):
        items = items_of(batch, 500, 100, groups=groups, is_padded=padded)
        held: Counter[int] = Counter()
        copies: Counter[int] = Counter()
        for content, of_groups in zip(items.contents, items.groups, strict=True):
            for index, count in content:
                held[index] += count
            for number, count in of_groups:
                copies[number] += count
                assert len(of_groups) == 1
                assert sum(n for _, n in content) == count * len(groups[number].lengths)
        assert [held[index] for index in range(3)] == [9_000, 3_000, 6_000]
        assert dict(copies) == {0: 5_000, 1: 10}
        assert len(items) < 2_000
        assert list(items.longest) == sorted(items.longest, reverse=True)
        charged = items.padded() if padded else items
        assert all(t <= 500 for t, content in zip(charged.tokens, items.contents, strict=True) if len(content) > 1)


def test_bundles_stay_small_enough_for_all_micro_batches_that_are_asked_for() -> None:
    strategy = Strategy.of([(kind(1, 1, 0, 1, 1, 100_000), 500)])
    rules = PackingRules(equal_counts=True, count_multiple=4)
    batch = replace(batch_of([1]), rows=(SourceRow("a", 10, 100_000),))
    most = bundle_tokens(batch.num_occupied_tokens, strategy, rules)
    work = Workload.of(items_of(batch, most), tuple(k for k, _ in strategy.groups), rules)
    assert len(work.items) >= 2_000
    assigned = first_assignment(strategy, work)
    assert assigned is not None
    assert {len(packing.micro_batches) for packing in assigned.packings} == {4}


def test_an_assignment_that_breaks_the_rules_comes_out_infinitely_slow() -> None:
    strategy = Strategy.of([(SMALL, 2)])
    work = Workload.of(items_of(batch_of([10, 20, 30]), 0), (SMALL,), PackingRules(idle_allowed=False))
    assert math.isinf(pack_all(strategy, work, [[0, 1, 2], []]).makespan_ms)
    assert math.isfinite(pack_all(strategy, work, [[0], [1, 2]]).makespan_ms)


@settings(max_examples=100, deadline=None)
@given(st.lists(LENGTH, min_size=1, max_size=60), KINDS)
def test_free_rules_change_nothing(lengths: list[int], kinds: list[ReplicaKind]) -> None:
    """Invariant: without a rule the first assignment is the one that is made without rules at all."""
    strategy = Strategy.of((k, 1) for k in kinds)
    items = items_of(batch_of(lengths), 0)
    of_kinds = tuple(k for k, _ in strategy.groups)
    assert PackingRules.of(Options()).is_free
    assert first_assignment(strategy, Workload.of(items, of_kinds, PackingRules.of(Options()))) == first_assignment(
        strategy, Workload.of(items, of_kinds)
    )


@settings(max_examples=200, deadline=None)
@given(TINY, KINDS.filter(lambda kinds: len(kinds) <= 3), OPTIONS)
def test_what_is_called_infeasible_is(units: list[Unit], kinds: list[ReplicaKind], options: dict[str, object]) -> None:
    """Invariant: a reason is only given where no assignment at all keeps the options."""
    strategy = Strategy.of((k, 1) for k in kinds)
    problem = _problem(units, [strategy], **options)
    rules = PackingRules.of(problem.options)
    if why_infeasible(strategy, Demand.of(problem.batch, problem.groups, rules), rules) is not None:
        assert math.isinf(best_under(strategy.replicas, units, problem.options))


def test_permitted_counts_are_the_smallest_that_keep_every_rule() -> None:
    """Invariant, over multiples, stages and floors: the count is a multiple, no less than asked, and the least such."""
    for multiple, pp, at_least, staged in itertools.product((1, 2, 3, 8), (1, 2, 5), range(12), (False, True)):
        rules = PackingRules(count_multiple=multiple, at_least_stages=staged)
        floor = max(1, at_least, pp if staged else 1)
        expected = next(count for count in itertools.count(1) if count >= floor and count % multiple == 0)
        assert rules.permitted(pp, at_least) == expected
        assert rules.permits(pp, expected)
    assert FREE.permits(4, 0)
    assert not PackingRules(equal_counts=True).permits(1, 0)
