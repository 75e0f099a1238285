from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.cost import replica_ms
from planner_service.core.order import best_order
from planner_service.core.simulate import one_forward_one_backward, simulate_1f1b

TIMES = st.lists(st.floats(0.01, 1000), min_size=1, max_size=16)


@settings(max_examples=400, deadline=None)
@given(st.integers(1, 8), TIMES)
def test_the_chosen_order_never_runs_over_the_closed_form(num_stages: int, times: list[float]) -> None:
    """Invariants:

    1. The order is a permutation of the micro-batches.
    2. Its simulated time is that of simulating it.
    3. It is at most the closed form and at least what one stage computes.
    """
    order, simulated = best_order(num_stages, times)
    assert sorted(order) == list(range(len(times)))
    assert simulated == simulate_1f1b(num_stages, [times[index] for index in order])
    assert simulated <= replica_ms(num_stages, times) * (1 + 1e-9)
    assert simulated >= sum(times) * (1 - 1e-9)


def test_equal_micro_batches_take_exactly_the_closed_form() -> None:
    for num_stages in (1, 2, 4, 8):
        for count in (1, 2, 5, 16):
            times = [30.0] * count
            assert abs(simulate_1f1b(num_stages, times) - replica_ms(num_stages, times)) < 1e-9


def test_arrival_order_can_run_over_the_closed_form_which_is_why_order_is_chosen() -> None:
    times = [1.0, 100.0] * 8
    assert simulate_1f1b(4, times) > 1.05 * replica_ms(4, times)
    assert best_order(4, times)[1] <= replica_ms(4, times) * (1 + 1e-9)


def test_two_micro_batches_on_two_stages_by_hand() -> None:
    # Stage 0: F0 0-1, F1 1-3, idle until B0 of stage 1 ends at 4, B0 4-6, B1 of stage 1 ends at 10, B1 10-14.
    # Stage 1: F0 1-2, B0 2-4, F1 4-6, B1 6-10.
    assert simulate_1f1b(2, [3.0, 6.0]) == 14.0


def test_each_stage_runs_every_forward_and_backward_once_and_holds_no_more_than_its_share() -> None:
    for num_stages in (1, 2, 3, 8):
        for count in (1, 2, 3, 9):
            for stage in range(num_stages):
                operations = one_forward_one_backward(num_stages, stage, count)
                assert sorted(operations) == sorted([(f, i) for i in range(count) for f in (True, False)])
                live = most = 0
                for is_forward, _ in operations:
                    live += 1 if is_forward else -1
                    most = max(most, live)
                assert most <= num_stages - stage
