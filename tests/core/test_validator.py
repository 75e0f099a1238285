from collections.abc import Callable
from dataclasses import replace

import pytest
from core_cases import DEEP, SMALL, problem_for, solved

from planner_service.core.problem import Problem, SourceRow, Strategy
from planner_service.core.solution import PlannedReplica, Solution
from planner_service.core.validate import InvalidSolution, check

PROBLEM = problem_for([500, 300, 64, 64, 7, 900], [Strategy.of([(SMALL, 2), (DEEP, 1)])], over_long="drop", num_gpus=8)


def _solution() -> Solution:
    return solved(PROBLEM)


def _with(solution: Solution, index: int, **changes: object) -> Solution:
    replicas = list(solution.replicas)
    replicas[index] = replace(replicas[index], **changes)  # type: ignore[arg-type]
    return replace(solution, replicas=tuple(replicas))


def _busy(solution: Solution) -> tuple[int, PlannedReplica]:
    return next((i, replica) for i, replica in enumerate(solution.replicas) if replica.micro_batches)


def _first_micro_batch(solution: Solution, **changes: object) -> Solution:
    index, replica = _busy(solution)
    changed = replace(replica.micro_batches[0], **changes)  # type: ignore[arg-type]
    return _with(solution, index, micro_batches=(changed, *replica.micro_batches[1:]))


def _lose_a_sequence(solution: Solution) -> Solution:
    index, replica = _busy(solution)
    return _with(solution, index, micro_batches=replica.micro_batches[1:])


def _double_a_micro_batch(solution: Solution) -> Solution:
    index, replica = _busy(solution)
    return _with(solution, index, micro_batches=(*replica.micro_batches, replica.micro_batches[0]))


def _shorten_a_sequence(solution: Solution) -> Solution:
    _, replica = _busy(solution)
    row = replica.micro_batches[0].rows[0]
    rows = (SourceRow(row.source, row.length - 1, row.count), *replica.micro_batches[0].rows[1:])
    return _first_micro_batch(solution, rows=rows)


def _one_rank_twice(solution: Solution) -> Solution:
    return _with(solution, 1, ranks=solution.replicas[0].ranks[: len(solution.replicas[1].ranks)] * 1)


def _merge_over_the_cap(solution: Solution) -> Solution:
    index, replica = _busy(solution)
    return _with(solution, index, kind=replace(replica.kind, max_tokens=10))


BROKEN: dict[str, tuple[Callable[[Solution], Solution], str]] = {
    "a lost sequence": (_lose_a_sequence, "gave"),
    "a doubled micro-batch": (_double_a_micro_batch, "gave"),
    "a truncated sequence": (_shorten_a_sequence, "gave"),
    "a micro-batch over its cap": (_merge_over_the_cap, "holds"),
    "a rank in two replicas": (_one_rank_twice, "rank"),
    "a rank outside the cluster": (lambda s: _with(s, 1, ranks=(99,) * len(s.replicas[1].ranks)), "rank 99"),
    "a missing rank": (lambda s: _with(s, 0, ranks=()), "ranks"),
    "a wrong token count": (lambda s: _first_micro_batch(s, num_tokens=1), "tokens"),
    "a wrong padding count": (lambda s: _first_micro_batch(s, num_padding_tokens=5), "tokens"),
    "a wrong micro-batch time": (lambda s: _first_micro_batch(s, time_ms=1.0), "cost model"),
    "an empty micro-batch": (lambda s: _first_micro_batch(s, rows=()), "empty"),
    "a wrong replica makespan": (lambda s: _with(s, _busy(s)[0], makespan_ms=1.0), "micro-batches give"),
    "a simulated time over the closed form": (lambda s: _with(s, _busy(s)[0], simulated_ms=1e6), "closed form"),
    "a wrong plan makespan": (lambda s: replace(s, makespan_ms=1.0, lower_bound_ms=0.5), "slowest replica"),
    "a bound above the makespan": (lambda s: replace(s, lower_bound_ms=s.makespan_ms * 1.01), "bound"),
    "another strategy": (lambda s: replace(s, strategy=Strategy.of([(SMALL, 3)])), "strategy"),
    "a sequence dropped without need": (
        lambda s: replace(_lose_a_sequence(s), dropped=(*s.dropped, *_busy(s)[1].micro_batches[0].rows)),
        "dropped although",
    ),
}


def test_the_planners_own_solution_passes() -> None:
    check(PROBLEM, _solution())


@pytest.mark.parametrize("fault", BROKEN)
def test_the_validator_catches(fault: str) -> None:
    break_it, word = BROKEN[fault]
    with pytest.raises(InvalidSolution, match=word):
        check(PROBLEM, break_it(_solution()))


def test_the_validator_catches_a_drop_under_the_policy_reject() -> None:
    lenient = _solution()
    strict: Problem = replace(PROBLEM, options=replace(PROBLEM.options, over_long="reject"))
    with pytest.raises(InvalidSolution, match="policy is reject"):
        check(strict, lenient)


def test_the_validator_catches_a_tensor_parallel_group_across_nodes() -> None:
    wide = replace(SMALL, layout=replace(SMALL.layout, tp=2))
    problem = problem_for([10, 20], [Strategy.of([(wide, 2)])], num_gpus=16)
    solution = solved(problem)
    with pytest.raises(InvalidSolution, match="across nodes"):
        check(problem, _with(solution, 0, ranks=(7, 8)))
