from itertools import combinations, pairwise, product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core import choose as choosing
from planner_service.core.choose import choose, set_value
from planner_service.core.window import cheapest_path


def tables(most_rows: int = 6, most_columns: int = 7) -> st.SearchStrategy[np.ndarray]:
    entry = st.one_of(st.integers(1, 30).map(float), st.just(inf))
    return st.integers(1, most_rows).flatmap(
        lambda rows: st.integers(1, most_columns).flatmap(
            lambda columns: st.lists(
                st.lists(entry, min_size=columns, max_size=columns), min_size=rows, max_size=rows
            ).map(np.array)
        )
    )


def best_by_brute_force(table: np.ndarray, most: int, weights: list[int], limit: int) -> tuple[int, float]:
    values = []
    for size in range(1, most + 1):
        for chosen in combinations(range(table.shape[1]), size):
            if sum(weights[column] for column in chosen) <= limit:
                best = [min(row[column] for column in chosen) for row in table.tolist()]
                values.append((best.count(inf), sum(value for value in best if value < inf)))
    return min(values)


@given(tables(), st.integers(1, 3), st.data())
def test_few_sets_are_all_compared(table: np.ndarray, most: int, data: st.DataObject) -> None:
    """Invariants.

    1. The set's value is the least of all sets within the limit.
    2. No strategy of the set could be left out without losing.
    """
    num_columns = table.shape[1]
    weights = data.draw(st.lists(st.integers(1, 4), min_size=num_columns, max_size=num_columns))
    limit = data.draw(st.integers(max(weights), 12))
    chosen = choose(table, most, lambda chosen: sum(weights[column] for column in chosen) <= limit)
    if np.isfinite(table).any():
        assert set_value(table, chosen) == best_by_brute_force(table, most, weights, limit)
        assert 1 <= len(chosen) <= most
    for left_out in chosen if len(chosen) > 1 else ():
        assert set_value(table, tuple(c for c in chosen if c != left_out)) > set_value(table, chosen)


def test_greedy_choice_and_swaps_are_optimal_on_nearly_all_small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "MOST_ENUMERATED", 0)
    generator = np.random.default_rng(0)
    num_optimal = 0
    for _ in range(100):
        table = generator.integers(10, 100, size=(8, 9)).astype(float)
        table[generator.random(table.shape) < 0.2] = inf
        best = best_by_brute_force(table, 3, [0] * 9, 0)
        value = set_value(table, choose(table, 3))
        assert value >= best
        num_optimal += value == best
    assert num_optimal >= 90


@given(tables(8, 9), st.integers(1, 3), st.data())
def test_a_choice_is_not_worse_than_the_set_it_starts_from(table: np.ndarray, most: int, data: st.DataObject) -> None:
    columns = range(table.shape[1])
    start = data.draw(st.sets(st.sampled_from(columns), min_size=1, max_size=min(most, table.shape[1])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "MOST_ENUMERATED", 0)
        chosen = choose(table, most, starts=[tuple(start)])
    assert set_value(table, chosen) <= set_value(table, tuple(sorted(start)))


def test_nothing_is_chosen_if_nothing_is_allowed() -> None:
    assert choose(np.array([[1.0, 2.0]]), 2, lambda _: False) == ()


def total_of(states: tuple[int, ...], table: np.ndarray, switches: np.ndarray, before: np.ndarray) -> float:
    changes = sum(switches[a, b] for a, b in pairwise(states))
    return float(sum(row[s] for row, s in zip(table, states, strict=True)) + changes + before[states[0]])


@settings(max_examples=200)
@given(tables(5, 4), st.data())
def test_the_cheapest_path_is_that_of_brute_force(table: np.ndarray, data: st.DataObject) -> None:
    """Invariants.

    1. The total is the least of all sequences of strategies, costs of changes and of the beginning included.
    2. The total is that of the path's strategies, and the changes are counted.
    3. Where no total is finite the path takes as few infinite terms as possible.
    """
    num_states = table.shape[1]
    cost = st.one_of(st.integers(0, 9).map(float), st.just(inf))
    switches = np.array(
        data.draw(
            st.lists(st.lists(cost, min_size=num_states, max_size=num_states), min_size=num_states, max_size=num_states)
        )
    )
    np.fill_diagonal(switches, 0.0)
    before = np.array(data.draw(st.lists(cost, min_size=num_states, max_size=num_states)))
    path = cheapest_path(table, switches, before)
    every = list(product(range(num_states), repeat=len(table)))
    best = min(total_of(states, table, switches, before) for states in every)
    assert path.total_ms == best
    assert total_of(path.states, table, switches, before) == best
    assert path.num_switches == sum(a != b for a, b in zip(path.states, path.states[1:], strict=False))

    def num_infinite(states: tuple[int, ...]) -> int:
        terms = [row[s] for row, s in zip(table, states, strict=True)]
        terms += [switches[a, b] for a, b in pairwise(states)]
        return [*terms, before[states[0]]].count(inf)

    assert num_infinite(path.states) == min(num_infinite(states) for states in every)


def test_of_equal_paths_the_one_with_fewer_changes_is_taken() -> None:
    free = np.zeros((2, 2))
    path = cheapest_path(np.array([[1.0, 2.0], [1.0, 1.0], [2.0, 1.0]]), free, np.zeros(2))
    assert path.total_ms == 3.0
    assert path.num_switches == 1


def test_no_iterations_have_an_empty_path() -> None:
    assert cheapest_path(np.empty((0, 0)), np.empty((0, 0)), np.empty(0)).states == ()
