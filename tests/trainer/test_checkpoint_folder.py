import json
import os
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest

from worker_agent.trainer.checkpoint_folder import (
    FORMAT,
    MANIFEST,
    begin_checkpoint,
    checkpoint_name,
    corrupt_part,
    discard_partial,
    finish_checkpoint,
    has_space,
    iterations_of,
    missing_part,
    partial_path,
    prune,
    put_back_replaced,
    record_digests,
    tell_damaged,
    try_folder,
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
    elif how == "an empty manifest":
        (checkpoint / MANIFEST).write_text(json.dumps({"format": FORMAT, "files": {}}))
    else:
        (checkpoint / MANIFEST).write_text(json.dumps([]))


@pytest.mark.parametrize(
    ("how", "lacks"),
    [
        ("a file cut off", "data.bin should have 100 bytes but has 99"),
        ("a file gone", "data.bin should have 100 bytes but is not there"),
        ("no manifest", "no readable manifest.json"),
        ("half a manifest", "no readable manifest.json"),
        ("an empty manifest", "manifest.json names no files"),
        ("another manifest", "no manifest of a checkpoint"),
    ],
)
def test_a_torn_checkpoint_is_passed_over_for_an_older_whole_one(tmp_path: Path, how: str, lacks: str) -> None:
    older, torn = write(tmp_path, 5), write(tmp_path, 6)
    tear(torn, how)
    assert whole_checkpoints(tmp_path) == [older]
    assert lacks in str(missing_part(torn))


def test_what_is_passed_over_is_told_and_where_nothing_is_whole_nothing_begins(tmp_path: Path) -> None:
    tell_damaged(tmp_path / "none")
    older, newer = write(tmp_path, 5), write(tmp_path, 6)
    tell_damaged(tmp_path)
    tear(newer, "a file gone")
    with pytest.warns(UserWarning, match=r"iteration-00000006 is passed over: .* is not there"):
        tell_damaged(tmp_path)
    write(tmp_path, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tell_damaged(tmp_path)  # a newer one is whole: nothing is lost
    tear(tmp_path / checkpoint_name(7), "a file gone")
    tear(older, "a file gone")
    before = names(tmp_path)
    with pytest.raises(CheckpointRefused, match="holds 3 checkpoints and none is whole: of iteration-00000005"):
        tell_damaged(tmp_path)
    assert names(tmp_path) == before


def test_between_one_that_is_corrupt_and_one_that_is_whole_damaged_ones_are_told_too(tmp_path: Path) -> None:
    for number in (5, 6, 7):
        write(tmp_path, number)
    tear(tmp_path / checkpoint_name(6), "a file gone")
    with pytest.warns(UserWarning, match=r"iteration-00000006 is passed over: .* is not there"):
        tell_damaged(tmp_path, before=7)


def test_a_link_that_leads_nowhere_is_a_checkpoint_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / checkpoint_name(5)).symlink_to(tmp_path / "nowhere")
    with pytest.raises(CheckpointRefused, match="holds 1 checkpoints and none is whole: of iteration-00000005"):
        tell_damaged(tmp_path)


def test_a_damaged_checkpoint_is_set_aside_by_one_of_its_number(tmp_path: Path) -> None:
    for number in (1, 2):
        tear(write(tmp_path, 5), "a file cut off")
        write(tmp_path, 5)
        assert (tmp_path / f"{checkpoint_name(5)}.damaged-{number}" / "data.bin").stat().st_size == 99
    prune(tmp_path, 1)
    assert names(tmp_path) == [checkpoint_name(5), *(f"{checkpoint_name(5)}.damaged-{number}" for number in (1, 2))]


def test_the_newest_whole_checkpoints_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        write(tmp_path, number)
    tear(tmp_path / checkpoint_name(4), "a file gone")
    partial_path(tmp_path, 9).mkdir()
    (tmp_path / "notes.txt").write_text("not ours")
    prune(tmp_path, 2)
    # What is damaged can perhaps be mended, and is nobody's to delete.
    assert names(tmp_path) == [checkpoint_name(3), checkpoint_name(4), checkpoint_name(5), "notes.txt"]


def test_a_folder_that_cannot_be_written_is_refused_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointRefused, match=r"cannot be written to .*file.* every rank may write to"):
        begin_checkpoint(tmp_path / "file", 5)


def test_a_full_disk_is_called_so_and_what_was_begun_is_discarded(tmp_path: Path) -> None:
    partial = begin_checkpoint(tmp_path, 5)
    (partial / ".digests-0.json").symlink_to("/dev/full")
    with pytest.raises(CheckpointRefused, match=r"no space is left for a checkpoint in .* make room there"):
        record_digests(tmp_path, 5, 0)
    discard_partial(tmp_path, 5)
    assert names(tmp_path) == []
    assert has_space(tmp_path, 1)
    assert not has_space(tmp_path, 2**62)


def test_files_are_told_apart_by_their_bytes_whoever_noted_them(tmp_path: Path) -> None:
    partial = begin_checkpoint(tmp_path, 5)
    for name in ("__0_0.distcp", "__1_0.distcp", "rest"):
        (partial / name).write_text(name)
    record_digests(tmp_path, 5, 1)
    written = finish_checkpoint(tmp_path, 5, {})
    assert names(written) == ["__0_0.distcp", "__1_0.distcp", MANIFEST, "rest"]
    for name in ("__0_0.distcp", "__1_0.distcp", "rest"):
        assert [corrupt_part(written, share, 2) for share in range(2)] == [None, None]
        (written / name).write_text(name.swapcase())
        assert missing_part(written) is None
        found = [corrupt_part(written, share, 2) for share in range(2)]
        assert sorted(map(str, found)) == sorted(["None", f"{name} has other bytes than were written"])
        (written / name).write_text(name)


class Killed(BaseException):
    """Stands for a kill: nothing behind it runs."""


@pytest.mark.parametrize("killed_at", range(1, 9))
def test_a_whole_checkpoint_is_there_wherever_replacing_one_is_killed(
    tmp_path: Path, killed_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 5)
    num_calls = 0

    def killing(act: Any) -> Any:
        def act_or_die(*arguments: Any, **further: Any) -> Any:
            nonlocal num_calls
            num_calls += 1
            if num_calls == killed_at:
                raise Killed
            return act(*arguments, **further)

        return act_or_die

    with monkeypatch.context() as patched:
        for owner, name in ((Path, "rename"), (Path, "mkdir"), (os, "fsync"), (shutil, "rmtree"), (os, "rmdir")):
            patched.setattr(owner, name, killing(getattr(owner, name)))
        try:
            write(tmp_path, 5)
            prune(tmp_path, 1)
        except Killed:
            pass
    put_back_replaced(tmp_path)
    assert [path.name for path in whole_checkpoints(tmp_path)] == [checkpoint_name(5)]
    write(tmp_path, 6)
    prune(tmp_path, 1)
    assert names(tmp_path) == [checkpoint_name(6)]


def test_files_and_links_that_are_named_like_checkpoints_are_left_alone(tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "elsewhere", 2)
    folder = tmp_path / "folder"
    for number in (5, 6):
        write(folder, number)
    (folder / checkpoint_name(1)).write_text("a file")
    (folder / checkpoint_name(2)).symlink_to(elsewhere)
    (folder / checkpoint_name(3)).symlink_to(tmp_path / "nowhere")
    assert [iterations_of(path) for path in whole_checkpoints(folder)] == [2, 5, 6]
    prune(folder, 1)
    assert names(folder) == [checkpoint_name(number) for number in (1, 2, 3, 6)]
    assert missing_part(elsewhere) is None
    for number in (1, 2, 3):
        with pytest.raises(CheckpointRefused, match="is a file or a link and stands where a checkpoint is written"):
            begin_checkpoint(folder, number)


def test_a_folder_is_made_and_tried_without_a_trace(tmp_path: Path) -> None:
    try_folder(tmp_path / "new" / "folder", 3)
    assert names(tmp_path / "new" / "folder") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointRefused, match=r"cannot be written to .*file.* every rank may write to"):
        try_folder(tmp_path / "file" / "folder", 3)


def test_a_name_that_is_none_of_a_checkpoint_has_no_number(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="give one named like iteration-00000500"):
        iterations_of(tmp_path)
