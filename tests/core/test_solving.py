import time
from dataclasses import replace

import pytest
from core_cases import DEEP, NO_HURRY, PIPED, SMALL, WIDE, batches, problem_for, published, solved, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.cost import micro_batch_ms, replica_ms
from planner_service.core.effort import Effort
from planner_service.core.faults import PlanningFault
from planner_service.core.problem import Batch, Problem, SourceRow, Strategy
from planner_service.core.solution import Solution
from planner_service.core.solve import solve
from planner_service.core.validate import check

LENGTHS = st.lists(st.one_of(st.integers(1, 64), st.integers(1, 600)), max_size=60)
STRATEGIES = st.lists(
    st.lists(st.tuples(st.sampled_from([SMALL, PIPED, DEEP, WIDE]), st.integers(1, 4)), min_size=1, max_size=3).map(
        Strategy.of
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(LENGTHS, STRATEGIES, st.sampled_from([1, 8, 32]), st.sampled_from(["hydraulis", "plain"]))
def test_any_batch_on_any_candidates_gives_a_valid_plan(
    lengths: list[int], strategies: list[Strategy], alignment: int, method: str
) -> None:
    """Invariants:

    1. The plan passes the validator (caps, conservation, placement, figures).
    2. The bound is at most the makespan; over all strategies at most over this one.
    3. All replicas of the chosen strategy are there, idle ones without micro-batches.
    """
    problem = problem_for(lengths, strategies, alignment=alignment, method=method, over_long="drop", num_gpus=256)
    solution = solved(problem, Effort(0.02, lambda: 1e9))
    assert solution.all_strategies_bound_ms <= solution.lower_bound_ms * (1 + 1e-9) <= solution.makespan_ms * (1 + 1e-6)
    assert len(solution.replicas) == solution.strategy.num_replicas
    assert solution.strategy in strategies


def test_the_same_problem_gives_the_same_plan_every_time() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    lengths = next(batches(stream("github"), 200_000))
    problem = problem_for(
        lengths, [Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 6)]), Strategy.of([(kinds[8, 1], 8)])], target_gap=0.0
    )
    first = solve(problem, NO_HURRY)
    for _ in range(2):
        assert solve(problem, NO_HURRY) == first


def test_the_order_in_which_a_strategys_replicas_are_written_changes_nothing() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    lengths = next(batches(stream("win32docs"), 100_000))
    groups = [(kinds[16, 1], 1), (kinds[8, 1], 2), (kinds[4, 1], 4), (kinds[8, 1], 2)]
    written = [Strategy.of(groups), Strategy.of(groups[::-1]), Strategy.of(groups[2:] + groups[:2])]
    solutions = [solved(problem_for(lengths, [strategy])) for strategy in written]
    assert solutions[0] == solutions[1] == solutions[2]


def test_an_empty_batch_gives_declared_idle_replicas() -> None:
    solution = solved(problem_for([], [Strategy.of([(SMALL, 3)])]))
    assert [replica.micro_batches for replica in solution.replicas] == [(), (), ()]
    assert solution.makespan_ms == solution.lower_bound_ms == 0.0
    assert solution.optimal


def test_an_empty_batch_without_candidates_gives_a_plan_too() -> None:
    solution = solved(problem_for([], [], kinds=[SMALL, WIDE]))
    assert all(not replica.micro_batches for replica in solution.replicas)


@pytest.mark.parametrize("lengths", [[30], [30, 40, 50], [600] * 2])
def test_fewer_sequences_than_replicas_leave_declared_idle_ones(lengths: list[int]) -> None:
    solution = solved(problem_for(lengths, [Strategy.of([(SMALL, 7)])]))
    assert sum(not replica.micro_batches for replica in solution.replicas) == 7 - len(lengths)
    assert len(solution.replicas) == 7


def test_candidates_that_cannot_hold_the_longest_sequence_are_passed_over_and_said() -> None:
    solution = solved(problem_for([1200, 10], [Strategy.of([(SMALL, 8)]), Strategy.of([(WIDE, 2)])]))
    assert str(solution.strategy) == "(4,1)x2"
    assert solution.passed_over == (
        ("(1,1)x8", "holds at most 700 tokens a micro-batch but the longest sequence takes 1200"),
    )


def test_candidates_that_do_not_fit_the_cluster_are_passed_over_and_said() -> None:
    solution = solved(problem_for([10], [Strategy.of([(SMALL, 9)]), Strategy.of([(SMALL, 8)])], num_gpus=8))
    assert solution.strategy.num_replicas == 8
    assert solution.passed_over == (("(1,1)x9", "takes 9 GPUs of 8"),)
    with pytest.raises(PlanningFault, match="takes 9 GPUs of 8"):
        solve(problem_for([10], [Strategy.of([(SMALL, 9)])], num_gpus=8), NO_HURRY)


def test_a_length_over_every_limit_is_refused_naming_length_limit_and_layout() -> None:
    with pytest.raises(PlanningFault) as refused:
        solve(problem_for([1501, 10], [Strategy.of([(SMALL, 2)]), Strategy.of([(WIDE, 1)])]), NO_HURRY)
    assert refused.value.code == "sequence-too-long"
    assert refused.value.numbers == {"length": 1501, "limit": 1500, "layout": "(4,1)", "num_over_long": 1}


def test_over_long_sequences_are_dropped_and_listed_where_the_policy_says_so() -> None:
    problem = problem_for([1501, 1501, 900, 10], [Strategy.of([(WIDE, 1)])], over_long="drop", max_length=800)
    solution = solved(problem)
    assert [(row.length, row.count) for row in solution.dropped] == [(900, 1), (1501, 2)]
    placed = sum(row.count for r in solution.replicas for m in r.micro_batches for row in m.rows)
    assert placed + 3 == 4


def test_a_length_that_fits_only_before_alignment_does_not_fit() -> None:
    wide = replace(WIDE, max_tokens=149_996)  # 150000 floored to a multiple of 7
    with pytest.raises(PlanningFault, match="149999 tokens"):
        solve(problem_for([149_999], [Strategy.of([(wide, 1)])], alignment=7), NO_HURRY)


def test_one_very_long_sequence_does_not_leave_other_gpus_nearly_idle() -> None:
    kinds = published("llama-7b-a800-80g", 8)
    solution = solved(problem_for([30_000] + [1000] * 30, [], kinds=list(kinds.values()), num_gpus=8))
    loads = [replica.makespan_ms for replica in solution.replicas]
    assert min(loads) > max(loads) / 30
    assert solution.makespan_ms / solution.lower_bound_ms < 1.25


def test_equal_tokens_are_not_taken_for_equal_time() -> None:
    quadratic = replace(SMALL, a=1e-4, b=0.0, c=1.0, max_tokens=8192)
    solution = solved(problem_for([8192] + [1024] * 8, [Strategy.of([(quadratic, 2)])]))
    by_load = sorted(replica.makespan_ms for replica in solution.replicas)
    assert by_load[1] / by_load[0] == pytest.approx(8, rel=0.05)
    assert sorted(len(r.micro_batches[0].rows) for r in solution.replicas) == [1, 1]


def test_a_hundred_and_sixty_sequences_on_sixty_four_ranks_in_eight_replicas_are_fine() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    solution = solved(problem_for([1000] * 160, [Strategy.of([(kinds[8, 1], 8)])]))
    assert all(len(replica.ranks) == 8 for replica in solution.replicas)
    assert [sum(row.count for m in r.micro_batches for row in m.rows) for r in solution.replicas] == [20] * 8


def test_no_replica_runs_more_micro_batches_than_it_declares_in_a_short_last_batch() -> None:
    solution = solved(problem_for([5, 6, 7], [Strategy.of([(SMALL, 4)])]))
    assert sorted(len(replica.micro_batches) for replica in solution.replicas) == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("layout", "lengths", "closed_form", "as_the_longest"),
    [((8, 1), [20_000, 3_000], 4368, 7603), ((8, 4), [20_000, *[3_000] * 3], 4277, 6744)],
)
def test_charging_every_micro_batch_as_the_longest_would_overstate_uneven_pipelines(
    layout: tuple[int, int], lengths: list[int], closed_form: int, as_the_longest: int
) -> None:
    kind = published("llama-32b-a800-80g", 64)[layout]
    times = [micro_batch_ms(kind, [(length, 1)]) for length in lengths]
    assert round(replica_ms(kind.pp, times)) == closed_form
    assert round((len(times) + kind.pp - 1) * max(times)) == as_the_longest


def test_longest_first_balances_eight_equal_replicas_to_a_tenth_of_a_percent() -> None:
    kinds = published("llama-7b-a800-80g", 64)
    gaps = []
    for lengths in list(batches(stream("github"), 400_000, 16_000))[:5]:
        solution = solved(
            problem_for(lengths, [Strategy.of([(kinds[8, 1], 8)])], target_gap=0.0), Effort(0.01, lambda: 1e9)
        )
        gaps.append(solution.makespan_ms / solution.lower_bound_ms - 1)
    assert sum(gaps) / len(gaps) < 0.005


def test_the_wall_clock_only_guards_and_a_plan_cut_by_it_says_so() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    lengths = next(batches(stream("github"), 200_000))
    problem = problem_for(lengths, [Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 6)])], target_gap=0.0)
    cut = solve(problem, Effort(0.25, lambda: 0.0))
    check(problem, cut)
    assert cut.cut_by_wall_clock
    assert not solve(problem, NO_HURRY).cut_by_wall_clock


def test_the_deadline_holds_with_a_large_search_budget() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    lengths = next(batches(stream("github"), 200_000))
    problem = problem_for(lengths, [Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 6)])], target_gap=0.0)
    started = time.perf_counter()
    solution = solve(problem, Effort(1000.0, lambda: 700 - (time.perf_counter() - started) * 1000))
    assert time.perf_counter() - started < 2.0
    check(problem, solution)
    assert solution.cut_by_wall_clock or solution.optimal


def test_incumbents_are_valid_and_never_get_worse() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    lengths = next(batches(stream("github"), 200_000))
    problem = problem_for(lengths, [], kinds=list(kinds.values()), target_gap=0.0)
    seen: list[Solution] = []
    final = solve(problem, NO_HURRY, seen.append)
    assert seen
    for solution in seen:
        check(problem, solution)
    times = [solution.makespan_ms for solution in [*seen, final]]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    "profile", ["llama-7b-a800-80g", "llama-7b-a100-40g", "llama-13b-a800-80g", "llama-32b-a800-80g"]
)
def test_generated_strategies_beat_every_homogeneous_one(profile: str) -> None:
    kinds = published(profile, 64)
    lengths = next(batches(stream("github"), 200_000, 16_000))
    free: Problem = problem_for(lengths, [], kinds=list(kinds.values()), over_long="drop")
    best = solved(free).makespan_ms
    for kind in kinds.values():
        if kind.max_tokens >= max(lengths):
            homogeneous = Strategy.of([(kind, 64 // kind.num_ranks)])
            assert best <= solved(problem_for(lengths, [homogeneous])).makespan_ms * (1 + 1e-9)


@pytest.mark.parametrize("count", [50, 5_000])
def test_a_million_short_sequences_are_planned_in_seconds(count: int) -> None:
    kinds = published("llama-32b-a800-80g", 64)
    strategy = Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 6)])
    rows = tuple(SourceRow("local", length, count) for length in range(5, 205))
    problem = replace(problem_for([], [strategy]), batch=Batch(rows))
    started = time.perf_counter()
    solution = solve(problem, NO_HURRY)
    seconds = time.perf_counter() - started
    check(problem, solution)
    assert solution.makespan_ms / solution.lower_bound_ms < 1.01
    assert seconds < 10  # about 2 on a quiet core; in time linear in sequences it would be hundreds


def test_no_bound_is_taken_from_bundles_of_sequences() -> None:
    """Ten thousand equal sequences fall into few equal bundles; a bound on those would not be one on the sequences."""
    two = Strategy.of([(replace(SMALL, a=0.0, c=0.0, max_tokens=1_000_000), 2)])
    problem = replace(
        problem_for([], [two], target_gap=0.0), batch=Batch((SourceRow("local", 1, 9_999), SourceRow("local", 777, 1)))
    )
    solution = solved(problem)
    assert solution.lower_bound_ms <= (9_999 + 777) / 2 * SMALL.b * (1 + 1e-9)
