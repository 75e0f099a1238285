"""Tensor- and pipeline-parallel replicas, alone and mixed, against one process that shares no code with them."""

import functools

import numpy as np
import pytest
import torch
from launched import ADAM, GROUPED, HELD, LAYOUTS, OTHER_MODELS, SCENARIOS, WORLD_SIZE
from reference import flat_weights, optimizer_groups, reference_step
from scenarios import CONFIG, SEED, Report, make_optimizer
from torch import Tensor

from worker_agent.executor.model import Decoder
from worker_agent.executor.shape import DecoderConfig

pytestmark = pytest.mark.timeout(300)
TOLERANCE = 1e-9
BATCH = [sequence for sequences in HELD.values() for sequence in sequences]


@functools.cache
def expected(config: DecoderConfig) -> tuple[float, Tensor, list[float]]:
    """Loss, gradient and losses by sequence of the whole batch, by independent code in this process."""
    return reference_step(Decoder(config, seed=SEED, dtype=torch.float64), BATCH)


@pytest.mark.parametrize("name", [*LAYOUTS, *OTHER_MODELS, *GROUPED, "atomic groups, prepared ahead"])
def test_loss_and_gradient_are_one_processs_whatever_the_layouts(name: str, reports: dict[str, list[Report]]) -> None:
    loss, gradient, losses = expected(SCENARIOS[name].config)
    bounds = np.cumsum([0, *(len(sequences) for sequences in HELD.values())])
    for rank, report in enumerate(reports[name]):
        assert report.fault is None, report.message
        assert report.results[0].loss == pytest.approx(loss, abs=TOLERANCE)
        assert report.results[0].grad_norm == pytest.approx(gradient.norm().item(), abs=TOLERANCE)
        torch.testing.assert_close(report.gradients[0], gradient, rtol=0, atol=TOLERANCE)
        if rank < len(HELD):
            returned = report.results[0].sequence_losses[f"rank-{rank}"]
            np.testing.assert_allclose(returned, losses[bounds[rank] : bounds[rank + 1]], rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["another strategy every iteration", "one strategy all the time", "prepared ahead"])
def test_five_clipped_adam_steps_train_like_one_process_whatever_the_strategies(
    name: str, reports: dict[str, list[Report]]
) -> None:
    model = Decoder(CONFIG, seed=SEED, dtype=torch.float64)
    optimizer = make_optimizer(optimizer_groups(model), "adam")
    losses, norms = [], []
    for _ in ADAM.plans:
        losses.append(reference_step(model, BATCH)[0])
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), ADAM.max_norm).item())
        optimizer.step()
    assert len(losses) == 5
    assert losses[-1] < losses[0]
    assert min(norms) > ADAM.max_norm
    for report in reports[name]:
        assert report.fault is None, report.message
        assert [result.loss for result in report.results] == pytest.approx(losses, abs=TOLERANCE)
        assert [result.grad_norm for result in report.results] == pytest.approx(norms, abs=TOLERANCE)
        torch.testing.assert_close(report.weights, flat_weights(model), rtol=0, atol=TOLERANCE)


def test_evaluation_gives_the_batchs_loss_and_changes_nothing(reports: dict[str, list[Report]]) -> None:
    loss, _, _ = expected(CONFIG)
    before = flat_weights(Decoder(CONFIG, seed=SEED, dtype=torch.float64))
    for report in reports["evaluation"]:
        assert report.fault is None, report.message
        assert report.evaluations == pytest.approx([loss] * 3, abs=TOLERANCE)
        assert torch.equal(report.weights, before)


def test_an_evaluation_heeds_atomic_groups(reports: dict[str, list[Report]]) -> None:
    for report in reports["atomic groups, evaluated"]:
        assert report.fault is None, report.message
        assert report.evaluations == pytest.approx([expected(CONFIG)[0]], abs=TOLERANCE)


def test_fp32_agrees_to_its_own_accuracy(reports: dict[str, list[Report]]) -> None:
    loss, gradient, _ = expected(CONFIG)
    for report in reports["fp32"]:
        assert report.gradients[0].dtype == torch.float32
        assert report.results[0].loss == pytest.approx(loss, rel=1e-5)
        torch.testing.assert_close(report.gradients[0].double(), gradient, rtol=1e-3, atol=1e-6)


def test_bf16_computes_roughly_the_same_and_sums_gradients_in_fp32(reports: dict[str, list[Report]]) -> None:
    loss, gradient, _ = expected(CONFIG)
    for report in reports["bf16"]:
        assert report.fault is None, report.message
        assert report.gradients[0].dtype == report.weights.dtype == torch.float32
        assert report.results[0].loss == pytest.approx(loss, rel=1e-2)
        assert ((report.gradients[0].double() - gradient).norm() / gradient.norm()).item() < 0.05


def test_a_trace_shows_parameters_and_gradients_on_their_way_while_stages_compute(
    reports: dict[str, list[Report]],
) -> None:
    last = len(LAYOUTS["tp2 and pp2"].replicas[0].micro_batches) - 1
    # Stage 0 has three layers and stage 1 two, in buckets of two.
    for report, num_buckets in zip(reports["traced"], (2, 2, 1, 1), strict=True):
        assert report.fault is None, report.message
        begins, ends = ({name: at for name, *times in report.spans for at in times[end : end + 1]} for end in (0, 1))
        moves = [begin for name, begin, _ in report.spans if name == "gloo:all_to_all"]
        assert moves[0] < begins["forward 0"]
        assert ends["post bucket 1"] < begins["forward 0"]
        assert {f"backward {number}" for number in range(last + 1)} <= set(begins)
        for bucket in range(num_buckets):
            assert begins["forward 0"] <= begins[f"assemble bucket {bucket}"] <= ends["forward 0"]
            assert begins[f"backward {last}"] <= begins[f"return bucket {bucket}"]
            assert ends[f"return bucket {bucket}"] <= ends[f"backward {last}"]
        # Posted while the stage computes, as the spans above show; gloo's thread may take them up a little later.
        assert len([begin for begin in moves if begin >= begins[f"backward {last}"]]) >= num_buckets


def test_a_replicas_timing_is_that_of_its_slowest_rank(reports: dict[str, list[Report]]) -> None:
    name = "tp2 and pp2"
    plan = LAYOUTS[name]
    gathered = [report.timings[0] for report in reports[name]]
    assert gathered == [gathered[0]] * WORLD_SIZE
    own = [report.results[0] for report in reports[name]]
    timing = gathered[0].replicas[0]
    assert timing.wall_ms == max(result.compute_ms for result in own)
    assert timing.micro_batch_ms == [max(times) for times in zip(*(one.micro_batch_ms for one in own), strict=True)]
    assert len(timing.micro_batch_ms) == len(plan.replicas[0].micro_batches)
    for result in own:
        assert min(result.micro_batch_ms) > 0
        assert sum(result.micro_batch_ms) <= result.compute_ms
        assert result.exchange_ms + result.propagate_ms + result.compute_ms + result.step_ms <= result.wall_ms


def test_process_groups_are_kept_up_to_the_limit_and_the_longest_unused_goes_first(
    reports: dict[str, list[Report]],
) -> None:
    for report in reports["few process groups"]:
        assert report.fault is None, report.message
        assert report.groups == [
            ((0, 1),),
            ((0, 1), (2, 3)),
            ((2, 3), (1, 2)),
            ((1, 2), (0, 1)),
            ((1, 2), (0, 1)),
            ((0, 1), (2, 3)),
        ]
