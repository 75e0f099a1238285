"""Data-parallel replicas, losses, timings and shared plans, as four real ranks report them."""

import functools

import numpy as np
import pytest
import torch
from launched import DATA_PARALLEL, DROPPED_FROM, ELEVEN_AND_101, HELD, SCENARIOS, WORLD_SIZE
from plan_factory import make_plan
from reference import flat_weights, reference_step
from scenarios import CONFIG, SEED, Breakage, Report, broken, make_optimizer
from torch import Tensor

from worker_agent.executor.faults import IterationFailed, NotFinite
from worker_agent.executor.model import Decoder
from worker_agent.executor.runner import IterationRunner
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.shards import ShardedState

pytestmark = pytest.mark.timeout(300)
TOLERANCE = 1e-9
Launch = list[tuple[dict[str, Report], dict[str, tuple[str, str]]]]


@functools.cache
def expected(name: str) -> tuple[float, Tensor, list[float]]:
    """Loss, gradient and losses by sequence of a scenario's sequences, by independent code in this process."""
    return expected_of(SCENARIOS[name].held, SCENARIOS[name].config)


def expected_of(held: dict[str, list[Tensor]], config: DecoderConfig = CONFIG) -> tuple[float, Tensor, list[float]]:
    model = Decoder(config, seed=SEED, dtype=torch.float64)
    return reference_step(model, [sequence for sequences in held.values() for sequence in sequences])


@pytest.mark.parametrize("name", [*DATA_PARALLEL, "11 and 101 tokens", "two sources on one rank"])
def test_loss_and_gradient_are_the_full_batchs_whatever_the_plan(name: str, reports: dict[str, list[Report]]) -> None:
    loss, gradient, _ = expected("arrival order" if name in DATA_PARALLEL else name)
    for report in reports[name]:
        assert report.fault is None, report.message
        assert report.results[0].loss == pytest.approx(loss, abs=TOLERANCE)
        assert report.results[0].grad_norm == pytest.approx(gradient.norm().item(), abs=TOLERANCE)
        torch.testing.assert_close(report.gradients[0], gradient, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", DATA_PARALLEL)
def test_each_sequences_loss_returns_to_its_source_in_the_order_held(
    name: str, reports: dict[str, list[Report]]
) -> None:
    _, _, losses = expected("arrival order")
    begins = np.cumsum([0, *(len(sequences) for sequences in HELD.values())])
    for rank, report in enumerate(reports[name][:3]):
        returned = report.results[0].sequence_losses
        assert list(returned) == [f"rank-{rank}"]
        np.testing.assert_allclose(
            returned[f"rank-{rank}"], losses[begins[rank] : begins[rank + 1]], rtol=0, atol=TOLERANCE
        )


def test_a_dropped_sequence_adds_nothing_and_has_no_loss(reports: dict[str, list[Report]]) -> None:
    kept = {"rank-0": [DROPPED_FROM["rank-0"][1]], "rank-1": DROPPED_FROM["rank-1"]}
    loss, gradient, losses = expected_of(kept)
    for report in reports["dropped sequences"]:
        assert report.results[0].loss == pytest.approx(loss, abs=TOLERANCE)
        torch.testing.assert_close(report.gradients[0], gradient, rtol=0, atol=TOLERANCE)
    returned = reports["dropped sequences"][0].results[0].sequence_losses["rank-0"]
    np.testing.assert_allclose(returned, [np.nan, losses[0], np.nan], atol=TOLERANCE)


@pytest.mark.usefixtures("alone")
def test_after_a_gradient_that_was_not_finite_the_model_can_still_be_evaluated() -> None:
    plan, held = make_plan([[[("rank-0", 11, 1)]]]), {"rank-0": HELD["rank-0"][:1]}
    state = ShardedState(CONFIG, seed=SEED, dtype=torch.float64, make_optimizer=make_optimizer)
    runner = IterationRunner(state)
    with broken(Breakage(0, when="overflow"), 0), pytest.raises(NotFinite, match="a gradient is not finite"):
        runner.run(plan, held)
    loss, _, _ = expected_of(held)
    assert runner.evaluate(plan, held) == pytest.approx(loss, abs=TOLERANCE)
    assert runner.run(plan, held).loss == pytest.approx(loss, abs=TOLERANCE)
    runner.close()


@pytest.mark.usefixtures("alone")
def test_arguments_out_of_range_are_refused() -> None:
    state = ShardedState(CONFIG, make_optimizer=make_optimizer)
    for argument in ("max_norm", "layers_per_bucket", "max_process_groups"):
        with pytest.raises(ValueError, match=f"{argument} is 0"):
            IterationRunner(state, **{argument: 0})


@pytest.mark.usefixtures("alone")
def test_a_plan_without_sequences_that_was_not_prepared_is_refused() -> None:
    runner = IterationRunner(ShardedState(CONFIG, make_optimizer=make_optimizer))
    with pytest.raises(IterationFailed, match=r"was not prepared; give run\(plan, sequences\)"):
        runner.run(make_plan([[[("rank-0", 11, 1)]]]))


@pytest.mark.parametrize("name", ["no sequences", "only sequences of one token"])
def test_without_a_target_the_loss_is_zero_and_no_rank_steps(name: str, reports: dict[str, list[Report]]) -> None:
    before = flat_weights(Decoder(CONFIG, seed=SEED, dtype=torch.float64))
    for report in reports[name]:
        assert report.fault is None, report.message
        assert report.results[0].loss == 0.0
        assert report.results[0].num_targets == 0
        assert torch.equal(report.weights, before)


def test_timings_say_for_each_replica_what_its_rank_measured(reports: dict[str, list[Report]]) -> None:
    name = "random plan 2, 2 replicas, alignment 1"
    plan = DATA_PARALLEL[name]
    gathered = [report.timings[0] for report in reports[name]]
    assert gathered == [gathered[0]] * WORLD_SIZE
    assert gathered[0].digest == plan.digest
    assert reports[name][3].results[0].timing is None
    for number, (replica, timing) in enumerate(zip(plan.replicas, gathered[0].replicas, strict=True)):
        own = reports[name][replica.ranks[0]].results[0]
        assert own.timing == timing
        assert timing.replica == number
        assert len(timing.micro_batch_ms) == len(replica.micro_batches)
        assert 0 < sum(timing.micro_batch_ms) <= timing.wall_ms <= own.wall_ms
        parts = own.exchange_ms + own.propagate_ms + own.compute_ms + own.reduce_ms + own.step_ms
        assert parts <= own.wall_ms


@pytest.mark.parametrize(
    ("offer", "got"),
    [
        ("a plan", ("plan", ELEVEN_AND_101.digest)),
        ("its own on every rank", ("plan", ELEVEN_AND_101.digest)),
        (
            "a fault without a text",
            ("PlanningFailed", "no plan for this iteration: Mute: (its text cannot be had: LookupError)"),
        ),
        (
            "a fault",
            (
                "PlanningFailed",
                "no plan for this iteration: TimeoutError: the planner did not answer within 500 ms",
            ),
        ),
    ],
)
def test_every_rank_gets_the_deciding_ranks_plan_or_fault(offer: str, got: tuple[str, str], launch: Launch) -> None:
    assert [shared[offer] for _, shared in launch] == [got] * WORLD_SIZE


def test_a_deciding_rank_without_a_decision_is_a_fault_on_every_rank(
    launch: Launch,
) -> None:
    got = {shared["nothing"] for _, shared in launch}
    assert len(got) == 1
    fault, message = got.pop()
    assert fault == "PlanningFailed"
    assert "neither a plan nor a fault" in message


def test_a_plan_changed_on_its_way_is_refused_on_every_rank(
    launch: Launch,
) -> None:
    got = {shared["a changed plan"] for _, shared in launch}
    assert len(got) == 1
    fault, message = got.pop()
    assert fault == "IterationFailed"
    assert "4 of 4 ranks failed while reading the shared plan" in message
    assert "changed on its way" in message
