import itertools

import pytest
from core_cases import DEEP, PIPED, SMALL, WIDE, best_makespan_ms, problem_for, solved

from planner_service.core.bounds import CapacityClass, Fleet, Weights, bound_with_weights, quick_strategy_bound
from planner_service.core.length_table import LengthTable
from planner_service.core.problem import ReplicaKind, Strategy

BATCHES = [lengths for n in range(1, 7) for lengths in itertools.combinations_with_replacement([1, 7, 64, 500], n)]
STRATEGIES = {
    "one": [SMALL],
    "two alike": [SMALL, SMALL],
    "one pipeline of three stages": [DEEP],
    "two pipelines": [PIPED, DEEP],
    "pipelines alike": [PIPED, PIPED],
    "with and without a pipeline": [SMALL, PIPED],
    "three unlike": [SMALL, PIPED, DEEP],
    "wide and two small": [WIDE, SMALL, SMALL],
    "two deep and a small": [DEEP, DEEP, SMALL],
    "wide, piped, deep": [WIDE, PIPED, DEEP],
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_tiny_plan_is_optimal_or_nearly_and_no_bound_exceeds_the_optimum(name: str) -> None:
    """Invariants, over every batch of up to six sequences of 1, 7, 64 and 500 tokens:

    1. The makespan is the optimum's in at least 95 % of the batches, never over 2 % more.
    2. No plan beats the exhaustive optimum (else one of the two is wrong).
    3. The strategy's bound and the bound over all strategies are at most the optimum.
    """
    replicas: list[ReplicaKind] = STRATEGIES[name]
    strategy = Strategy.of((kind, 1) for kind in replicas)
    known: dict[tuple[int, tuple[int, ...]], float] = {}
    num_optimal = 0
    for lengths in BATCHES:
        solution = solved(problem_for(lengths, [strategy]))
        optimum = best_makespan_ms(strategy.replicas, lengths, known)
        ratio = solution.makespan_ms / optimum
        assert 1 - 1e-9 <= ratio <= 1.02, (lengths, solution.makespan_ms, optimum)
        assert solution.lower_bound_ms <= optimum * (1 + 1e-9), lengths
        assert solution.all_strategies_bound_ms <= optimum * (1 + 1e-9), lengths
        assert not solution.optimal or ratio <= 1 + 1e-3, lengths
        assert not solution.cut_by_wall_clock
        num_optimal += ratio <= 1 + 1e-9
    assert num_optimal >= 0.95 * len(BATCHES)


@pytest.mark.parametrize("name", ["two alike", "three unlike", "two pipelines", "wide, piped, deep"])
def test_any_weights_prove_a_bound_that_is_at_most_the_optimum(name: str) -> None:
    """Invariant: whatever weights the classes get, the bound they prove holds (sampled over batches and weights)."""
    strategy = Strategy.of((kind, 1) for kind in STRATEGIES[name])
    known: dict[tuple[int, tuple[int, ...]], float] = {}
    classes = tuple(
        CapacityClass(group, low, high)
        for group in range(len(strategy.groups))
        for low, high in ((1, 1), (2, 2), (3, None))
    )
    for position, lengths in enumerate(BATCHES[::7]):
        table = LengthTable.of([kind for kind, _ in strategy.groups], problem_for(lengths, [strategy]).batch)
        optimum = best_makespan_ms(strategy.replicas, lengths, known)
        work = tuple(1.0 + (position * 7 + 3 * index) % 5 for index in range(len(classes)))
        token = tuple(0.01 * ((position + index) % 4) * (entry.high is not None) for index, entry in enumerate(classes))
        assert bound_with_weights(Fleet.of_strategy(strategy), table, Weights(classes, work, token)) <= optimum * (
            1 + 1e-9
        )
        assert quick_strategy_bound(strategy, table) <= optimum * (1 + 1e-9)


def test_the_best_of_several_candidates_is_taken() -> None:
    candidates = [Strategy.of([(SMALL, 2)]), Strategy.of([(PIPED, 1), (DEEP, 1)]), Strategy.of([(WIDE, 1)])]
    for lengths in BATCHES[::5]:
        solution = solved(problem_for(lengths, candidates))
        optima = [best_makespan_ms(strategy.replicas, lengths, {}) for strategy in candidates]
        assert solution.makespan_ms <= min(optima) * (1 + 1e-6), (lengths, str(solution.strategy))
