"""Loaders and checkpoints in real process groups of one, two and three ranks."""

from pathlib import Path
from typing import Any

import pytest
from group_checks import LENGTHS, LIMIT, WORLD_SIZES

from worker_agent.trainer.progress import DataOrder, Progress
from worker_agent.trainer.sampling import DataPosition, batch_size, epoch_order

Reports = list[dict[Any, Any]]


@pytest.fixture
def reports(of_ranks: list[dict[str, Any]]) -> Reports:
    """What each of three ranks saw."""
    return [report["groups"] for report in of_ranks]


def of_group(reports: Reports, *key: Any) -> list[dict[str, Any]]:
    return [report[key] for report in reports[: key[-1]]]


def expected_batches(num_epochs: int, *, shuffled: bool) -> list[list[int]]:
    batches = []
    for epoch in range(num_epochs):
        order = epoch_order(len(LENGTHS), 3, epoch).tolist() if shuffled else list(range(len(LENGTHS)))
        while order:
            num = batch_size([LENGTHS[index] for index in order], LIMIT, is_all=True)
            batches.append(sorted(order[:num]))
            order = order[num:]
    return batches


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("way", ["shuffled", "plain", "streamed"])
def test_batches_are_the_same_on_any_number_of_ranks(reports: Reports, size: int, way: str) -> None:
    expected = expected_batches(3, shuffled=way == "shuffled")
    for report in of_group(reports, "loader", size):
        assert [batch["held"] for batch in report[way]] == expected[:14]


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize(("way", "whole"), [("resumed", "shuffled"), ("resumed stream", "streamed")])
def test_reading_goes_on_where_a_position_says(reports: Reports, size: int, way: str, whole: str) -> None:
    for report in of_group(reports, "loader", size):
        assert report[way] == report[whole][4:14]


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("way", ["shuffled", "streamed"])
def test_the_last_batch_of_an_epoch_is_known_as_such(reports: Reports, size: int, way: str) -> None:
    per_epoch = [len(expected_batches(num, shuffled=way == "shuffled")) for num in (1, 2, 3)]
    for report in of_group(reports, "loader", size):
        assert [number + 1 for number, batch in enumerate(report[way]) if batch["ends_epoch"]] == [
            number for number in per_epoch if number <= 14
        ]


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("generator", "epoch 1 begins but the data can be read only once"),
        ("no data", "the data has no sequence; give at least one"),
        ("less data", "no sequence in slot 5 of epoch 0"),
        ("empty", "holds an empty sequence"),
        ("float", "shape (2,) and torch.float32; give one dimension of integers"),
        ("flat", "shape (2, 2)"),
        ("text", "holds a str; give one-dimensional integer tensors"),
        ("raising", "KeyError: 'gone'"),
    ],
)
def test_data_that_cannot_be_trained_on_is_the_same_fault_on_every_rank(
    reports: Reports, size: int, what: str, message: str
) -> None:
    faults = {report[what] for report in of_group(reports, "loader", size)}
    assert len(faults) == 1
    assert message in faults.pop()


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_checkpoints_are_written_and_the_last_ones_kept(reports: Reports, size: int) -> None:
    for report in of_group(reports, "writing", size):
        assert report["before"] is None
        assert report["written"] == report["newest"]
        written: Path = report["written"]
        assert sorted(path.name for path in written.parent.iterdir() if path.is_dir()) == [
            "iteration-00000002",
            "iteration-00000003",
        ]


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_a_place_that_cannot_be_written_is_the_same_fault_on_every_rank(reports: Reports, size: int) -> None:
    faults = {report["blocked"] for report in of_group(reports, "writing", size)}
    assert len(faults) == 1
    assert "checkpoints cannot be written to" in faults.pop()


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("writers", WORLD_SIZES)
def test_a_checkpoint_is_read_by_any_number_of_ranks(reports: Reports, writers: int, size: int) -> None:
    for report in of_group(reports, "reading", writers, size):
        assert report["equal"]
        assert report["progress"] == Progress(
            3, DataPosition(2, 3), "sha256:ab", DataOrder(9, shuffled=True, num_sequences=20)
        )
        assert report["schedule"] == {"last_epoch": 3}


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("other model", "is of a model with num_layers 1 but this one has num_layers 2"),
        ("other dtype", "has exp_avg of type torch.float32 but this run has torch.float64"),
        ("other optimizer", "has exp_avg of type torch.float32 but this run has None"),
        ("no checkpoint", "is torn: checkpoint"),
        ("cut off", "is torn: __"),
        ("another format", "has format 99; this version reads format 2"),
        ("garbled", "has other bytes than were written"),
        ("no model", "model is None"),
        ("negative", "progress.num_iterations is -3, and no count"),
        ("unknown", "progress has an unknown 'mood'"),
        ("another number", "tells of 7 iterations; give it the name it was written under, iteration-00000007"),
        ("no sizes", "does not tell its files"),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_the_same_fault_on_every_rank(
    reports: Reports, size: int, what: str, message: str
) -> None:
    faults = {report[what] for report in of_group(reports, "reading", 2, size)}
    assert len(faults) == 1
    assert message in faults.pop()


@pytest.mark.parametrize("size", WORLD_SIZES)
@pytest.mark.parametrize("way", ["breaks", "stream breaks"])
def test_what_stands_before_a_sequence_that_cannot_be_read_is_read(reports: Reports, size: int, way: str) -> None:
    before = [batch for batch in expected_batches(1, shuffled=False) if max(batch) < 7]
    assert len(before) >= 2
    for report in of_group(reports, "loader", size):
        assert report[way]["held"] == before
        assert "OSError: the disk is gone" in report[way]["fault"]
        assert report[way]["again"] == report[way]["fault"]


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_states_that_only_some_ranks_have_are_written_and_read_by_all(reports: Reports, size: int) -> None:
    for report in of_group(reports, "writing", size):
        assert report["uneven"] == "no fault"


@pytest.mark.parametrize("size", WORLD_SIZES)
def test_a_place_is_tried_before_there_is_something_to_write(reports: Reports, size: int) -> None:
    for report in of_group(reports, "writing", size):
        assert "name a folder that every rank may write to" in report["tried"]
        assert report["left"] == []
