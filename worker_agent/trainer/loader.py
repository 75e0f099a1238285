"""Reads each rank's part of the global batches; the ranks tell one another the lengths."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from worker_agent.executor.agree import settle
from worker_agent.executor.collectives import Group, gather_values
from worker_agent.executor.faults import text_of
from worker_agent.trainer.faults import DataRefused
from worker_agent.trainer.sampling import DataPosition, batch_size, epoch_order, own_slots, slots_to_read
from worker_agent.trainer.settings import BatchLimit

_PAST_THE_END, _FAULT = 0, -1


@dataclass
class _Broken:
    """Where reading broke off, and with what on this rank, if it was this one's."""

    slot: int
    fault: Exception | None


@dataclass(frozen=True, eq=False)
class GlobalBatch:
    """One global batch, as one rank sees it.

    Attributes
    ----------
    lengths
        Lengths (tokens) by source, ``rank-<r>`` for rank r, in the order held; the same on every rank.
    held
        This rank's own sequences, each of shape (length,), int64.
    epoch
        The epoch it belongs to, from 0.
    after
        Where the next batch begins.
    longest
        Where its longest sequence stands and how long it is, for people; the same on every rank.
    """

    lengths: dict[str, list[int]]
    held: list[Tensor]
    epoch: int
    after: DataPosition
    longest: str

    @property
    def num_sequences(self) -> int:
        """Sequences of all ranks."""
        return sum(len(lengths) for lengths in self.lengths.values())

    @property
    def num_tokens(self) -> int:
        """Tokens of all ranks."""
        return sum(sum(lengths) for lengths in self.lengths.values())

    @property
    def ends_epoch(self) -> bool:
        """Whether it is the last of its epoch."""
        return self.after.slot == 0


class _Reader(Protocol):
    """One epoch, read slot by slot and never backwards."""

    def place(self, slot: int) -> str:
        """Return where a slot's sequence is found in the data, for people."""

    @property
    def reading(self) -> int:
        """The slot that is being read, or was last."""

    def read(self, begin: int, end: int, rank: int, world_size: int) -> Iterator[Any]:
        """Read what the rank holds of these slots, one after the other; fewer where the epoch ends."""


class _IndexedReader:
    """Data with ``len(data)`` and ``data[index]``: a rank reads only what it holds, in the epoch's order."""

    def __init__(self, data: Any, position: DataPosition, seed: int, name: str, *, shuffle: bool) -> None:
        num_sequences = len(data)
        self._data, self._name, self._epoch = data, name, position.epoch
        self._order = (
            epoch_order(num_sequences, seed, position.epoch) if shuffle else np.arange(num_sequences, dtype=np.int64)
        )
        self._reading = position.slot

    def place(self, slot: int) -> str:
        # A rank whose data is shorter than that of others knows no index, and must not fail alone for it.
        index = self._order[slot] if slot < len(self._order) else "?"
        return f"{self._name}[{index}] (slot {slot} of epoch {self._epoch})"

    @property
    def reading(self) -> int:
        return self._reading

    def read(self, begin: int, end: int, rank: int, world_size: int) -> Iterator[Any]:
        for slot in own_slots(begin, min(end, len(self._order)), rank, world_size):
            self._reading = slot
            yield self._data[int(self._order[slot])]


class _StreamReader:
    """Data that is only iterable: every rank reads all of it, in its own order, and keeps what it holds."""

    def __init__(self, data: Iterable[Any], epoch: int, name: str) -> None:
        self._items: Iterator[Any] = iter(data)
        self._epoch, self._name = epoch, name
        self._at = 0

    def place(self, slot: int) -> str:
        return f"item {slot} of the {self._name} (slot {slot} of epoch {self._epoch})"

    @property
    def reading(self) -> int:
        return self._at

    def read(self, begin: int, end: int, rank: int, world_size: int) -> Iterator[Any]:
        # Whoever reads may stop behind its own last slot, so that some of the slots before it are left over.
        for slot, item in zip(range(self._at, end), self._items, strict=False):
            self._at = slot + 1
            if slot >= begin and slot % world_size == rank:
                yield item


class BatchLoader:
    """Reads one global batch after another, epoch after epoch; every rank of the group builds one alike.

    Parameters
    ----------
    data
        Flat integer tensors of token ids, one for each sequence: something with ``len(data)`` and ``data[index]``,
        read in an order that seed and epoch decide, or any iterable, read in its own order (the same on every rank).
    limit
        Where a batch ends.
    seed
        Seed of the order.
    shuffle
        Whether indexed data is shuffled.
    position
        Where to begin.
    vocab_size
        Token ids must be below it; None lets all pass.
    name
        What faults call the data.
    group
        The process group; by default all ranks.
    """

    def __init__(  # noqa: PLR0913 - what to read, how much at once, in which order and from where
        self,
        data: Any,
        limit: BatchLimit,
        *,
        seed: int = 0,
        shuffle: bool = True,
        position: DataPosition | None = None,
        vocab_size: int | None = None,
        name: str = "data",
        group: Group = None,
    ) -> None:
        self._data = data
        self._vocab_size = vocab_size
        self._name = name
        self._limit = limit
        self._seed = seed
        self._shuffle = shuffle
        self._group = group
        self._rank = dist.get_rank(group)
        self._world_size = dist.get_world_size(group)
        self._position = DataPosition() if position is None else position
        self._reader: _Reader | None = None
        self._read_to = self._position.slot
        self._lengths: list[int] = []
        self._own: list[Tensor] = []
        self._is_all = False
        self._broken: _Broken | None = None

    @property
    def position(self) -> DataPosition:
        """Where the next batch begins."""
        return self._position

    def next(self) -> GlobalBatch:
        """Read the next batch; a collective that every rank of the group calls.

        A sequence that cannot be read is a fault of the batch that would hold it; those before it are read.

        Raises
        ------
        DataRefused
            On every rank, if there is no sequence where the batch begins.
        worker_agent.executor.faults.IterationFailed
            On every rank, if a rank cannot read its part: a sequence is no flat tensor of integers, is empty, or has a
            token id outside the vocabulary.
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        num = self._read_batch()
        lengths, begin = self._lengths, self._position.slot
        ends_epoch = self._is_all and num == len(lengths)
        num_own = len(own_slots(begin, begin + num, self._rank, self._world_size))
        batch = GlobalBatch(
            lengths={
                f"rank-{rank}": [
                    lengths[slot - begin] for slot in own_slots(begin, begin + num, rank, self._world_size)
                ]
                for rank in range(self._world_size)
            },
            held=self._own[:num_own],
            epoch=self._position.epoch,
            after=self._position.after(num, ends_epoch=ends_epoch),
            longest=self._longest(num),
        )
        self._position = batch.after
        if ends_epoch:
            self._forget()
        else:
            self._lengths, self._own = lengths[num:], self._own[num_own:]
        return batch

    def _longest(self, num_sequences: int) -> str:
        at = max(range(num_sequences), key=self._lengths.__getitem__)
        slot = self._position.slot + at
        place = f"slot {slot} of epoch {self._position.epoch}" if self._reader is None else self._reader.place(slot)
        return f"{place} has {self._lengths[at]} tokens"

    def _forget(self) -> None:
        self._reader, self._is_all = None, False
        self._read_to, self._lengths, self._own = 0, [], []

    def _read_batch(self) -> int:
        """Read until the next batch is known, and whether anything follows it; return its number of sequences."""
        while True:
            num = batch_size(self._lengths, self._limit, is_all=self._is_all)
            if num is not None and (self._is_all or self._broken is not None or num < len(self._lengths)):
                break
            if self._broken is not None:
                settle(self._broken.fault, "reading the next batch", self._group)
            self._read_more()
        if num == 0:
            at = f"slot {self._position.slot} of epoch {self._position.epoch}"
            raise DataRefused(f"the data has no sequence in {at}; give at least one, and resume on the same data")
        return num

    def _read_more(self) -> None:
        """Read as many rows of one slot a rank as are likely to fill the batch, and gather their lengths."""
        num_rows = -(-slots_to_read(self._lengths, self._limit) // self._world_size)
        begin, end = self._read_to, self._read_to + num_rows * self._world_size
        own, fault = self._read_own(begin, end)
        told = [float(sequence.numel()) for sequence in own]
        if fault is not None:
            told.append(float(_FAULT))
        told += [float(_PAST_THE_END)] * (num_rows - len(told))
        by_rank = gather_values(told, self._group, "gathering the lengths of the next batch")
        # Rank by rank the rows hold ascending slots; sorting all by slot restores the epoch's order.
        slots = sorted(
            (slot, int(length))
            for rank, lengths in enumerate(by_rank)
            for slot, length in zip(own_slots(begin, end, rank, self._world_size), lengths, strict=True)
            if length != _PAST_THE_END
        )
        first_bad = next((slot for slot, length in slots if length == _FAULT), None)
        if first_bad is not None:
            # A rank's rows behind its fault are not read, so that nothing behind the first one counts.
            self._broken = _Broken(first_bad, fault)
            slots = [(slot, length) for slot, length in slots if slot < first_bad]
            own = own[: len(own_slots(begin, first_bad, self._rank, self._world_size))]
        else:
            self._is_all = len(slots) < end - begin
        self._lengths += [length for _, length in slots]
        self._own += own
        self._read_to = end

    def _read_own(self, begin: int, end: int) -> tuple[list[Tensor], Exception | None]:
        """Read what this rank holds of these slots, up to the first that it cannot read, and why it cannot."""
        own: list[Tensor] = []
        slots = own_slots(begin, end, self._rank, self._world_size)
        try:
            if self._reader is None:
                self._reader = self._open()
            items = self._items(self._reader, begin, end)
            for slot, item in zip(slots, items, strict=False):
                own.append(as_token_ids(item, self._reader.place(slot), self._vocab_size))
        except Exception as caught:  # noqa: BLE001 - whatever the data raises, the ranks that wait must hear of it
            return own, caught
        return own, None

    def _items(self, reader: _Reader, begin: int, end: int) -> Iterator[Any]:
        try:
            yield from reader.read(begin, end, self._rank, self._world_size)
        except Exception as raised:
            told = f"{type(raised).__name__}: {text_of(raised)}"
            raise DataRefused(f"{reader.place(reader.reading)} cannot be read: {told}") from raised

    def _open(self) -> _Reader:
        epoch = self._position.epoch
        if hasattr(self._data, "__len__") and hasattr(self._data, "__getitem__"):
            if len(self._data) == 0:
                raise DataRefused(f"the {self._name} has no sequence; give at least one")
            return _IndexedReader(self._data, self._position, self._seed, self._name, shuffle=self._shuffle)
        if epoch and isinstance(self._data, Iterator):
            raise DataRefused(
                f"epoch {epoch} begins but the data can be read only once; give something that can be iterated anew "
                "(a list, a Dataset), or end the run with num_epochs=1"
            )
        return _StreamReader(self._data, epoch, self._name)


def as_token_ids(item: Any, where: str, vocab_size: int | None = None) -> Tensor:
    """Return one sequence as the executor takes it.

    Parameters
    ----------
    item
        What the data gave.
    where
        Where the data has it, for faults.
    vocab_size
        Token ids must be below it; None lets all pass.

    Returns
    -------
    Tensor
        Shape (tokens,), int64, on the CPU.

    Raises
    ------
    DataRefused
        If it is no flat, non-empty tensor of integers, or has a token id outside the vocabulary.
    """
    if not isinstance(item, Tensor):
        raise DataRefused(
            f"{where} holds a {type(item).__name__}; give one-dimensional integer tensors of token ids "
            "(of a record, the tensor under its key)"
        )
    if item.dim() != 1 or item.is_floating_point() or item.is_complex() or item.dtype == torch.bool:
        raise DataRefused(
            f"{where} holds a tensor of shape {tuple(item.shape)} and {item.dtype}; give one dimension of integers"
        )
    if item.numel() == 0:
        raise DataRefused(f"{where} holds an empty sequence; leave such out of the data")
    tokens = item.detach().to(device="cpu", dtype=torch.int64)
    if vocab_size is not None:
        _refuse_outside(tokens, where, vocab_size)
    return tokens


def _refuse_outside(tokens: Tensor, where: str, vocab_size: int) -> None:
    lowest, highest = (int(bound) for bound in tokens.aminmax())
    if lowest < 0 or highest >= vocab_size:
        token_id = lowest if lowest < 0 else highest
        at = int((tokens == token_id).nonzero()[0])
        raise DataRefused(
            f"{where} has token id {token_id} as token {at} of {tokens.numel()} but vocab_size is {vocab_size}, so "
            f"that ids are 0 to {vocab_size - 1}; tokenize for this model, or give it a larger vocab_size"
        )
