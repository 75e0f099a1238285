"""The folder of checkpoints: which are whole, which are old, and how a new one comes to stand there at once.

A checkpoint is written into a hidden folder beside the others and renamed when all of it is on the disk, its manifest
last. It is whole if its manifest is there and every file named in it has the size named; whatever else lies there (a
run that was killed while writing, a disk that lost files) is never read.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_agent.trainer.faults import CheckpointRefused

MANIFEST = "manifest.json"
_NAME = re.compile(r"iteration-(\d{8,})")
_PARTIAL = re.compile(r"\.iteration-\d{8,}\.partial")


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
    if not folder.exists():
        return []
    try:
        named = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
        return [path for _, path in sorted(named) if missing_part(path) is None]
    except OSError as fault:
        raise CheckpointRefused(f"the checkpoint folder {folder} cannot be read: {fault}") from fault


def missing_part(checkpoint: Path) -> str | None:
    """Return what a checkpoint lacks, in words; None if it is whole."""
    try:
        sizes = read_manifest(checkpoint)["files"]
        for name, size_bytes in sizes.items():
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


def begin_checkpoint(folder: Path, num_iterations: int) -> Path:
    """Make the empty folder that a checkpoint is written into, and return it; one of another try is deleted.

    Raises
    ------
    CheckpointRefused
        If the folder cannot be written.
    """
    partial = partial_path(folder, num_iterations)
    try:
        if partial.exists():
            shutil.rmtree(partial)
        partial.mkdir(parents=True)
    except OSError as fault:
        raise CheckpointRefused(
            f"checkpoints cannot be written to {folder}: {fault}; name a folder that every rank may write to"
        ) from fault
    return partial


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
        files = {file.name: file.stat().st_size for file in sorted(partial.iterdir())}
        for name in files:
            _sync(partial / name)
        manifest = partial / MANIFEST
        with manifest.open("w", encoding="utf-8") as out:
            json.dump({**content, "files": files}, out, indent=2, sort_keys=True)
            out.flush()
            os.fsync(out.fileno())
        _sync(partial)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        _sync(folder)
    except OSError as fault:
        raise CheckpointRefused(f"checkpoint {final} cannot be written: {fault}") from fault
    return final


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest whole checkpoints, and what killed runs left behind.

    Raises
    ------
    CheckpointRefused
        If something cannot be deleted.
    """
    kept = whole_checkpoints(folder)[-keep:]
    try:
        for path in folder.iterdir():
            if (_NAME.fullmatch(path.name) and path not in kept) or _PARTIAL.fullmatch(path.name):
                # Renamed first, so that one half deleted never stands under the name of a whole one.
                doomed = path if path.name.startswith(".") else path.rename(folder / f".{path.name}.partial")
                shutil.rmtree(doomed)
    except OSError as fault:
        raise CheckpointRefused(f"old checkpoints in {folder} cannot be deleted: {fault}") from fault


def _sync(path: Path) -> None:
    """Have the disk keep a file's content, or a folder's entries."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
