from collections.abc import Callable
from dataclasses import replace

import pytest
from core_cases import DEEP, PIPED, SMALL, WIDE, problem_for
from option_cases import groups_of, planned

from planner_service.core.problem import GroupRow, Options, Problem, Strategy
from planner_service.core.solution import PlannedMicroBatch, Solution
from planner_service.core.validate import InvalidSolution, check

UNITS = [(300, 64), (300, 64), (64,), (7,), (7,), (500,)]
STRATEGY = Strategy.of([(SMALL, 2), (DEEP, 1)])


def _problem(**options: object) -> Problem:
    lengths = [length for unit in UNITS for length in unit]
    return replace(problem_for(lengths, [STRATEGY], **options), groups=groups_of(UNITS))  # type: ignore[arg-type]


def _planned(**options: object) -> tuple[Problem, Solution]:
    problem = _problem(**options)
    solution = planned(problem)
    assert solution is not None
    return problem, solution


def _asked(problem: Problem, **options: object) -> Problem:
    return replace(problem, options=replace(problem.options, **options))  # type: ignore[arg-type]


def _with_micro_batches(solution: Solution, change: Callable[[PlannedMicroBatch], PlannedMicroBatch]) -> Solution:
    replicas = tuple(
        replace(replica, micro_batches=tuple(map(change, replica.micro_batches))) for replica in solution.replicas
    )
    return replace(solution, replicas=replicas)


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        ({"count_multiple": 5}, "no multiple of 5"),
        ({"is_padded": True}, "says"),
        ({"homogeneous": True}, "not homogeneous"),
        ({"max_process_groups": 0}, "needs 1 process groups but at most 0"),
    ],
)
def test_the_validator_catches_a_plan_that_was_made_without_an_option(asked: dict[str, object], word: str) -> None:
    problem, solution = _planned()
    with pytest.raises(InvalidSolution, match=word):
        check(_asked(problem, **asked), solution)


def test_the_validator_catches_unequal_counts() -> None:
    three = problem_for([600, 600, 600], [Strategy.of([(SMALL, 2)])])
    solution = planned(three)
    assert solution is not None
    with pytest.raises(InvalidSolution, match="1 to 2 micro-batches although equal counts were asked for"):
        check(_asked(three, equal_counts=True), solution)


def test_the_validator_catches_fewer_micro_batches_than_stages_and_a_forbidden_idle_replica() -> None:
    one = problem_for([10], [Strategy.of([(PIPED, 2)])])
    solution = planned(one)
    assert solution is not None
    with pytest.raises(InvalidSolution, match="runs 1 micro-batches on 2 stages"):
        check(_asked(one, at_least_stages=True), solution)
    with pytest.raises(InvalidSolution, match="is idle although that is forbidden"):
        check(_asked(one, idle_allowed=False), solution)


def test_the_validator_catches_groups_that_are_not_named_or_not_held() -> None:
    problem, solution = _planned()
    with pytest.raises(InvalidSolution, match="gave 2 groups"):
        check(problem, _with_micro_batches(solution, lambda m: replace(m, groups=())))
    foreign = GroupRow("local", (500, 500), 1)
    with pytest.raises(InvalidSolution, match="names groups with more sequences of 500 tokens"):
        check(problem, _with_micro_batches(solution, lambda m: replace(m, groups=(*m.groups, foreign))))


def test_the_validator_catches_part_of_a_dropped_group_that_was_kept_and_a_group_dropped_without_need() -> None:
    units = [(30, 5000), (40, 50)]
    lengths = [length for unit in units for length in unit]
    base = problem_for(lengths, [Strategy.of([(SMALL, 1)])], over_long="drop")
    problem = replace(base, groups=groups_of(units))
    solution = planned(problem)
    assert solution is not None
    without = planned(base)
    assert without is not None
    with pytest.raises(InvalidSolution, match="belong to groups that cannot run but were kept"):
        check(problem, without)
    with pytest.raises(InvalidSolution, match="dropped although"):
        check(base, solution)


def test_the_validator_counts_process_groups_off_the_ranks() -> None:
    problem = problem_for([10, 20], [Strategy.of([(PIPED, 1), (WIDE, 1), (DEEP, 1)])], max_process_groups=6)
    solution = planned(problem)
    assert solution is not None  # a (2,2) takes four groups, a (4,1) one and a (1,3) one
    with pytest.raises(InvalidSolution, match="needs 6 process groups but at most 5"):
        check(_asked(problem, max_process_groups=5), solution)


def test_a_plan_made_by_the_options_passes() -> None:
    problem, solution = _planned(equal_counts=True, count_multiple=2, is_padded=True)
    assert problem.options == Options(equal_counts=True, count_multiple=2, is_padded=True)
    check(problem, solution)
