import itertools
import math
import random
from statistics import NormalDist

from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.cost import replica_ms
from planner_service.core.order import best_order
from planner_service.core.simulate import one_forward_one_backward, simulate_1f1b


@st.composite
def heavy_tailed(draw: st.DrawFn) -> list[float]:
    spread = draw(st.sampled_from([0.01, 0.3, 1.0, 2.0, 4.0]))
    normal = st.integers(0, 10**6).map(lambda part: NormalDist().inv_cdf((part + 0.5) / (10**6 + 1)))
    return [math.exp(spread * value) for value in draw(st.lists(normal, min_size=1, max_size=40))]


TIMES = st.one_of(st.lists(st.floats(0.01, 1000), min_size=1, max_size=16), heavy_tailed())


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 8), TIMES)
def test_the_chosen_order_never_runs_over_the_closed_form(num_stages: int, times: list[float]) -> None:
    """Invariants:

    1. The order is a permutation of the micro-batches.
    2. Its simulated time is that of simulating it.
    3. It is at most the closed form and at least what one stage computes.
    4. It is at most that of the order given and of the sorted ones.
    5. The same times give the same order.
    """
    order, simulated = best_order(num_stages, times)
    assert sorted(order) == list(range(len(times)))
    assert simulated == simulate_1f1b(num_stages, [times[index] for index in order])
    assert simulated <= replica_ms(num_stages, times) * (1 + 1e-9)
    assert simulated >= math.fsum(times) * (1 - 1e-9)
    for other in (times, sorted(times), sorted(times, reverse=True)):
        assert simulated <= simulate_1f1b(num_stages, other) * (1 + 1e-8)
    assert best_order(num_stages, list(times)) == (order, simulated)


def test_rising_then_falling_orders_never_run_over_the_closed_form_whatever_the_times() -> None:
    # Simulated time is sublinear in the times, and rising-then-falling times are non-negative multiples of intervals
    # that share the largest micro-batch, so it suffices that no interval of ones runs over. Thirds of 3 are exact.
    for num_stages in range(1, 9):
        for count in range(1, 41):
            for begin in range(count):
                for end in range(begin + 1, count + 1):
                    times = [3.0 if begin <= index < end else 0.0 for index in range(count)]
                    assert simulate_1f1b(num_stages, times) == 3.0 * (end - begin + num_stages - 1)


def test_large_micro_batches_at_both_ends_do_run_over_so_the_check_of_intervals_can_fail() -> None:
    assert simulate_1f1b(2, [3.0, 0.0, 3.0]) > 3.0 * (2 + 2 - 1)


def test_the_search_stays_close_to_the_best_of_all_orders() -> None:
    draw = random.Random(5)  # noqa: S311 - the same times each time
    over = []
    for num_stages in (2, 4):
        for _ in range(10):
            times = [draw.lognormvariate(0, 1) for _ in range(6)]
            best = min(simulate_1f1b(num_stages, order) for order in itertools.permutations(times))
            over.append(best_order(num_stages, times)[1] / best - 1)
    assert min(over) >= -1e-9
    assert sum(over) / len(over) <= 0.003
    assert max(over) <= 0.03


def test_a_search_that_has_enough_ends_but_still_keeps_to_the_closed_form() -> None:
    times = [float(1 + index * 7 % 11) for index in range(12)]
    closed_form = replica_ms(4, times)
    assert best_order(4, times)[1] < best_order(4, times, good_enough_ms=closed_form)[1] <= closed_form


def test_very_many_micro_batches_are_ordered_in_bounded_time_and_keep_to_the_closed_form() -> None:
    times = [float(1 + index * 7919 % 1009) for index in range(20_000)]
    order, simulated = best_order(4, times)
    assert sorted(order) == list(range(20_000))
    assert simulated <= replica_ms(4, times) * (1 + 1e-9)


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
