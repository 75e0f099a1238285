"""The folder of checkpoints: which are whole, which are old, and how a new one comes to stand there at once.

A checkpoint is written into a hidden folder beside the others and renamed when all of it is on the disk, its manifest
last. It is whole if its manifest is there and every file named in it has the size named, and intact if the bytes are
those that were written; whatever else lies there (a run that was killed while writing, a disk that lost files) is never
read. Files and links that stand under such names are never deleted.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from worker_agent.trainer.faults import CheckpointRefused

FORMAT = 2
NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
"""Numbers of the errors of a disk, or a quota, that is full."""

MOST_TOLD = 3
"""Damaged checkpoints that an error names, the newest."""

MANIFEST = "manifest.json"
_NAME = re.compile(r"iteration-(\d{8,})")
_REPLACED = re.compile(r"\.(iteration-\d{8,})\.replaced")
_HIDDEN = re.compile(r"\.iteration-\d{8,}\.(partial|replaced|old)")
_DIGESTS = ".digests-{}.json"


def checkpoint_name(num_iterations: int) -> str:
    """Return the name of the checkpoint after so many iterations; names sort by age."""
    return f"iteration-{num_iterations:08d}"


def iterations_of(checkpoint: Path) -> int:
    """Return the number of iterations done when a checkpoint was written, from its name.

    Raises
    ------
    ValueError
        If it is not named as a checkpoint.
    """
    match = _NAME.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named as a checkpoint; give one named like {checkpoint_name(500)}")
    return int(match[1])


def partial_path(folder: Path, num_iterations: int) -> Path:
    """Return where a checkpoint stands while it is written."""
    return folder / f".{checkpoint_name(num_iterations)}.partial"


def whole_checkpoints(folder: Path) -> list[Path]:
    """Return the whole checkpoints of a folder, oldest first; none if there is no such folder.

    Raises
    ------
    CheckpointRefused
        If the folder cannot be read.
    """
    return [path for path, missing in _named_as_checkpoints(folder) if missing is None]


def tell_damaged(folder: Path, *, before: int | None = None) -> None:
    """Warn of checkpoints that are not whole and newer than those that are.

    None is ever left like that by a run, killed or not: a disk, or somebody, took something from them.

    Parameters
    ----------
    folder
        The folder of checkpoints.
    before
        Only those after fewer iterations count; the one after so many was found to be corrupt.

    Raises
    ------
    CheckpointRefused
        If the folder cannot be read, or holds such ones and no whole one: a run that began anew there would be taken
        for the one that wrote them.
    """
    named = [
        (path, missing)
        for path, missing in _named_as_checkpoints(folder)
        if before is None or iterations_of(path) < before
    ]
    damaged = [(path, missing) for path, missing in named if missing is not None and _is_link_or_folder(path)]
    whole = [iterations_of(path) for path, missing in named if missing is None]
    if damaged and not whole and before is None:
        told = "; ".join(f"of {path.name}, {missing}" for path, missing in damaged[-MOST_TOLD:])
        raise CheckpointRefused(
            f"{folder} holds {len(damaged)} checkpoints and none is whole: {told}. Restore what is missing, or name an "
            "empty folder to begin anew; nothing was changed here"
        )
    for path, missing in damaged:
        if iterations_of(path) > max(whole, default=-1):
            warnings.warn(f"checkpoint {path} is passed over: {missing}", stacklevel=2)


def _named_as_checkpoints(folder: Path) -> list[tuple[Path, str | None]]:
    """Return what bears the name of a checkpoint, oldest first, and what it lacks."""
    if not folder.exists():
        return []
    try:
        named = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [(path, missing_part(path)) for _, path in sorted(named)]
    except OSError as fault:
        raise CheckpointRefused(f"the checkpoint folder {folder} cannot be read: {fault}") from fault


def missing_part(checkpoint: Path) -> str | None:
    """Return what a checkpoint lacks, in words; None if it is whole."""
    try:
        manifest = read_manifest(checkpoint)
        if manifest.get("format") != FORMAT:
            return None  # what another version takes for whole cannot be told; whoever loads it refuses it by name
        recorded = recorded_files(manifest, checkpoint)
        if not recorded:
            return f"{MANIFEST} names no files"
        for name, (size_bytes, _) in recorded.items():
            file = checkpoint / name
            found_bytes = file.stat().st_size if file.is_file() else None
            if found_bytes != size_bytes:
                return f"{name} should have {size_bytes} bytes but " + (
                    "is not there" if found_bytes is None else f"has {found_bytes}"
                )
    except CheckpointRefused as unreadable:
        return str(unreadable)
    return None


def read_manifest(checkpoint: Path) -> dict[str, Any]:
    """Read what a checkpoint says of itself.

    Raises
    ------
    CheckpointRefused
        If it cannot be read.
    """
    try:
        manifest = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as unreadable:
        raise CheckpointRefused(f"checkpoint {checkpoint} has no readable {MANIFEST}: {unreadable}") from unreadable
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise CheckpointRefused(f"{checkpoint / MANIFEST} is no manifest of a checkpoint")
    return manifest


def recorded_files(manifest: Mapping[str, Any], checkpoint: Path) -> dict[str, tuple[int, str]]:
    """Return the size (bytes) and the SHA-256 of each file that a manifest names.

    Raises
    ------
    CheckpointRefused
        If it does not tell them.
    """
    try:
        return {name: (int(told["bytes"]), str(told["sha256"])) for name, told in manifest["files"].items()}
    except (KeyError, TypeError, ValueError) as fault:
        raise CheckpointRefused(f"{checkpoint / MANIFEST} does not tell its files: {fault!r}") from fault


def corrupt_part(checkpoint: Path, share: int, num_shares: int) -> str | None:
    """Return which file of one share of a whole checkpoint has other bytes than were written, in words.

    Parameters
    ----------
    checkpoint
        The checkpoint.
    share, num_shares
        Which of so many equal shares of its files is read.

    Raises
    ------
    CheckpointRefused
        If it cannot be read.
    """
    recorded = sorted(recorded_files(read_manifest(checkpoint), checkpoint).items())
    try:
        for name, (_, digest) in recorded[share::num_shares]:
            if _sha256(checkpoint / name) != digest:
                return f"{name} has other bytes than were written"
    except OSError as fault:
        raise CheckpointRefused(f"checkpoint {checkpoint} cannot be read: {fault}") from fault
    return None


def try_folder(folder: Path, rank: int) -> None:
    """Find out whether a rank can write to the folder of checkpoints, which is made if needed.

    Raises
    ------
    CheckpointRefused
        If it cannot.
    """
    probe = folder / f".probe-{rank}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            probe.write_text("written to see whether checkpoints can be", encoding="utf-8")
        finally:
            probe.unlink(missing_ok=True)
    except OSError as fault:
        raise _not_writable(folder, fault) from fault


def put_back_replaced(folder: Path) -> None:
    """Put back what a run was killed while replacing: the old checkpoint, whose successor does not stand there yet.

    Raises
    ------
    CheckpointRefused
        If the folder cannot be read or written.
    """
    if not folder.is_dir():
        return
    try:
        for path in list(folder.iterdir()):
            match = _REPLACED.fullmatch(path.name)
            if match is not None and not os.path.lexists(folder / match[1]):
                path.rename(folder / match[1])
    except OSError as fault:
        raise _not_writable(folder, fault) from fault


def begin_checkpoint(folder: Path, num_iterations: int) -> Path:
    """Make the empty folder that a checkpoint is written into, and return it; one of another try is deleted.

    Raises
    ------
    CheckpointRefused
        If the folder cannot be written, or something else stands under the checkpoint's name.
    """
    partial, final = partial_path(folder, num_iterations), folder / checkpoint_name(num_iterations)
    if os.path.lexists(final) and not _is_own_folder(final):
        raise CheckpointRefused(f"{final} is a file or a link and stands where a checkpoint is written; move it away")
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as fault:
        raise _not_writable(folder, fault) from fault
    return partial


def set_aside(checkpoint: Path) -> Path:
    """Rename a damaged checkpoint, so that none replaces it and none takes it for whole; return where it lies then.

    Raises
    ------
    CheckpointRefused
        If it cannot be renamed.
    """
    names = (checkpoint.with_name(f"{checkpoint.name}.damaged-{number}") for number in count(1))
    try:
        return checkpoint.rename(next(path for path in names if not os.path.lexists(path)))
    except OSError as fault:
        raise _not_writable(checkpoint.parent, fault) from fault


def record_digests(folder: Path, num_iterations: int, rank: int) -> None:
    """Write down what a rank's files of a checkpoint contain, so that one rank need not read those of all.

    Raises
    ------
    CheckpointRefused
        If they cannot be read, or it cannot be written.
    """
    partial = partial_path(folder, num_iterations)
    try:
        digests = {file.name: _sha256(file) for file in partial.glob(f"__{rank}_*")}
        (partial / _DIGESTS.format(rank)).write_text(json.dumps(digests), encoding="utf-8")
    except OSError as fault:
        raise _not_writable(folder, fault) from fault


def finish_checkpoint(folder: Path, num_iterations: int, content: Mapping[str, Any]) -> Path:
    """Write the manifest, rename the checkpoint into its place and return that.

    Parameters
    ----------
    folder
        The folder of checkpoints.
    num_iterations
        Iterations done.
    content
        What the checkpoint says of itself; JSON values.

    Raises
    ------
    CheckpointRefused
        If the folder cannot be written.
    """
    partial, final = partial_path(folder, num_iterations), folder / checkpoint_name(num_iterations)
    try:
        files = _files_with_digests(partial)
        for name in files:
            _sync(partial / name)
        manifest = partial / MANIFEST
        with manifest.open("w", encoding="utf-8") as out:
            json.dump({**content, "format": FORMAT, "files": files}, out, indent=2, sort_keys=True)
            out.flush()
            os.fsync(out.fileno())
        _sync(partial)
        replaced = folder / f".{final.name}.replaced"
        if final.exists() and missing_part(final) is not None:
            set_aside(final)
        if final.exists():
            # Never deleted before the new one stands there: killed in between, the next run puts it back.
            _delete(replaced)
            final.rename(replaced)
        partial.rename(final)
        _sync(folder)
        _delete(replaced)
    except OSError as fault:
        raise _not_writable(folder, fault) from fault
    return final


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest whole checkpoints, and what killed runs left behind; damaged ones stay.

    Raises
    ------
    CheckpointRefused
        If something cannot be deleted.
    """
    old = whole_checkpoints(folder)[:-keep]
    try:
        for path in list(folder.iterdir()):
            if not _is_own_folder(path):
                continue
            if _HIDDEN.fullmatch(path.name):
                shutil.rmtree(path)
            elif path in old:
                # Renamed first, so that one half deleted never stands under the name of a whole one.
                doomed = folder / f".{path.name}.old"
                _delete(doomed)
                shutil.rmtree(path.rename(doomed))
    except OSError as fault:
        raise CheckpointRefused(f"old checkpoints in {folder} cannot be deleted: {fault}") from fault


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _is_link_or_folder(path: Path) -> bool:
    # A link to a disk that is not there is a checkpoint that is not there; a file never was one.
    return path.is_dir() or path.is_symlink()


def _delete(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _not_writable(folder: Path, fault: OSError) -> CheckpointRefused:
    return unwritten(folder, fault, is_full=fault.errno in NO_SPACE)


def unwritten(folder: Path, fault: BaseException, *, is_full: bool) -> CheckpointRefused:
    """Return what to raise where a folder could not be written.

    Parameters
    ----------
    folder
        The folder of checkpoints.
    fault
        What was met.
    is_full
        Whether the disk has no space left.
    """
    if is_full:
        return CheckpointRefused(
            f"no space is left for a checkpoint in {folder} ({fault}); make room there, keep fewer checkpoints "
            "(keep=), or name a folder on a larger disk"
        )
    return CheckpointRefused(
        f"checkpoints cannot be written to {folder}: {fault}; name a folder that every rank may write to"
    )


def has_space(folder: Path, size_bytes: int) -> bool:
    """Tell whether the disk of a folder has so much space left; True where it does not say."""
    try:
        return shutil.disk_usage(folder).free >= size_bytes
    except OSError:
        return True


def discard_partial(folder: Path, num_iterations: int) -> None:
    """Delete what was written of a checkpoint that could not be finished, as far as it can be."""
    shutil.rmtree(partial_path(folder, num_iterations), ignore_errors=True)


def _files_with_digests(partial: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file; those that ranks wrote down are taken from there, and their notes away."""
    digests: dict[str, str] = {}
    for note in sorted(partial.glob(_DIGESTS.format("*"))):
        digests |= json.loads(note.read_text(encoding="utf-8"))
        note.unlink()
    return {
        file.name: {"bytes": file.stat().st_size, "sha256": digests.get(file.name) or _sha256(file)}
        for file in sorted(partial.iterdir())
    }


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    """Have the disk keep a file's content, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
