import math

import pytest
from outcome_factory import make_outcome, make_record

from planner_client.contract import LayoutCost, MicroBatchSample
from worker_agent.demo.agreement import MODES_TOLERANCE
from worker_agent.demo.outcome import figures, held_out_error_pct, hidden_share, predict_ms


def test_the_iteration_time_of_the_planned_mode_includes_the_waits_and_the_plain_one_none() -> None:
    planned = figures([make_record("planned", step, wall_ms=100.0, waited_ms=20.0) for step in range(2)])
    plain = figures([make_record("plain", step, wall_ms=150.0, waited_ms=7.0) for step in range(2)])
    assert planned.iteration_ms == pytest.approx(120.0)
    assert plain.iteration_ms == pytest.approx(150.0)


def test_balance_is_the_slowest_rank_over_the_mean() -> None:
    assert make_record("plain", 0, measured_ms=(300.0, 100.0)).balance == pytest.approx(1.5)
    assert make_record("plain", 0, measured_ms=(200.0, 200.0)).balance == pytest.approx(1.0)


def test_the_hidden_share_counts_what_training_did_not_wait_for() -> None:
    records = [
        make_record("planned", 0, fetch_ms=30.0, waited_ms=31.0),
        make_record("planned", 1, fetch_ms=30.0, waited_ms=0.0),
        make_record("planned", 2, fetch_ms=40.0, waited_ms=20.0),
    ]
    assert hidden_share(records) == pytest.approx(0.5)
    assert hidden_share([make_record("planned", 0, fetch_ms=0.0, waited_ms=0.0)]) is None


def test_a_mode_without_iterations_has_no_figures() -> None:
    with pytest.raises(ValueError, match="no iteration ran"):
        figures([])


@pytest.mark.parametrize(
    ("loss", "agree"), [(2.0, True), (2.0 * (1 + MODES_TOLERANCE / 2), True), (2.01, False), (math.nan, False)]
)
def test_losses_agree_only_within_the_tolerance(loss: float, agree: bool) -> None:  # noqa: FBT001 - a case's answer
    records = (make_record("plain", 0, loss=2.0), make_record("planned", 0, loss=loss))
    assert make_outcome(records=records).losses_agree is agree


def test_one_iteration_that_disagrees_is_enough() -> None:
    good = make_outcome(4).records
    bad = make_record("planned", 3, loss=9.0)
    assert make_outcome(records=good).losses_agree
    assert not make_outcome(records=(*good[:-1], bad)).losses_agree


def test_gaps_that_were_not_proven_are_left_out_of_the_mean() -> None:
    assert figures([make_record("planned", 0, gap=None), make_record("planned", 1, gap=0.2)]).gap == pytest.approx(0.2)
    assert figures([make_record("planned", 0, gap=None)]).gap is None


def test_the_held_out_error_is_that_of_the_cost_model() -> None:
    cost = LayoutCost(tp=1, pp=1, a_ms_per_token2=0.01, b_ms_per_token=1.0, c_ms=5.0, max_tokens=100)
    assert predict_ms(cost, [10, 20]) == pytest.approx(5 + 0.01 * 500 + 30)
    exact = MicroBatchSample(lengths=[10, 20], time_ms=40.0)
    half_off = MicroBatchSample(lengths=[10, 20], time_ms=80.0)
    assert held_out_error_pct(cost, [exact]) == pytest.approx(0.0)
    assert held_out_error_pct(cost, [half_off]) == pytest.approx(50.0)
    with pytest.raises(ValueError, match="no sample was held out"):
        held_out_error_pct(cost, [])


def test_the_document_holds_the_figures_and_every_iteration() -> None:
    document = make_outcome(3).as_document()
    assert len(document["iterations"]) == 6
    assert document["losses_agree"] is True
    assert document["speed_up"] == pytest.approx(1700 / (1100 + 30.2 / 3))
    assert document["modes"]["planned"]["gap"] == pytest.approx(0.001)
    corpus = document["corpus"]
    assert corpus["num_files"] == corpus["num_sequences"] + corpus["num_empty"] + corpus["num_over_long"]
