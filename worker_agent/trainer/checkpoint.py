"""Checkpoints of a run: the optimizer shards through torch.distributed.checkpoint, the rest beside them.

Each flat tensor is saved as one `DTensor` sharded over all ranks, so that it can be loaded on any number of ranks; the
layout that computes plays no part in it.
"""

import json
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from worker_agent.executor.collectives import Group, gather_bytes, gather_values, rank_loss_named
from worker_agent.executor.faults import IterationFailed, RankLost
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.checkpoint_folder import (
    FORMAT,
    NO_SPACE,
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
    read_manifest,
    record_digests,
    set_aside,
    tell_damaged,
    try_folder,
    unwritten,
    whole_checkpoints,
)
from worker_agent.trainer.faults import CheckpointCorrupt, CheckpointRefused
from worker_agent.trainer.progress import Progress
from worker_agent.trainer.settled import settled

_SCHEDULE_FILE = "schedule.pt"
_SMALL_BYTES = 2**20
"""Room for what is written beside the shards."""

_NAME_BYTES = 64
"""Room for the name of a checkpoint, so that all ranks tell equally much."""

_CORRUPT_BYTES = 256
"""As above, for what is corrupt."""


class CheckpointWriter:
    """Writes and reads the checkpoints of one run; all methods are collectives that every rank of the group calls.

    Parameters
    ----------
    folder
        Where they lie; every rank reaches it under this path.
    config
        The decoder's shape.
    num_elements
        Elements of each flat tensor, over all ranks.
    keep
        How many are kept.
    group
        The process group; by default all ranks.
    """

    def __init__(
        self, folder: Path, config: DecoderConfig, num_elements: int, *, keep: int = 3, group: Group = None
    ) -> None:
        self._folder = folder
        self._config = config
        self._num_elements = num_elements
        self._keep = keep
        self._group = group
        self._rank, self._num_ranks = dist.get_rank(group), dist.get_world_size(group)
        self._leads = self._rank == 0
        self._corrupt: list[Path] = []

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for all."""
        return self._leads

    def path_of(self, num_iterations: int) -> Path:
        """Return where the checkpoint after so many iterations lies, or would."""
        return self._folder / checkpoint_name(num_iterations)

    def try_folder(self) -> None:
        """Find out whether every rank can write to the folder, long before there is something to write.

        Raises
        ------
        worker_agent.executor.faults.IterationFailed
            On every rank, if a rank cannot.
        """
        with settled(f"trying to write to {self._folder}", self._group):
            try_folder(self._folder, self._rank)

    def newest(self, *, before: Path | None = None) -> Path | None:
        """Return the newest whole checkpoint, the same on every rank; None if there is none.

        Of damaged ones that are newer it warns.

        Parameters
        ----------
        before
            Only those older than this one count.

        Raises
        ------
        CheckpointRefused
            On every rank, if the folder cannot be read, or holds damaged checkpoints and no whole one.
        """
        found = b""
        try:
            with settled("looking for checkpoints", self._group):
                if self._leads:
                    found = self._look(before)
        except IterationFailed as failed:
            told = "; ".join(text.removeprefix("CheckpointRefused: ") for text in failed.messages.values())
            raise CheckpointRefused(told) from failed
        padded = found.ljust(_NAME_BYTES, b"\0")
        told = gather_bytes(padded, self._group, "agreeing on a checkpoint")[0].rstrip(b"\0").decode()
        return self._folder / told if told else None

    def _look(self, before: Path | None) -> bytes:
        end = None if before is None else iterations_of(before)
        put_back_replaced(self._folder)
        tell_damaged(self._folder, before=end)
        whole = [path for path in whole_checkpoints(self._folder) if end is None or iterations_of(path) < end]
        return whole[-1].name.encode() if whole else b""

    def save(self, shards: Mapping[str, Tensor], schedule: Mapping[str, Any], progress: Progress) -> Path:
        """Write a checkpoint and delete those that are too old.

        Parameters
        ----------
        shards
            This rank's part of each flat tensor, by name.
        schedule
            State of the learning rate's schedule; plain values and tensors.
        progress
            How far the run has come.

        Returns
        -------
        Path
            The checkpoint.

        Raises
        ------
        worker_agent.executor.faults.IterationFailed
            On every rank, if a rank cannot write its part; older checkpoints are left as they are, and nothing of this
            one.
        """
        done = progress.num_iterations
        shards = self._common(shards)
        with settled(f"making room for the checkpoint after iteration {done - 1}", self._group):
            if self._leads:
                self._set_corrupt_aside()
                begin_checkpoint(self._folder, done)
        try:
            self._write(shards, schedule, progress)
        except IterationFailed:
            if self._leads:
                discard_partial(self._folder, done)
            raise
        return self.path_of(done)

    def _write(self, shards: Mapping[str, Tensor], schedule: Mapping[str, Any], progress: Progress) -> None:
        done = progress.num_iterations
        partial = partial_path(self._folder, done)
        size_bytes = sum(local.nbytes for local in shards.values())
        with settled(f"writing {partial}", self._group), self._full_disk_named(size_bytes):
            _run_dcp(lambda: save(self._state(shards), checkpoint_id=partial, process_group=self._group))
            record_digests(self._folder, done, self._rank)
        with settled(f"finishing checkpoint {checkpoint_name(done)}", self._group), self._full_disk_named(_SMALL_BYTES):
            if self._leads:
                torch.save(dict(schedule), partial / _SCHEDULE_FILE)
                finish_checkpoint(self._folder, done, self._content(shards, progress))
                prune(self._folder, self._keep)

    @contextmanager
    def _full_disk_named(self, size_bytes: int) -> Iterator[None]:
        """Say of what a full disk causes that it is full; torch tells only at which byte it came to a halt.

        Raises
        ------
        CheckpointRefused
            If this rank could not write what needs so many bytes.
        """
        try:
            yield
        except CheckpointException as failed:
            own = failed.failures.get(self._rank)
            if own is None:
                raise
            raise self._unwritten(own[0], size_bytes) from failed
        except RankLost:
            raise
        except (OSError, RuntimeError) as fault:
            raise self._unwritten(fault, size_bytes) from fault

    def _unwritten(self, fault: BaseException, size_bytes: int) -> CheckpointRefused:
        is_full = getattr(fault, "errno", None) in NO_SPACE or not has_space(self._folder, size_bytes)
        return unwritten(self._folder, fault, is_full=is_full)

    def _set_corrupt_aside(self) -> None:
        """Keep what was passed over from being taken for whole again, and from being replaced or deleted as such."""
        for checkpoint in self._corrupt:
            if checkpoint.is_dir():
                set_aside(checkpoint)
        self._corrupt.clear()

    def load(self, checkpoint: Path, shards: Mapping[str, Tensor]) -> tuple[Progress, dict[str, Any]]:
        """Read a checkpoint into this rank's part of each flat tensor.

        Parameters
        ----------
        checkpoint
            The checkpoint, of this or any other number of ranks.
        shards
            This rank's part of each flat tensor, by name; they are overwritten.

        Returns
        -------
        tuple of (Progress, dict)
            How far its run had come, and the state of the learning rate's schedule.

        Raises
        ------
        CheckpointCorrupt
            On every rank, if a file has other bytes than were written.
        worker_agent.executor.faults.IterationFailed
            On every rank, if it is torn, of another model or of other optimizer states.
        """
        shards = self._common(shards)
        with settled(f"reading {checkpoint}", self._group):
            progress = self._check(checkpoint, shards)
        self._check_bytes(checkpoint)
        with settled(f"loading {checkpoint}", self._group):
            schedule: dict[str, Any] = torch.load(checkpoint / _SCHEDULE_FILE, weights_only=True)
            _run_dcp(lambda: load(self._state(shards), checkpoint_id=checkpoint, process_group=self._group))
        return progress, schedule

    def _common(self, shards: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the flat tensors that any rank has; where this one has none, zeros.

        An optimizer that leaves parameters out has no states on a rank that holds none of those it takes.
        """
        own = {name: str(local.dtype).removeprefix("torch.") for name, local in shards.items()}
        text = json.dumps(own).encode()
        doing = "comparing what a checkpoint holds"
        size = int(max(sizes[0] for sizes in gather_values([len(text)], self._group, doing)))
        by_rank = [json.loads(told) for told in gather_bytes(text.ljust(size), self._group, doing)]
        dtypes = {name: dtype for told in by_rank for name, dtype in told.items()}
        like = next(iter(shards.values()))
        return {
            name: shards[name] if name in shards else torch.zeros_like(like, dtype=getattr(torch, dtype))
            for name, dtype in sorted(dtypes.items())
        }

    def _check_bytes(self, checkpoint: Path) -> None:
        """Compare all files with their checksums, each rank a share of them.

        Raises
        ------
        CheckpointCorrupt
            On every rank, if one differs.
        """
        found: str | None = None
        with settled(f"reading {checkpoint}", self._group):
            found = corrupt_part(checkpoint, self._rank, self._num_ranks)
        told = (found or "").encode()[:_CORRUPT_BYTES].ljust(_CORRUPT_BYTES, b"\0")
        texts = gather_bytes(told, self._group, f"comparing checksums of {checkpoint}")
        listed = "; ".join(text.rstrip(b"\0").decode(errors="ignore") for text in texts if text.strip(b"\0"))
        if listed:
            self._corrupt.append(checkpoint)
            raise CheckpointCorrupt(f"checkpoint {checkpoint} is corrupt: {listed}; resume from another one")

    def _state(self, shards: Mapping[str, Tensor]) -> dict[str, Any]:
        """Wrap the parts as what they are: one flat tensor each, cut into equal chunks over all ranks."""
        device = next(iter(shards.values())).device.type
        if self._group is None:
            mesh = init_device_mesh(device, (dist.get_world_size(),))
        else:
            mesh = DeviceMesh.from_group(self._group, device)
        return {
            name: DTensor.from_local(
                local, mesh, [Shard(0)], run_check=False, shape=torch.Size([self._num_elements]), stride=(1,)
            )
            for name, local in shards.items()
        }

    def _content(self, shards: Mapping[str, Tensor], progress: Progress) -> dict[str, Any]:
        return {
            "model": _shape_document(self._config),
            "num_elements": self._num_elements,
            "tensors": {name: str(local.dtype) for name, local in shards.items()},
            "num_ranks": self._num_ranks,
            "progress": progress.document(),
        }

    def _check(self, checkpoint: Path, shards: Mapping[str, Tensor]) -> Progress:
        """Return the progress of a checkpoint that can be loaded into this run.

        Raises
        ------
        CheckpointRefused
            If it cannot.
        """
        lacks = missing_part(checkpoint)
        if lacks is not None:
            raise CheckpointRefused(f"checkpoint {checkpoint} is torn: {lacks}; resume from another one")
        manifest = read_manifest(checkpoint)
        if manifest.get("format") != FORMAT:
            raise CheckpointRefused(
                f"checkpoint {checkpoint} has format {manifest.get('format')}; this version reads format {FORMAT}"
            )
        differing = _first_difference(_entry(manifest, "model", checkpoint), _shape_document(self._config))
        if differing is not None:
            name, stored, own = differing
            raise CheckpointRefused(
                f"checkpoint {checkpoint} is of a model with {name} {stored} but this one has {name} {own}; "
                "give the model it was written by, or another folder"
            )
        tensors = {name: str(local.dtype) for name, local in shards.items()}
        differing = _first_difference(_entry(manifest, "tensors", checkpoint), tensors)
        if differing is not None:
            name, stored, own = differing
            raise CheckpointRefused(
                f"checkpoint {checkpoint} has {name} of type {stored} but this run has {own}; resume with the "
                "optimizer and the dtype it was written with"
            )
        try:
            progress = Progress.of_document(manifest.get("progress"))
        except ValueError as fault:
            raise CheckpointRefused(f"the manifest of checkpoint {checkpoint} was changed: {fault}") from fault
        if checkpoint_name(progress.num_iterations) != checkpoint.name:
            raise CheckpointRefused(
                f"checkpoint {checkpoint} tells of {progress.num_iterations} iterations; give it the name it was "
                f"written under, {checkpoint_name(progress.num_iterations)}"
            )
        return progress


def _entry(manifest: Mapping[str, Any], name: str, checkpoint: Path) -> Mapping[str, Any]:
    told = manifest.get(name)
    if not isinstance(told, dict):
        raise CheckpointRefused(f"the manifest of checkpoint {checkpoint} was changed: {name} is {told!r}")
    return told


def _shape_document(config: DecoderConfig) -> dict[str, Any]:
    """Return the shape with its defaults filled in: the same model is the same, however it was written down."""
    return asdict(config) | {"num_kv_heads": config.kv_heads, "ffn_size": config.ffn}


def _run_dcp(act: Callable[[], object]) -> None:
    with rank_loss_named("reading or writing a checkpoint"), warnings.catch_warnings():
        # One process without a group is a run like any other; its warning would tell users nothing.
        warnings.filterwarnings("ignore", message=".*torch.distributed is disabled.*")
        act()


def _first_difference(stored: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    for name in sorted({*stored, *own}):
        if stored.get(name) != own.get(name):
            return name, stored.get(name), own.get(name)
    return None
