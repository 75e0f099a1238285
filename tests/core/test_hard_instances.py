"""Instances that once broke the planner, each with its right answer."""

from dataclasses import replace

import pytest
from core_cases import NO_HURRY, SMALL, best_makespan_ms, kind, problem_for, published, solved

from planner_client.contract import PlanRequest, Profile
from planner_service.core.faults import PlanningFault
from planner_service.core.problem import Batch, Pool, SourceRow, Strategy
from planner_service.core.solve import solve
from planner_service.translate import plan_request


@pytest.mark.parametrize(
    ("layout", "num_replicas", "count", "length"), [((2, 1), 29, 5000, 128), ((4, 1), 16, 4500, 256)]
)
def test_thousands_of_equal_sequences_are_dealt_evenly(
    layout: tuple[int, int], num_replicas: int, count: int, length: int
) -> None:
    kinds = published("llama-7b-a800-80g", 64)
    used = kinds[layout]
    problem = replace(
        problem_for([], [Strategy.of([(used, num_replicas)])]), batch=Batch((SourceRow("local", length, count),))
    )
    solution = solved(problem)
    most = -(-count // num_replicas)
    even = most * (used.a * length**2 + used.b * length) + used.c * -(-most * length // used.max_tokens)
    assert solution.makespan_ms <= even * 1.01
    assert solution.lower_bound_ms <= even * (1 + 1e-9)


def test_two_deep_pipelines_with_tight_caps_are_packed_within_two_percent_of_the_best() -> None:
    strategy = Strategy.of([(kind(2, 4, 0.0, 6.0, 0.74, 44), 2)])
    lengths = [22, 22, 23, 19, 44, 19, 28, 39]
    solution = solved(problem_for(lengths, [strategy], num_gpus=16))
    assert solution.makespan_ms <= 1.02 * best_makespan_ms(strategy.replicas, lengths, {})


@pytest.mark.parametrize("scale", [1e-9, 1e-6, 1e-3, 1.0, 1e6])
def test_optimal_means_optimal_however_short_times_are(scale: float) -> None:
    scaled = [
        replace(k, a=k.a * scale, b=k.b * scale, c=k.c * scale) for k in (SMALL, kind(2, 3, 2e-5, 0.02, 2.0, 1100))
    ]
    strategy = Strategy.of((k, 1) for k in scaled)
    lengths = [500, 64, 64, 7, 333, 120]
    solution = solved(problem_for(lengths, [strategy]))
    optimum = best_makespan_ms(strategy.replicas, lengths, {})
    assert solution.optimal
    assert solution.makespan_ms == pytest.approx(optimum, rel=1e-5)


@pytest.mark.parametrize(("tp", "num_gpus", "per_node", "placed"), [(3, 24, 8, 6), (4, 12, 6, 2), (16, 48, 12, 2)])
@pytest.mark.parametrize("lengths", [[], [10, 20, 30]])
@pytest.mark.parametrize("method", ["hydraulis", "plain"])
def test_layouts_that_leave_holes_in_nodes_are_used_as_far_as_they_fit(  # noqa: PLR0917 - parameters
    tp: int, num_gpus: int, per_node: int, placed: int, lengths: list[int], method: str
) -> None:
    awkward = kind(tp, 1, 0.0, 1.0, 1.0, 100)
    problem = replace(
        problem_for(lengths, [], kinds=[awkward], num_gpus=num_gpus, method=method),
        pools=(Pool("test", num_gpus, per_node),),
    )
    assert solved(problem).strategy.num_replicas == placed


def test_a_layout_that_fits_nowhere_is_a_fault_and_not_a_crash() -> None:
    awkward = kind(16, 1, 0.0, 1.0, 1.0, 100)
    with pytest.raises(PlanningFault, match="8 GPUs of test in nodes of 12"):
        solve(replace(problem_for([10], [], kinds=[awkward], num_gpus=8), pools=(Pool("test", 8, 12),)), NO_HURRY)


def test_the_order_of_the_candidates_changes_nothing() -> None:
    kinds = published("llama-32b-a800-80g", 64)
    candidates = [
        Strategy.of([(kinds[16, 1], 4)]),
        Strategy.of([(kinds[16, 1], 1), (kinds[8, 1], 6)]),
        Strategy.of([(kinds[16, 1], 2), (kinds[8, 1], 4)]),
    ]
    for lengths in ([1000] * 3, [20_000, 20_000, 500]):
        first = solved(problem_for(lengths, candidates))
        for order in (candidates[::-1], candidates[1:] + candidates[:1]):
            assert solved(problem_for(lengths, order)) == first


@pytest.mark.parametrize(
    "rows",
    [
        tuple(SourceRow("local", 2**31 - 1 - i, 10**9) for i in range(5)),  # over 64 bits in all
        (SourceRow("local", 10, 200_000_000),),
    ],
)
def test_batches_of_too_many_micro_batches_are_refused_at_once(rows: tuple[SourceRow, ...]) -> None:
    large, small = kind(1, 1, 0, 1, 1, 2**31 - 1), kind(1, 1, 0, 1, 1, 100)
    strategies = [Strategy.of([(small, 8)])] if len(rows) == 1 else [Strategy.of([(large, 1), (small, 7)])]
    with pytest.raises(PlanningFault) as refused:
        solve(replace(problem_for([], strategies), batch=Batch(rows)), NO_HURRY)
    assert refused.value.code == "batch-too-large"


@pytest.mark.parametrize("value", [0.0, 5e-324, 1e-300, 1e-12, 1.0, 1e6])
@pytest.mark.parametrize("name", ["a_ms_per_token2", "b_ms_per_token", "c_ms"])
def test_extreme_coefficients_are_planned_with(name: str, value: float) -> None:
    layout = {"tp": 1, "pp": 2, "a_ms_per_token2": 1e-6, "b_ms_per_token": 0.1, "c_ms": 1.0, "max_tokens": 2**31 - 1}
    profile = Profile.model_validate(
        {
            "name": "extreme",
            "source": "made up for a test",
            "model": {"name": "m", "num_layers": 2, "hidden_size": 64, "vocab_size": 256},
            "device": {"name": "CPU", "memory_bytes": 1},
            "layouts": [{**layout, name: value}],
        }
    )
    for lengths in ([1], [1, 2, 3, 1000], [2**31 - 1, 5]):
        request = PlanRequest(profile=profile, num_gpus=4, lengths=lengths)
        plan = plan_request(request, [profile], remaining_ms=lambda: 1e9)
        assert plan.num_sequences == len(lengths)


def test_a_tiny_model_on_a_large_gpu_gets_the_largest_limit_there_is() -> None:
    profile = Profile.model_validate(
        {
            "name": "toy",
            "source": "made up for a test",
            "model": {"name": "toy", "num_layers": 1, "hidden_size": 4, "vocab_size": 256},
            "device": {"name": "GPU", "memory_bytes": 80 * 2**30},
            "memory": {
                "activation_bytes_per_layer_token_hidden_by_tp": {"1": 1e-9},
                "state_bytes_per_parameter_unit": 200,
                "sharded_state_share": 0.75,
                "context_bytes": {"gpu1": 0, "gpu2": 0, "gpu4": 0, "node": 0},
                "safety_bytes": 0,
            },
            "layouts": [{"tp": 1, "pp": 1, "a_ms_per_token2": 0, "b_ms_per_token": 1, "c_ms": 1}],
        }
    )
    plan = plan_request(PlanRequest(profile=profile, num_gpus=2, lengths=[5]), [profile], remaining_ms=lambda: 1e9)
    assert plan.replicas[0].max_tokens == 2**31 - 128


def test_the_bound_sees_that_replicas_a_little_over_one_micro_batch_need_two() -> None:
    narrow = kind(1, 1, 1e-5, 0.3125, 91.4, 1536)  # 1562 tokens for each of the 64 replicas
    solution = solved(problem_for([25] * 4000, [Strategy.of([(narrow, 64)])]))
    assert max(len(replica.micro_batches) for replica in solution.replicas) == 2
    assert solution.makespan_ms <= solution.lower_bound_ms * 1.015
