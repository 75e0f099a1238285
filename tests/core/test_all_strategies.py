"""The search over all strategies of a cluster, and what is proven of all of them."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from core_cases import (
    DEEP,
    PIPED,
    SMALL,
    WIDE,
    batch_of,
    batches,
    best_makespan_ms,
    problem_for,
    published,
    solved,
    stream,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.bounds import Fleet
from planner_service.core.certify import Certifier, branches
from planner_service.core.effort import Effort
from planner_service.core.length_table import LengthTable
from planner_service.core.neighbours import Cluster
from planner_service.core.prices import Prices, guessed_weights
from planner_service.core.problem import Options, Pool, Problem, ReplicaKind, Strategy

KINDS = (SMALL, PIPED, DEEP, WIDE)
BATCHES = [lengths for n in range(1, 6) for lengths in itertools.combinations_with_replacement([1, 7, 64, 500], n)]
EFFORT = Effort(deterministic_s=0.15, remaining_ms=lambda: 1e9)


def every_strategy(kinds: Sequence[ReplicaKind], num_gpus: int) -> Iterator[Strategy]:
    """List the strategies to which no replica can be added; fewer replicas are never faster."""
    ranges = [range(num_gpus // kind.num_ranks + 1) for kind in kinds]
    for counts in itertools.product(*ranges):
        taken = sum(count * kind.num_ranks for count, kind in zip(counts, kinds, strict=True))
        if 0 <= num_gpus - taken < min(kind.num_ranks for kind in kinds):
            yield Strategy.of((kind, count) for kind, count in zip(kinds, counts, strict=True) if count)


@pytest.mark.parametrize("num_gpus", [1, 3, 4, 6])
def test_every_tiny_plan_is_optimal_over_all_strategies_too(num_gpus: int) -> None:
    """Invariants, over every batch of up to five sequences of 1, 7, 64 and 500 tokens:

    1. The makespan is the optimum's over all strategies in at least 95 % of the batches.
    2. No plan beats the exhaustive optimum (else one of the two is wrong).
    3. The bound over all strategies is at most the optimum; a plan called optimal is.
    """
    kinds = [kind for kind in KINDS if kind.num_ranks <= num_gpus]
    known: dict[Strategy, dict[tuple[int, tuple[int, ...]], float]] = {
        strategy: {} for strategy in every_strategy(kinds, num_gpus)
    }
    num_optimal = 0
    for lengths in BATCHES:
        solution = solved(problem_for(lengths, [], kinds=kinds, num_gpus=num_gpus), EFFORT)
        optimum = min(best_makespan_ms(strategy.replicas, lengths, cache) for strategy, cache in known.items())
        ratio = solution.makespan_ms / optimum
        assert ratio >= 1 - 1e-9, (lengths, solution.makespan_ms, optimum)
        assert solution.bound_scope == "all-strategies"
        assert solution.lower_bound_ms <= optimum * (1 + 1e-9), lengths
        assert not solution.optimal or ratio <= 1 + 1e-5, lengths
        num_optimal += ratio <= 1 + 1e-9
    assert num_optimal >= 0.95 * len(BATCHES)


def test_gpus_of_two_types_are_planned_together() -> None:
    """Invariants, on two GPUs of one type and three of another: as for one type; replicas are on their own GPUs."""
    other = replace(SMALL, device="other", b=0.11, max_tokens=400)
    piped = replace(DEEP, device="other", b=0.03)
    pools = (Pool("test", 2, 8), Pool("other", 3, 8))
    ours = list(every_strategy([SMALL], 2))
    theirs = list(every_strategy([other, piped], 3))
    known: dict[Strategy, dict[tuple[int, tuple[int, ...]], float]] = {
        Strategy.of([*one.groups, *two.groups]): {} for one in ours for two in theirs
    }
    for lengths in BATCHES[::3]:
        problem = Problem(batch_of(lengths), (SMALL, other, piped), (), pools, Options())
        solution = solved(problem, EFFORT)
        optimum = min(best_makespan_ms(strategy.replicas, lengths, cache) for strategy, cache in known.items())
        assert 1 - 1e-9 <= solution.makespan_ms / optimum <= 1.02, lengths
        assert solution.lower_bound_ms <= optimum * (1 + 1e-9), lengths
        for planned in solution.replicas:
            assert set(planned.ranks) <= set(range(2) if planned.kind.device == "test" else range(2, 5))


@pytest.mark.parametrize("num_gpus", [16, 32, 64])
def test_no_homogeneous_strategy_is_faster_than_what_the_search_finds(num_gpus: int) -> None:
    kinds = list(published("llama-32b-a800-80g", num_gpus).values())
    fitting = [kind for kind in kinds if kind.num_ranks <= num_gpus]
    for lengths in itertools.islice(batches(stream("github"), 100_000), 2):
        free = solved(problem_for(lengths, [], kinds=fitting, num_gpus=num_gpus), EFFORT)
        alike = solved(problem_for(lengths, [], kinds=fitting, num_gpus=num_gpus, homogeneous=True), EFFORT)
        assert len(alike.strategy.groups) == 1
        assert free.makespan_ms <= alike.makespan_ms * (1 + 1e-9)
        assert free.lower_bound_ms <= alike.lower_bound_ms * (1 + 1e-9)
        assert free.makespan_ms / free.lower_bound_ms <= 1.15


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 9), min_size=4, max_size=4), st.integers(0, 12), st.data())
def test_branches_keep_every_strategy_of_a_node(fractional: list[float], num_gpus: int, data: st.DataObject) -> None:
    """Invariants: each strategy within a node's limits is within those of just one of its two parts."""
    node = Fleet.of_cluster(KINDS, [Pool("test", num_gpus, 8)])
    for _ in range(data.draw(st.integers(0, 3))):
        parts = list(branches(node, tuple(fractional)))
        if not parts:
            break
        fractional = data.draw(st.lists(st.floats(0, 9), min_size=4, max_size=4))
        node = parts[data.draw(st.integers(0, 1))]
    parts = list(branches(node, tuple(fractional)))
    counts = data.draw(st.tuples(*[st.integers(0, 9)] * 4))

    def holds(fleet: Fleet) -> bool:
        return all(
            low <= count and (high is None or count <= high)
            for count, low, high in zip(counts, fleet.fewest, fleet.most, strict=True)
        )

    if parts:
        assert holds(node) == (sum(map(holds, parts)) == 1)
        assert not all(map(holds, parts))


@pytest.mark.parametrize("lengths", BATCHES[5::11])
def test_a_closed_tree_proves_a_time_that_no_strategy_beats(lengths: tuple[int, ...]) -> None:
    kinds, num_gpus = list(KINDS), 6
    optimum = min(best_makespan_ms(strategy.replicas, lengths, {}) for strategy in every_strategy(kinds, num_gpus))
    table = LengthTable.of(kinds, batch_of(lengths))
    for share in (0.5, 0.9, 0.99, 1.001, 1.1):
        certifier = Certifier(Fleet.of_cluster(kinds, [Pool("test", num_gpus, 8)]), table, 0.0, lambda: True)
        proven = certifier.prove(optimum * share, 60)
        assert certifier.bound_ms <= optimum * (1 + 1e-9)
        assert not (proven and share > 1)
        if proven:
            assert certifier.bound_ms >= optimum * share * (1 - 1e-3)


@pytest.mark.parametrize("lengths", BATCHES[3::13])
def test_prices_rule_out_only_strategies_that_need_more_time(lengths: tuple[int, ...]) -> None:
    cluster = Cluster(KINDS, [Pool("test", 6, 8)])
    table = LengthTable.of(KINDS, batch_of(lengths))
    strategies = list(every_strategy(KINDS, 6))
    optima = [best_makespan_ms(strategy.replicas, lengths, {}) for strategy in strategies]
    for share in (0.7, 1.0, 1.3):
        time_ms = min(optima) * share
        slack = Prices(table, guessed_weights(table), time_ms).slack([cluster.counts(one) for one in strategies])
        for optimum, left in zip(optima, slack, strict=True):
            assert left >= -1e-9 or optimum > time_ms * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 500), min_size=1, max_size=12), st.integers(1, 12), st.integers(0, 20))
def test_a_limit_on_process_groups_is_kept(lengths: list[int], num_gpus: int, most: int) -> None:
    """Invariant: the plan needs at most so many groups of two ranks or more."""
    problem = problem_for(
        lengths, [], kinds=[kind for kind in KINDS if kind.num_ranks <= num_gpus], num_gpus=num_gpus,
        max_process_groups=most,
    )  # fmt: skip
    effort = Effort(deterministic_s=0.01, remaining_ms=lambda: 1e9)
    solution = solved(problem, effort)
    groups = 0
    for replica in solution.replicas:
        layout = replica.kind.layout
        groups += layout.pp * (layout.tp > 1) + layout.tp * (layout.pp > 1)
    assert groups <= most


def test_neighbours_fit_the_cluster_and_differ() -> None:
    cluster = Cluster(KINDS, [Pool("test", 12, 8)])
    centre = cluster.counts(Strategy.of([(PIPED, 1), (DEEP, 1), (SMALL, 5)]))
    near = list(dict.fromkeys(cluster.neighbours(centre)))
    assert len(near) > 8
    for counts in near:
        assert cluster.left(counts, "test") >= 0
        assert min(counts) >= 0
    assert any(counts != centre for counts in near)


@pytest.mark.parametrize("option", ["equal_counts", "idle_forbidden"])
def test_gpus_are_left_over_where_no_replica_may_be_idle(option: str) -> None:
    """Two sequences on thirteen GPUs: two replicas are faster than one, although they leave GPUs unused."""
    kinds = [kind for kind in published("llama-13b-a800-80g", 13).values() if kind.num_ranks <= 13]
    chosen = {"equal_counts": True} if option == "equal_counts" else {"idle_allowed": False}
    problem = problem_for([1541, 3159], [], kinds=kinds, num_gpus=13, **chosen)
    solution = solved(problem, EFFORT)
    assert all(replica.micro_batches for replica in solution.replicas)
    alone = {kind: max(kind.pp * (kind.c + kind.a * s * s + kind.b * s) for s in (1541, 3159)) for kind in kinds}
    two = min(alone[kind] for kind in kinds if 2 * kind.num_ranks <= 13 and kind.max_tokens >= 3159)
    assert solution.makespan_ms <= two * (1 + 1e-9)
