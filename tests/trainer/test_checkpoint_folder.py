import json
from pathlib import Path

import pytest

from worker_agent.trainer.checkpoint_folder import (
    MANIFEST,
    begin_checkpoint,
    checkpoint_name,
    finish_checkpoint,
    iterations_of,
    missing_part,
    partial_path,
    prune,
    whole_checkpoints,
)
from worker_agent.trainer.faults import CheckpointRefused


def write(folder: Path, num_iterations: int) -> Path:
    partial = begin_checkpoint(folder, num_iterations)
    (partial / "data.bin").write_bytes(b"x" * 100)
    return finish_checkpoint(folder, num_iterations, {"told": num_iterations})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_checkpoints_sort_by_age_whatever_their_number_of_digits(tmp_path: Path) -> None:
    for number in (900, 123_456_789, 7):
        write(tmp_path, number)
    assert [iterations_of(path) for path in whole_checkpoints(tmp_path)] == [7, 900, 123_456_789]


def test_a_folder_that_is_not_there_has_no_checkpoint(tmp_path: Path) -> None:
    assert whole_checkpoints(tmp_path / "none") == []


def test_a_checkpoint_that_was_never_finished_is_not_seen_and_is_written_anew(tmp_path: Path) -> None:
    (begin_checkpoint(tmp_path, 5) / "half.bin").write_bytes(b"x")
    assert whole_checkpoints(tmp_path) == []
    assert names(write(tmp_path, 5)) == ["data.bin", MANIFEST]
    assert names(tmp_path) == [checkpoint_name(5)]


def tear(checkpoint: Path, how: str) -> None:
    if how == "a file cut off":
        (checkpoint / "data.bin").write_bytes(b"x" * 99)
    elif how == "a file gone":
        (checkpoint / "data.bin").unlink()
    elif how == "no manifest":
        (checkpoint / MANIFEST).unlink()
    elif how == "half a manifest":
        (checkpoint / MANIFEST).write_text((checkpoint / MANIFEST).read_text()[:20])
    else:
        (checkpoint / MANIFEST).write_text(json.dumps([]))


@pytest.mark.parametrize(
    ("how", "lacks"),
    [
        ("a file cut off", "data.bin should have 100 bytes but has 99"),
        ("a file gone", "data.bin should have 100 bytes but is not there"),
        ("no manifest", "no readable manifest.json"),
        ("half a manifest", "no readable manifest.json"),
        ("another manifest", "no manifest of a checkpoint"),
    ],
)
def test_a_torn_checkpoint_is_passed_over_for_an_older_whole_one(tmp_path: Path, how: str, lacks: str) -> None:
    older, torn = write(tmp_path, 5), write(tmp_path, 6)
    tear(torn, how)
    assert whole_checkpoints(tmp_path) == [older]
    assert lacks in str(missing_part(torn))


def test_the_newest_whole_checkpoints_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, number)
    tear(tmp_path / checkpoint_name(4), "a file gone")
    partial_path(tmp_path, 9).mkdir()
    (tmp_path / "notes.txt").write_text("not ours")
    prune(tmp_path, 2)
    assert names(tmp_path) == [checkpoint_name(3), checkpoint_name(5), "notes.txt"]


def test_a_folder_that_cannot_be_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointRefused, match=r"cannot be written to .*file.* every rank may write to"):
        begin_checkpoint(tmp_path / "file", 5)


def test_a_name_that_is_none_of_a_checkpoint_has_no_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one named like iteration-00000500"):
        iterations_of(tmp_path)
