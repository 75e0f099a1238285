"""Whole runs: under torchrun against a real planner, resumed elsewhere, and stopped in every way a run stops."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from served_planner import ServedPlanner
from torch.optim.lr_scheduler import OneCycleLR, StepLR
from torchrun_runs import TorchrunEnd, torchrun
from training_runs import CONFIG, LENGTHS, NUM_ITERATIONS, dataset, in_turn, only_checkpoint, own_plan, train, trainer
from transformers import AutoModelForCausalLM

from worker_agent.executor.faults import IterationFailed
from worker_agent.executor.model import Decoder
from worker_agent.trainer.checkpoint_folder import corrupt_part, whole_checkpoints
from worker_agent.trainer.faults import CheckpointRefused, TrainingStopped
from worker_agent.trainer.process_group import join_process_group
from worker_agent.trainer.sampling import DataPosition
from worker_agent.trainer.settings import (
    CheckpointSettings,
    EvaluationSettings,
    OptimizerSettings,
    ReportSettings,
    Resume,
    ScheduleSettings,
)

ALONE = ((1, 1),)
Trained = list[dict[str, Any]]
"""What each of three ranks saw of its runs."""


@pytest.fixture
def trained(of_ranks: list[dict[str, Any]]) -> Trained:
    """What each of three ranks saw of its runs."""
    return [report["trained"] for report in of_ranks]


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of this process alone, so that what a test gathers does not leave it."""
    assert join_process_group(30.0)
    yield
    dist.destroy_process_group()


def agrees(resumed: dict[str, Any], finished: TorchrunEnd) -> None:
    """Check that a run resumed after the fourth iteration ended as the one that was not interrupted."""
    assert resumed["begun_at"] == 4
    last = resumed["last"]
    assert last.iteration == NUM_ITERATIONS - 1
    assert last.loss == pytest.approx(finished.metrics[-1]["loss"], rel=1e-12, abs=0)
    assert last.learning_rate == pytest.approx(finished.metrics[-1]["learning_rate"], rel=1e-12)
    assert last.grad_norm == pytest.approx(finished.metrics[-1]["grad_norm"], rel=1e-12)
    expected = final_weights(finished)
    assert set(resumed["weights"]) == set(expected)
    for name, weight in resumed["weights"].items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-12, atol=1e-12)


def final_weights(finished: TorchrunEnd) -> dict[str, torch.Tensor]:
    done = train(ALONE, checkpoints=CheckpointSettings(finished.folder / "checkpoints"))
    assert done["begun_at"] == NUM_ITERATIONS
    assert done["last"] is None
    return done["weights"]  # type: ignore[no-any-return]


def test_a_run_under_torchrun_learns_by_plans_of_a_real_planner(finished: TorchrunEnd) -> None:
    metrics = finished.metrics
    assert [line["iteration"] for line in metrics] == list(range(NUM_ITERATIONS))
    assert metrics[-1]["loss"] < metrics[0]["loss"] - 0.2
    assert all(line["plan_digest"].startswith("sha256:") and line["gap"] is not None for line in metrics)
    assert {line["epoch"] for line in metrics} >= {0, 1}
    assert sum(line["num_sequences"] for line in metrics if line["epoch"] == 0) == len(LENGTHS)
    assert all(line["num_tokens"] <= 64 for line in metrics)
    assert "iteration 6/6  loss " in finished.stderr


def test_a_run_is_evaluated_as_often_as_asked(finished: TorchrunEnd) -> None:
    losses = [line["evaluation_loss"] for line in finished.metrics]
    assert [iteration for iteration, loss in enumerate(losses) if loss is not None] == [2, 5]
    model = Decoder(CONFIG, dtype=torch.float64)
    model.load_state_dict(final_weights(finished))
    with torch.no_grad():
        token_losses = [own_token_losses(model, sequence) for sequence in dataset([5, 9, 33])]
    assert losses[5] == pytest.approx(torch.cat(token_losses).mean().item(), rel=1e-12)


def own_token_losses(model: Decoder, sequence: torch.Tensor) -> torch.Tensor:
    logits = model(sequence, torch.tensor([0, len(sequence)], dtype=torch.int32), len(sequence))
    return torch.nn.functional.cross_entropy(logits[:-1], sequence[1:], reduction="none")


def test_the_model_written_for_hugging_face_is_the_one_trained(finished: TorchrunEnd) -> None:
    theirs = AutoModelForCausalLM.from_pretrained(finished.folder / "model", dtype=torch.float32).eval()
    model = Decoder(CONFIG, dtype=torch.float64)
    model.load_state_dict(final_weights(finished))
    sequence = dataset()[0]
    with torch.no_grad():
        own = model(sequence, torch.tensor([0, len(sequence)], dtype=torch.int32), len(sequence))
        torch.testing.assert_close(theirs(sequence[None]).logits[0], own.float(), rtol=1e-4, atol=1e-4)
    assert theirs.config.max_position_embeddings == 64


def test_one_trainer_after_the_other_meets_the_same_ranks(finished: TorchrunEnd) -> None:
    ends = [(finished.folder / f"in-turn-{rank}.json").read_text() for rank in range(2)]
    assert ends[0] == ends[1]
    assert ends[0].count(",") == 2


def test_a_script_that_fails_on_one_rank_stops_all_after_a_checkpoint(trained: Trained) -> None:
    for report in trained:
        stopped = report["callback"]
        assert "reporting iteration 1: rank 0: KeyError: 'my callback'" in stopped["message"]
        assert stopped["checkpoint"].name == "iteration-00000002"
    assert len({report["callback"]["message"] for report in trained}) == 1


def test_arguments_that_differ_between_ranks_are_refused_by_name_on_all_of_them(trained: Trained) -> None:
    assert len(trained[0]["unlike"]) == 18
    for report in trained:
        for told, fault in report["unlike"].items():
            assert fault.startswith("ValueError: ranks were given different ")
            assert f": {told}" in fault
            assert "Give every rank the same" in fault


def test_data_that_is_drawn_by_chance_is_not_taken_for_data_that_differs(trained: Trained) -> None:
    assert {report["drawn"] for report in trained} == {"no fault"}


def test_an_optimizer_that_leaves_parameters_out_ends_alike_on_every_rank(trained: Trained) -> None:
    (end,) = {report["frozen"] for report in trained}
    assert end == "no fault"


def test_one_process_without_torchrun_goes_on_as_two_would_have(finished: TorchrunEnd, tmp_path: Path) -> None:
    folder = only_checkpoint(finished.folder / "checkpoints", "iteration-00000004", tmp_path / "checkpoints")
    agrees(train(ALONE, checkpoints=CheckpointSettings(folder)), finished)


def test_three_ranks_of_unlike_replicas_go_on_as_two_would_have(trained: Trained, finished: TorchrunEnd) -> None:
    assert [metrics.strategy for metrics in trained[0]["resumed"]["heard"]] == ["(1,1)x1,(1,2)x1", "(2,1)x1,(1,1)x1"]
    for report in trained:
        resumed = report["resumed"]
        agrees(resumed, finished)
        assert resumed["progress"].plan_digest == resumed["last"].plan_digest


def test_a_loss_that_is_not_finite_stops_all_ranks_and_names_iteration_and_checkpoint(
    trained: Trained,
) -> None:
    stops = [report["not finite"] for report in trained]
    assert len({stop["message"] for stop in stops}) == 1
    iteration = stops[0]["iteration"]
    assert 1 <= iteration < NUM_ITERATIONS
    assert f"iteration {iteration} was not finished (NotFinite)" in stops[0]["message"]
    assert f"iteration-{iteration:08d} ({iteration} iterations done), start the same command" in stops[0]["message"]
    assert stops[0]["checkpoint"].name == f"iteration-{iteration:08d}"


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no planner", "planner at http://127.0.0.1:9 gave no plan"),
        ("bad token", "99"),
        ("layout", "rank"),
    ],
)
def test_what_stops_a_run_is_the_same_on_all_ranks(trained: Trained, what: str, message: str) -> None:
    messages = {report[what]["message"] for report in trained}
    assert len(messages) == 1
    assert message in messages.pop()


def test_a_run_asked_to_stop_ends_with_a_checkpoint_after_the_iteration(trained: Trained) -> None:
    for report in trained:
        assert report["asked to stop"]["progress"].num_iterations == 3
        assert report["asked to stop"]["checkpoint"].name == "iteration-00000003"


def test_a_rank_that_dies_ends_the_run_in_time_with_advice(planner: ServedPlanner, tmp_path: Path) -> None:
    end = torchrun(planner.url, tmp_path, "killed")
    assert end.exit_code != 0
    assert end.taken_s < 45
    assert "was not finished (RankLost)" in end.stderr
    newest = sorted((tmp_path / "checkpoints").glob("iteration-*"))[-1]
    assert f"To go on from checkpoint {newest}" in end.stderr


def test_a_stored_model_is_where_a_run_begins(finished: TorchrunEnd, tmp_path: Path) -> None:
    with trainer(
        model=finished.folder / "model",
        plans=in_turn([ALONE]),
        evaluation=EvaluationSettings(dataset([5, 9, 33])),
        checkpoints=CheckpointSettings(tmp_path),
    ) as run:
        assert run.evaluate() == pytest.approx(finished.metrics[-1]["evaluation_loss"], rel=1e-12)
        assert run.save_checkpoint().name == "iteration-00000000"


def test_every_epoch_ends_with_the_batch_that_is_left(tmp_path: Path) -> None:
    done = train(ALONE, num_iterations=None, num_epochs=2, schedule=None, checkpoints=CheckpointSettings(tmp_path))
    assert done["progress"].position == DataPosition(2, 0)
    per_epoch = [sum(m.num_tokens for m in done["heard"] if m.epoch == epoch) for epoch in (0, 1)]
    assert per_epoch == [sum(LENGTHS), sum(LENGTHS)]


@pytest.mark.parametrize(
    ("optimizer", "schedule"),
    [
        (lambda groups: torch.optim.SGD(groups, lr=0.5, momentum=0.9), lambda of: StepLR(of, step_size=2, gamma=0.5)),
        (torch.optim.AdamW, lambda of: OneCycleLR(of, max_lr=0.02, total_steps=NUM_ITERATIONS)),
    ],
)
def test_an_optimizer_and_a_scheduler_of_torch_are_resumed_as_well(
    tmp_path: Path, optimizer: Any, schedule: Any
) -> None:
    of_torch: dict[str, Any] = {
        "optimizer": OptimizerSettings(make=optimizer),
        "schedule": ScheduleSettings(make=schedule),
        "checkpoints": CheckpointSettings(tmp_path / "whole", every_iterations=3),
    }
    whole = train(ALONE, **of_torch)
    folder = only_checkpoint(tmp_path / "whole", "iteration-00000003", tmp_path / "copy")
    resumed = train(ALONE, **{**of_torch, "checkpoints": CheckpointSettings(folder)})
    for before, after in zip(whole["heard"][3:], resumed["heard"], strict=True):
        assert (after.loss, after.learning_rate) == (before.loss, before.learning_rate)
    assert all(torch.equal(weight, whole["weights"][name]) for name, weight in resumed["weights"].items())


@pytest.mark.usefixtures("one_rank")
def test_a_run_that_must_resume_needs_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match=r"resume is 'required' but .* holds no whole checkpoint"):
        trainer(plans=own_plan, checkpoints=CheckpointSettings(tmp_path, resume="required"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resume": "never"}, "resume is 'never' but .* holds iteration-00000006"),
        ({"seed": 4}, "order of seed 3 but this run has seed 4; give seed=3"),
        ({"dtype": torch.float32}, "has exp_avg of type torch.float64 but this run has torch.float32"),
    ],
)
@pytest.mark.usefixtures("one_rank")
def test_a_checkpoint_is_not_resumed_by_another_run(
    finished: TorchrunEnd, changes: dict[str, Any], message: str
) -> None:
    settings = CheckpointSettings(finished.folder / "checkpoints", resume=changes.pop("resume", "newest"))
    with pytest.raises(Exception, match=message):
        trainer(plans=own_plan, checkpoints=settings, **changes)


def garble(checkpoint: Path) -> None:
    file = max(checkpoint.glob("*.distcp"), key=lambda file: file.stat().st_size)
    file.write_bytes(bytes(byte ^ 0x55 for byte in file.read_bytes()))


@pytest.mark.usefixtures("one_rank")
def test_a_corrupt_checkpoint_is_passed_over_for_an_older_one_with_a_warning(tmp_path: Path) -> None:
    checkpoints = CheckpointSettings(tmp_path, every_iterations=2)
    whole = train(ALONE, checkpoints=checkpoints)
    garble(tmp_path / "iteration-00000006")
    with pytest.warns(UserWarning, match="iteration-00000006 is corrupt: __0_0.distcp has other bytes than were"):
        resumed = train(ALONE, checkpoints=checkpoints)
    assert resumed["begun_at"] == 4
    assert all(torch.equal(weight, whole["weights"][name]) for name, weight in resumed["weights"].items())
    aside = tmp_path / "iteration-00000006.damaged-1"
    assert "__0_0.distcp" in str(corrupt_part(aside, 0, 1))
    for path in whole_checkpoints(tmp_path):
        garble(path)
    with (
        pytest.warns(UserWarning, match="is corrupt"),
        pytest.raises(CheckpointRefused, match=r"iteration-00000002 is corrupt.*no older one: mend the disk"),
    ):
        trainer(plans=own_plan, checkpoints=checkpoints)


@pytest.mark.parametrize("how", ["schedule.pt", "__0_0.distcp", "manifest.json"])
@pytest.mark.parametrize("wish", ["newest", "required", "never"])
@pytest.mark.usefixtures("one_rank")
def test_where_no_checkpoint_is_whole_no_run_begins_anew_and_nothing_is_deleted(
    tmp_path: Path, how: str, wish: Resume
) -> None:
    train(ALONE, checkpoints=CheckpointSettings(tmp_path, every_iterations=2))
    for path in tmp_path.iterdir():
        (path / how).write_bytes((path / how).read_bytes()[:10])
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointRefused, match=rf"holds 3 checkpoints and none is whole: .*{how}.* Restore what is"):
        trainer(plans=own_plan, checkpoints=CheckpointSettings(tmp_path, every_iterations=2, resume=wish))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("one_rank")
def test_a_disk_without_space_is_named_and_nothing_half_written_stays(tmp_path: Path) -> None:
    with trainer(plans=in_turn([ALONE]), num_iterations=2, checkpoints=CheckpointSettings(tmp_path)) as run:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        # As with a full disk, files can be opened, and the write that reaches the limit fails.
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            with pytest.raises(
                IterationFailed, match=r"while writing .*partial: .*cannot be written to .*name a folder"
            ):
                run.save_checkpoint()
            with pytest.raises(
                IterationFailed, match=r"writing the model to .*cannot be written to .* has room for it"
            ):
                run.save_hugging_face(tmp_path / "model")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert sorted(path.name for path in tmp_path.rglob("*")) == ["model"]
        run.train()
    assert [path.name for path in whole_checkpoints(tmp_path)] == ["iteration-00000002"]


@pytest.mark.usefixtures("one_rank")
def test_a_model_is_not_written_where_nothing_can_be(tmp_path: Path) -> None:
    with (
        trainer(plans=in_turn([ALONE]), checkpoints=CheckpointSettings(tmp_path)) as run,
        pytest.raises(IterationFailed, match=r"cannot be written to /proc/model: .*name a folder that can be written"),
    ):
        run.save_hugging_face("/proc/model")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shuffle": False}, "reads the data shuffled and stopped at slot .* but this run reads it in its own order"),
        ({"data": dataset()[:9]}, "in a random order of 12 sequences .* but this run has 9; give the data"),
    ],
)
@pytest.mark.usefixtures("one_rank")
def test_a_run_does_not_go_on_in_other_data(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    checkpoints = CheckpointSettings(tmp_path)
    train(ALONE, num_iterations=1, checkpoints=checkpoints)
    with pytest.raises(CheckpointRefused, match=message):
        trainer(plans=own_plan, checkpoints=checkpoints, **changes)


@pytest.mark.usefixtures("one_rank")
def test_a_folder_that_cannot_be_written_is_refused_before_the_first_iteration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match=r"trying to write to .*name a folder that every rank may write to"):
        trainer(plans=own_plan, checkpoints=CheckpointSettings(tmp_path / "file" / "folder"))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (torch.ones(3), "holds a tensor"),
        (torch.arange(0), "holds an empty sequence"),
        (torch.tensor([1, 17, 2]), "has token id 17 as token 1 of 3 but vocab_size is 17, so that ids are 0 to 16"),
        (torch.tensor([-1, 2]), "has token id -1 as token 0 of 2"),
    ],
)
def test_a_bad_sequence_ends_a_run_with_a_checkpoint_of_all_iterations_before_it(
    tmp_path: Path, bad: torch.Tensor, message: str
) -> None:
    data = [torch.arange(8 - number % 3) for number in range(12)]
    data[9] = bad
    arguments = {"plans": in_turn([ALONE]), "data": data, "shuffle": False, "tokens_per_iteration": None}
    with (
        trainer(**arguments, sequences_per_iteration=2, checkpoints=CheckpointSettings(tmp_path)) as run,
        pytest.raises(TrainingStopped, match=rf"data\[9\] \(slot 9 of epoch 0\) {message}") as stop,
    ):
        run.train()
    assert stop.value.iteration == 4
    assert stop.value.checkpoint == tmp_path / "iteration-00000004"


@pytest.mark.usefixtures("one_rank")
def test_a_closed_trainer_may_be_closed_again_but_not_used(tmp_path: Path) -> None:
    with trainer(plans=in_turn([ALONE]), checkpoints=CheckpointSettings(tmp_path / "checkpoints")) as run:
        run.train()
        run.close()
        uses = (run.train, run.weights, run.save_checkpoint, lambda: run.evaluate(dataset()))
        for use in (*uses, lambda: run.save_hugging_face(tmp_path)):
            with pytest.raises(RuntimeError, match="the trainer is closed; build a new one"):
                use()


def test_a_budget_beyond_all_data_is_one_batch_an_epoch() -> None:
    for budget in ({"tokens_per_iteration": 10**15}, {"tokens_per_iteration": None, "sequences_per_iteration": 10**15}):
        done = train(ALONE, num_iterations=2, **budget)
        assert [metrics.num_tokens for metrics in done["heard"]] == [sum(LENGTHS)] * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": -1}, "seed is -1; give a whole number from 0"),
        ({"plan_timeout_s": -1.0}, "plan_timeout_s is -1.0"),
        ({"collective_timeout_s": float("nan")}, "collective_timeout_s is nan"),
    ],
)
def test_an_argument_out_of_range_is_refused_before_any_group_is_joined(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer(plans=own_plan, **changes)
    assert not dist.is_initialized()


@pytest.mark.usefixtures("one_rank")
def test_a_report_that_cannot_be_written_stops_the_run_before_its_first_iteration(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    reports = ReportSettings(json_lines=tmp_path / "file" / "metrics.jsonl")
    with (
        trainer(plans=own_plan, reports=reports) as run,
        pytest.raises(Exception, match=r"opening the report"),
    ):
        run.train()


def test_importing_the_agent_brings_no_torch() -> None:
    code = "import sys, worker_agent, worker_agent.trainer.settings; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
