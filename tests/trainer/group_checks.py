"""What real ranks do with loaders and checkpoints, in process groups of one, two and three; importable by them."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from worker_agent.executor.collectives import Group
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.shape import DecoderConfig
from worker_agent.trainer.checkpoint import CheckpointWriter
from worker_agent.trainer.loader import BatchLoader, GlobalBatch
from worker_agent.trainer.progress import DataOrder, Progress
from worker_agent.trainer.sampling import DataPosition
from worker_agent.trainer.settings import BatchLimit

CONFIG = DecoderConfig(vocab_size=11, hidden_size=8, num_layers=1, num_heads=2)
OTHER_CONFIG = DecoderConfig(vocab_size=11, hidden_size=8, num_layers=2, num_heads=2)
TABLE = ParameterTable.of(CONFIG)
LENGTHS = [3, 9, 1, 4, 2, 2, 30, 5, 1, 1, 6, 2, 8]
LIMIT = BatchLimit(tokens=12, sequences=4)
WORLD_SIZES = (1, 2, 3)


def dataset(lengths: list[int] = LENGTHS) -> list[Tensor]:
    return [torch.full((length,), index) for index, length in enumerate(lengths)]


class Stream:
    """Data that can be iterated anew but not indexed."""

    def __iter__(self) -> Iterator[Tensor]:
        return iter(dataset())


@dataclass
class BadOnOneRank:
    """Indexed data with one sequence that cannot be trained on."""

    bad: Any

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        if index != 3:
            return torch.ones(2, dtype=torch.int64)
        if isinstance(self.bad, Exception):
            raise self.bad
        return self.bad


class Breaks:
    """Indexed data, or a stream, whose eighth sequence cannot be read."""

    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, index: int) -> Tensor:
        if index == 7:
            raise OSError("the disk is gone")
        return dataset()[index]


def batches_before_the_fault(loader: BatchLoader, group: Group) -> dict[str, Any]:
    """Read until it cannot go on."""
    held: list[list[int]] = []
    while len(held) < 99:
        fault = fault_of(lambda: held.append(seen(loader.next(), group)["held"]))
        if fault != "no fault":
            return {"held": held, "fault": fault, "again": fault_of(loader.next)}
    return {"held": held, "fault": "none"}


def seen(batch: GlobalBatch, group: Group) -> dict[str, Any]:
    """What all ranks of a group hold of a batch, as sorted indices into the data."""
    held: list[list[int]] = [[] for _ in range(dist.get_world_size(group))]
    dist.all_gather_object(held, [int(sequence[0]) for sequence in batch.held], group=group)
    own = f"rank-{dist.get_rank(group)}"
    assert [len(sequence) for sequence in batch.held] == batch.lengths[own]
    return {
        "held": sorted(index for indices in held for index in indices),
        "after": batch.after,
        "ends_epoch": batch.ends_epoch,
    }


def fault_of(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as fault:  # noqa: BLE001 - the test reads what it was
        return f"{type(fault).__name__}: {fault}"
    return "no fault"


def check_loader(group: Group) -> dict[str, Any]:
    """Read data in several ways."""
    shuffled = BatchLoader(dataset(), LIMIT, seed=3, group=group)
    batches = [seen(shuffled.next(), group) for _ in range(14)]
    resumed = BatchLoader(dataset(), LIMIT, seed=3, position=batches[3]["after"], group=group)
    stream = BatchLoader(Stream(), LIMIT, group=group)
    streamed = [seen(stream.next(), group) for _ in range(14)]
    plain = BatchLoader(dataset(), LIMIT, shuffle=False, group=group)
    resumed_stream = BatchLoader(Stream(), LIMIT, position=streamed[3]["after"], group=group)
    generator = BatchLoader((sequence for sequence in dataset([2, 2])), LIMIT, group=group)
    generator.next()
    bad = {"empty": torch.ones(0, dtype=torch.int64), "float": torch.ones(2), "text": "words", "flat": torch.ones(2, 2)}
    return {
        "shuffled": batches,
        "resumed": [seen(resumed.next(), group) for _ in range(10)],
        "streamed": streamed,
        "plain": [seen(plain.next(), group) for _ in range(14)],
        "resumed stream": [seen(resumed_stream.next(), group) for _ in range(10)],
        "generator": fault_of(generator.next),
        "no data": fault_of(BatchLoader([], LIMIT, group=group).next),
        "less data": fault_of(BatchLoader(dataset([2]), LIMIT, position=DataPosition(0, 5), group=group).next),
        **{name: fault_of(BatchLoader(BadOnOneRank(item), LIMIT, group=group).next) for name, item in bad.items()},
        "breaks": batches_before_the_fault(BatchLoader(Breaks(), LIMIT, shuffle=False, group=group), group),
        "stream breaks": batches_before_the_fault(
            BatchLoader((Breaks()[index] for index in range(13)), LIMIT, group=group), group
        ),
        "raising": fault_of(BatchLoader(BadOnOneRank(KeyError("gone")), LIMIT, group=group).next),
    }


def shards(group: Group, *, filled: bool) -> dict[str, Tensor]:
    """This rank's part of two flat tensors."""
    begin, end = TABLE.shard(dist.get_rank(group), dist.get_world_size(group))
    whole = torch.arange(TABLE.num_elements, dtype=torch.float64)
    own = whole[begin:end] if filled else torch.zeros(end - begin, dtype=torch.float64)
    return {"masters": own.clone(), "exp_avg": (-own).float()}


def check_writing(group: Group, folder: Path) -> dict[str, Any]:
    """Write checkpoints of known content."""
    writer = CheckpointWriter(folder, CONFIG, TABLE.num_elements, keep=2, group=group)
    before = writer.newest()
    own = shards(group, filled=True)
    for done in (1, 2, 3):
        written = writer.save(
            own,
            {"last_epoch": done},
            Progress(done, DataPosition(2, done), "sha256:ab", DataOrder(9, shuffled=True, num_sequences=20)),
        )
    file = folder / "file"
    if dist.get_rank(group) == 0:
        file.write_text("no folder")
    dist.barrier(group=group)
    blocked = CheckpointWriter(file, CONFIG, TABLE.num_elements, group=group)
    own_group_only = {**own, "momentum": own["masters"].float()} if dist.get_rank(group) == 0 else own
    uneven = CheckpointWriter(folder.with_name(f"{folder.name}-uneven"), CONFIG, TABLE.num_elements, group=group)
    uneven_at = uneven.save(own_group_only, {}, Progress(5))
    return {
        "before": before,
        "uneven": fault_of(lambda: uneven.load(uneven_at, own_group_only)),
        "tried": fault_of(blocked.try_folder),
        "left": sorted(path.name for path in folder.iterdir() if path.name.startswith(".")),
        "written": written,
        "newest": writer.newest(),
        "blocked": fault_of(lambda: blocked.save(own, {}, Progress())),
    }


def check_reading(group: Group, folder: Path) -> dict[str, Any]:
    """Read a checkpoint that any number of ranks wrote, and meet those that cannot be read."""
    writer = CheckpointWriter(folder, CONFIG, TABLE.num_elements, group=group)
    newest = writer.newest()
    assert newest is not None
    own, expected = shards(group, filled=False), shards(group, filled=True)
    progress, schedule = writer.load(newest, own)
    other = CheckpointWriter(folder, OTHER_CONFIG, ParameterTable.of(OTHER_CONFIG).num_elements, group=group)
    wider = {**own, "exp_avg": own["exp_avg"].double()}
    fewer = {"masters": own["masters"]}
    return {
        "equal": all(torch.equal(own[name], expected[name]) for name in expected),
        "progress": progress,
        "schedule": schedule,
        "other model": fault_of(lambda: other.load(newest, own)),
        "other dtype": fault_of(lambda: writer.load(newest, wider)),
        "other optimizer": fault_of(lambda: writer.load(newest, fewer)),
        "no checkpoint": fault_of(lambda: writer.load(folder / "iteration-00000099", own)),
        **_torn(writer, newest, own, group),
    }


def _torn(writer: CheckpointWriter, newest: Path, own: dict[str, Tensor], group: Group) -> dict[str, Any]:
    """Try a copy with a file cut off, one whose file is wrong though its size is right, and changed manifests."""
    changed: dict[str, Callable[[dict[str, Any]], object]] = {
        "another format": lambda manifest: manifest.update(format=99),
        "no model": lambda manifest: manifest.pop("model"),
        "negative": lambda manifest: manifest["progress"].update(num_iterations=-3),
        "unknown": lambda manifest: manifest["progress"].update(mood="good"),
        "another number": lambda manifest: manifest["progress"].update(num_iterations=7),
        "no sizes": lambda manifest: manifest.update(files={"x": 5}),
    }
    faults = {}
    for how in ("cut off", "garbled", *changed):
        copy = newest.parent / "torn" / newest.name
        if dist.get_rank(group) == 0:
            shutil.copytree(newest, copy)
            file = max(copy.glob("*.distcp"), key=lambda file: file.stat().st_size)
            if how in changed:
                manifest = json.loads((copy / "manifest.json").read_text())
                changed[how](manifest)
                (copy / "manifest.json").write_text(json.dumps(manifest))
            else:
                file.write_bytes(file.read_bytes()[:-9] if how == "cut off" else b"\0" * file.stat().st_size)
        dist.barrier(group=group)
        faults[how] = fault_of(lambda copy=copy: writer.load(copy, own))
        dist.barrier(group=group)
        if dist.get_rank(group) == 0:
            shutil.rmtree(copy.parent)
    return faults


def check_in_groups(rank: int, folder: Path) -> dict[Any, Any]:
    """Run all checks in groups of the first one, two and three ranks; checkpoints are read by all of them."""
    groups = {size: dist.new_group(list(range(size))) for size in WORLD_SIZES}
    reports: dict[Any, Any] = {}
    for size, group in groups.items():
        if rank < size:
            reports["loader", size] = check_loader(group)
            reports["writing", size] = check_writing(group, folder / f"written-by-{size}")
        dist.barrier()
    for writers in WORLD_SIZES:
        for size, group in groups.items():
            if rank < size:
                reports["reading", writers, size] = check_reading(group, folder / f"written-by-{writers}")
            dist.barrier()
    return reports
