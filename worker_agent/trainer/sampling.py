"""Which sequences make a global batch: pure, the same on every rank and for any number of ranks.

The sequences of one epoch stand in slots, in an order that seed and epoch decide. A global batch is the next run of
slots that keeps within the limits, and slot i is held by rank i mod the number of ranks; so the batches of a run do
not change when it is resumed on another number of ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker_agent.trainer.settings import BatchLimit

MAX_SLOTS_AT_ONCE = 2**14
"""Most slots that are read at once, whatever a batch may hold."""

_FIRST_SLOTS = 64


@dataclass(frozen=True)
class DataPosition:
    """How far a run has read.

    Attributes
    ----------
    epoch
        Times the data has been read wholly.
    slot
        Slots of this epoch that are used up.
    """

    epoch: int = 0
    slot: int = 0

    def after(self, num_sequences: int, *, ends_epoch: bool) -> "DataPosition":
        """Return the position behind a batch."""
        return DataPosition(self.epoch + 1) if ends_epoch else DataPosition(self.epoch, self.slot + num_sequences)


def epoch_order(num_sequences: int, seed: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return the order in which an epoch reads its sequences: the index in each slot, shape (num_sequences,).

    Sorted by raw output of PCG64, which NumPy keeps the same in all its versions (unlike its shuffles), so that a run
    resumed years later reads the same data.
    """
    drawn = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(num_sequences)
    return np.argsort(drawn, kind="stable").astype(np.int64)


def batch_size(lengths: Sequence[int], limit: BatchLimit, *, is_all: bool) -> int | None:
    """Decide how many sequences the next global batch takes.

    Parameters
    ----------
    lengths
        Lengths (tokens) of the sequences in the next slots, as far as they are known.
    limit
        Most tokens and most sequences of a batch.
    is_all
        Whether the epoch has no more slots.

    Returns
    -------
    int or None
        Number of sequences, at least 1 unless there are none; None if more lengths are needed to tell.
    """
    num_tokens = 0
    for number, length in enumerate(lengths):
        num_tokens += length
        if limit.sequences is not None and number == limit.sequences:
            return number
        if limit.tokens is not None and num_tokens > limit.tokens:
            return max(1, number)
    is_full = len(lengths) == limit.sequences or num_tokens == limit.tokens
    return len(lengths) if is_all or is_full else None


def slots_to_read(lengths: Sequence[int], limit: BatchLimit) -> int:
    """Estimate how many more slots a batch takes that has these lengths so far; from 1 to `MAX_SLOTS_AT_ONCE`.

    The estimate decides only how much is read at once, never what a batch holds. It at most doubles what is known, so
    that a few short sequences in the beginning do not have a large budget filled with long ones.
    """
    most = min(MAX_SLOTS_AT_ONCE, max(_FIRST_SLOTS, len(lengths)))
    if limit.sequences is not None:
        most = min(most, limit.sequences - len(lengths))
    if limit.tokens is not None:
        mean = sum(lengths) / len(lengths) if lengths else limit.tokens
        most = min(most, int((limit.tokens - sum(lengths)) / max(1.0, mean)) + 1)
    return max(1, most)


def own_slots(begin: int, end: int, rank: int, world_size: int) -> range:
    """Return the slots from ``begin`` to before ``end`` that a rank holds."""
    return range(begin + (rank - begin) % world_size, end, world_size)
