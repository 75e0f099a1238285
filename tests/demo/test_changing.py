import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from outcome_factory import make_changing, make_changing_record

from planner_client.contract import Device, LayoutCost, ModelShape, Profile
from worker_agent.demo.agreement import CHANGING_TOLERANCE
from worker_agent.demo.alone import TrainingAlone
from worker_agent.demo.changing import ChangingRun, candidates, estimated_profile
from worker_agent.demo.changing_training import (
    ChangingJob,
    changing_batches,
    changing_config,
    changing_request,
    train_changing_rank,
)
from worker_agent.demo.corpus import Corpus
from worker_agent.demo.settings import STRATEGIES, DemoSettings
from worker_agent.executor.faults import PlanningFailed
from worker_agent.executor.layout import stage_layers
from worker_agent.executor.loss import token_losses
from worker_agent.executor.model import Decoder

LENGTHS = (3, 5, 2, 300, 1600, 40, 1536, 7)
CORPUS = Corpus(
    sequences=tuple((bytes(range(1, 200)) * 9)[:length] for length in LENGTHS),
    num_files=len(LENGTHS),
    num_empty=0,
    num_over_long=0,
    num_over_long_tokens=0,
    max_length=8192,
)
MEASURED = Profile(
    name="demo",
    source="measured",
    model=ModelShape(name="decoder 2x64", num_layers=2, hidden_size=64, vocab_size=256),
    device=Device(name="CPU core", memory_bytes=8000, gpus_per_node=2),
    sync_ms=5.0,
    layouts=[LayoutCost(tp=1, pp=1, a_ms_per_token2=4e-5, b_ms_per_token=0.02, c_ms=3.0, max_tokens=8192)],
)


def make_settings(directory: Path, **changes: Any) -> DemoSettings:
    return DemoSettings(report=directory / "report.html", **({"num_sequences": 4, "deadline_ms": 50} | changes))


def make_job(directory: Path, **changes: Any) -> ChangingJob:
    settings = make_settings(directory, **changes)
    return ChangingJob(settings, CORPUS, "http://127.0.0.1:9", estimated_profile(MEASURED, settings))


def test_every_strategy_fills_the_ranks_and_fits_the_decoder(tmp_path: Path) -> None:
    settings = make_settings(tmp_path)
    config = changing_config(settings)
    assert len(set(STRATEGIES)) == len(STRATEGIES)
    assert any(len({(group.tp, group.pp) for group in groups}) > 1 for groups in candidates(settings))
    for groups in candidates(settings):
        assert sum(group.num_ranks for group in groups) == settings.changing_ranks
        for group in groups:
            assert config.num_heads % group.tp == 0
            assert all(stage_layers(config.num_layers, group.pp, stage) for stage in range(group.pp))


def test_the_estimate_shares_the_measured_work_between_the_ranks_of_a_replica(tmp_path: Path) -> None:
    profile = estimated_profile(MEASURED, make_settings(tmp_path))
    costs = {(cost.tp, cost.pp): cost for cost in profile.layouts}
    assert set(costs) == {(2, 1), (1, 1), (1, 2), (2, 2), (1, 3), (4, 1)}
    for (tp, pp), cost in costs.items():
        assert cost.a_ms_per_token2 == pytest.approx(2 * 4e-5 / (tp * pp))
        assert cost.b_ms_per_token == pytest.approx(2 * 0.02 / (tp * pp))
        assert cost.c_ms == pytest.approx(2 * 3.0)
        assert cost.max_tokens == 1536 * tp * pp
        assert cost.fit is None
    assert profile.source.startswith("estimated, not measured")
    assert (profile.device.memory_bytes, profile.device.gpus_per_node) == (4000, 4)


def test_a_lower_maximum_length_holds_in_the_second_part_too(tmp_path: Path) -> None:
    job = make_job(tmp_path, max_length=256)
    assert {cost.max_tokens for cost in job.profile.layouts if cost.tp * cost.pp == 1} == {256}
    for batch in changing_batches(job.settings, CORPUS):
        assert all(LENGTHS[index] <= 256 for index in batch)


def test_batches_leave_over_long_sequences_out_and_shrink_to_what_there_is(tmp_path: Path) -> None:
    batches = changing_batches(make_settings(tmp_path, num_sequences=100), CORPUS)
    assert len(batches) == len(STRATEGIES)
    for batch in batches:
        assert sorted(batch) == [0, 1, 2, 3, 5, 6, 7]


def test_each_iteration_asks_for_its_one_strategy_with_the_whole_profile(tmp_path: Path) -> None:
    job = make_job(tmp_path)
    request = changing_request(job, [3, 0, 2, 1, 5], 3)
    assert request.profile == job.profile
    assert request.num_gpus == 4
    assert request.strategies == [candidates(job.settings)[3]]
    assert request.lengths == {"rank-0": [300, 40], "rank-1": [3], "rank-2": [2], "rank-3": [5]}


@pytest.fixture
def lone_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group(
        "gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1, timeout=timedelta(seconds=20)
    )
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("lone_rank")
def test_a_planner_that_is_away_ends_the_second_part(tmp_path: Path) -> None:
    job = make_job(tmp_path, changing_ranks=1, strategies=("(1,1)x1",))
    with pytest.raises(PlanningFailed, match="no plan for this iteration"):
        train_changing_rank(0, 1, job, lambda _: pytest.fail("an iteration without a plan was told of"))


def test_one_process_alone_trains_on_the_mean_token_loss(tmp_path: Path) -> None:
    config = changing_config(make_settings(tmp_path))
    sequences = [torch.tensor(list(text)) for text in (b"the first", b"x", b"and a longer one, once more")]
    alone = TrainingAlone(config, seed=3, learning_rate=1e-2)
    model = Decoder(config, seed=3)
    losses = []
    for sequence in sequences:
        logits = model(sequence, torch.tensor([0, len(sequence)], dtype=torch.int32), len(sequence))
        losses.extend(token_losses(logits[:-1], sequence[1:]).tolist())
    first = alone.step(sequences)
    assert first == pytest.approx(math.fsum(losses) / len(losses), rel=1e-6)
    for _ in range(5):
        last = alone.step(sequences)
    assert last < first - 0.5


def test_one_process_alone_has_no_loss_where_nothing_is_to_predict(tmp_path: Path) -> None:
    alone = TrainingAlone(changing_config(make_settings(tmp_path)), seed=3, learning_rate=1e-2)
    assert alone.step([torch.tensor([7]), torch.tensor([8])]) == 0.0


@pytest.mark.parametrize(
    ("loss", "agree"), [(5.0, True), (5.0 * (1 + CHANGING_TOLERANCE / 2), True), (5.001, False), (math.nan, False)]
)
def test_one_iteration_whose_loss_is_another_is_enough(loss: float, agree: bool) -> None:  # noqa: FBT001 - a case's answer
    changing = make_changing(make_changing_record(0, loss=loss), make_changing_record(1))
    assert changing.losses_agree is agree


def test_a_second_part_without_iterations_is_refused() -> None:
    with pytest.raises(ValueError, match="no iteration ran with changing strategies"):
        ChangingRun(profile_source="", num_ranks=4, max_length=9, records=())
