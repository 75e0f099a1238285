import itertools
from dataclasses import replace
from math import inf

import pytest
from core_cases import NO_HURRY, PIPED, SMALL, WIDE, batches, best_makespan_ms, problem_for, published, stream
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.problem import Pool, Problem, Strategy
from planner_service.core.solve import solve
from planner_service.core.validate import check
from planner_service.core.window import Window, plan_window

TINY = (SMALL, PIPED, WIDE)
STRATEGIES = tuple(
    Strategy.of(groups)
    for groups in (
        [(SMALL, 4)],
        [(PIPED, 1)],
        [(WIDE, 1)],
        [(SMALL, 3)],
        [(SMALL, 2)],
        [(SMALL, 1)],
    )
)
"""Every strategy of `TINY` on 4 GPUs."""

KINDS_7B = tuple(published("llama-7b-a800-80g", 16).values())
GITHUB = [
    problem_for(lengths, [], kinds=KINDS_7B, num_gpus=16)
    for lengths in itertools.islice(batches(stream("github"), 40_000, 16384), 3)
]


def tiny(lengths: list[int]) -> Problem:
    return problem_for(lengths, [], kinds=TINY, num_gpus=4)


def checked(problems: list[Problem], window: Window, switch_ms: float, initial: Strategy | None = None) -> None:
    for problem, solution in zip(problems, window.solutions, strict=True):
        check(problem, solution)
    ran = [*([initial] if initial else []), *window.strategies]
    changes = sum(before != after for before, after in itertools.pairwise(ran))
    assert window.num_switches == changes
    total = sum(solution.makespan_ms for solution in window.solutions) + (switch_ms * changes if changes else 0.0)
    assert window.total_ms == pytest.approx(total)
    assert window.total_ms <= window.judged_ms * (1 + 1e-9)
    assert window.judged_ms <= min(window.greedy_ms, window.never_ms) * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(20, 1400), min_size=1, max_size=4), min_size=1, max_size=3),
    st.sampled_from([0.0, 3.0, 15.0, 60.0]),
    st.sampled_from([None, *STRATEGIES]),
)
def test_a_window_is_nearly_the_best_of_all_sequences_of_strategies(
    lengths: list[list[int]], switch_ms: float, initial: Strategy | None
) -> None:
    """Invariants.

    1. Every plan passes the validator; totals and changes are as told.
    2. The total is at least the exact optimum over all sequences of strategies, and at most 3% over it.
    3. The strategies were chosen no worse than never to change, or for each iteration alone.
    """
    problems = [tiny(batch) for batch in lengths]
    window = plan_window(problems, switch_ms, NO_HURRY, initial=initial, candidates=STRATEGIES)
    checked(problems, window, switch_ms, initial)
    exact = [
        {s: best_makespan_ms(s.replicas, batch, {}) if s.max_tokens >= max(batch) else inf for s in STRATEGIES}
        for batch in lengths
    ]
    optimum = min(
        sum(row[s] for row, s in zip(exact, sequence, strict=True))
        + switch_ms * sum(a != b for a, b in itertools.pairwise([*([initial] if initial else []), *sequence]))
        for sequence in itertools.product(STRATEGIES, repeat=len(lengths))
    )
    assert optimum * (1 - 1e-9) <= window.total_ms <= optimum * 1.03


def test_with_free_changes_no_iteration_is_slower_than_planned_alone() -> None:
    window = plan_window(GITHUB, 0.0, NO_HURRY)
    checked(GITHUB, window, 0.0)
    for problem, solution in zip(GITHUB, window.solutions, strict=True):
        assert solution.makespan_ms <= solve(problem, NO_HURRY).makespan_ms * (1 + 1e-9)


def test_with_infinitely_costly_changes_one_strategy_serves_all() -> None:
    window = plan_window(GITHUB, inf, NO_HURRY)
    checked(GITHUB, window, inf)
    assert window.num_switches == 0
    assert window.judged_ms == window.never_ms
    for strategy in {solve(problem, NO_HURRY).strategy for problem in GITHUB}:
        if strategy.max_tokens >= max(problem.batch.longest for problem in GITHUB):
            alone = sum(solve(replace(p, candidates=(strategy,)), NO_HURRY).makespan_ms for p in GITHUB)
            assert window.total_ms <= alone * 1.01


def test_dearer_changes_are_made_less_and_cost_more_in_all() -> None:
    windows = [plan_window(GITHUB, switch_ms, NO_HURRY) for switch_ms in (0.0, 20.0, 1e6)]
    for window, switch_ms in zip(windows, (0.0, 20.0, 1e6), strict=True):
        checked(GITHUB, window, switch_ms)
    assert windows[0].num_switches > windows[2].num_switches == 0
    totals = [window.judged_ms for window in windows]
    assert totals[0] <= totals[1] <= totals[2]


def test_what_runs_now_is_kept_while_changing_costs_more_than_it_gains() -> None:
    running = Strategy.of([(kind, 2) for kind in KINDS_7B if (kind.layout.tp, kind.layout.pp) == (8, 1)])
    kept = plan_window(GITHUB[:2], 1e6, NO_HURRY, initial=running)
    assert kept.strategies == (running, running)
    assert kept.num_switches == 0
    left = plan_window(GITHUB[:2], 1.0, NO_HURRY, initial=running)
    assert left.num_switches > 0
    checked(GITHUB[:2], left, 1.0, running)


def test_a_change_to_a_warm_strategy_costs_what_is_said() -> None:
    best = solve(GITHUB[0], NO_HURRY).strategy
    running = Strategy.of([(kind, 2) for kind in KINDS_7B if (kind.layout.tp, kind.layout.pp) == (8, 1)])
    window = plan_window(GITHUB[:1], 1e6, NO_HURRY, initial=running, warm={best}, warm_switch_ms=2.0)
    assert window.strategies == (best,)
    assert window.num_switches == 1
    assert window.total_ms == pytest.approx(window.solutions[0].makespan_ms + 2.0)


def test_the_cost_of_a_change_may_depend_on_both_strategies() -> None:
    def switch_cost(previous: Strategy, following: Strategy) -> float:
        return 1e6 if following.num_replicas > previous.num_replicas else 0.0

    window = plan_window(GITHUB, 1e9, NO_HURRY, switch_cost=switch_cost)
    numbers = [strategy.num_replicas for strategy in window.strategies]
    assert numbers == sorted(numbers, reverse=True)
    assert window.total_ms == pytest.approx(sum(solution.makespan_ms for solution in window.solutions))


def test_a_job_with_a_list_stays_on_its_list() -> None:
    by_layout = {(kind.layout.tp, kind.layout.pp): kind for kind in KINDS_7B}
    listed = (Strategy.of([(by_layout[8, 1], 2)]), Strategy.of([(by_layout[8, 1], 1), (by_layout[4, 1], 2)]))
    problems = [replace(problem, candidates=listed) for problem in GITHUB]
    window = plan_window(problems, 10.0, NO_HURRY, candidates=[Strategy.of([(by_layout[4, 1], 4)])])
    checked(problems, window, 10.0)
    assert set(window.strategies) <= set(listed)


def test_a_sequence_that_only_one_strategy_holds_forces_a_change() -> None:
    problems = [tiny([600, 500, 400, 600]), tiny([1400]), tiny([600, 500, 400, 600])]
    window = plan_window(problems, 1.0, NO_HURRY)
    checked(problems, window, 1.0)
    assert window.strategies[1] == Strategy.of([(WIDE, 1)])
    never = plan_window(problems, inf, NO_HURRY)
    assert set(never.strategies) == {Strategy.of([(WIDE, 1)])}


def test_an_empty_batch_and_an_empty_window_take_no_time() -> None:
    window = plan_window([tiny([]), tiny([500]), tiny([])], 5.0, NO_HURRY)
    assert window.num_switches == 0
    assert window.total_ms == pytest.approx(window.solutions[1].makespan_ms)
    nothing = plan_window([], 5.0, NO_HURRY)
    assert (nothing.total_ms, nothing.num_switches, nothing.solutions) == (0.0, 0, ())


def test_iterations_of_unlike_clusters_are_refused() -> None:
    other = replace(tiny([500]), pools=(Pool("test", 8, 8),))
    with pytest.raises(ValueError, match="iteration 1 has other pools"):
        plan_window([tiny([500]), other], 5.0, NO_HURRY)


def test_the_same_window_is_planned_twice_alike() -> None:
    first, second = (plan_window(GITHUB[:3], 20.0, NO_HURRY) for _ in range(2))
    assert first == second


def test_progress_tells_of_every_plan() -> None:
    told: list[tuple[int, int]] = []
    plan_window([tiny([500]), tiny([600])], 5.0, NO_HURRY, report=lambda done, total: told.append((done, total)))
    assert told == [(0, 4), (1, 4), (2, 4), (3, 4)]
