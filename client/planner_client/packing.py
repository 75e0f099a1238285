"""The geometry of one packed micro-batch: where each sequence begins and ends, as varlen attention kernels want it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]
Lengths = Sequence[int] | npt.NDArray[np.integer]

MAX_PACKED_TOKENS = 2**31 - 1
"""Most tokens of one micro-batch, padding included: ``cu_seqlens`` are int32 in every varlen attention kernel."""


def as_lengths(lengths: Sequence[int] | npt.NDArray[np.integer]) -> Int64Array:
    """Check lengths (tokens) and return them as an array.

    Parameters
    ----------
    lengths
        Integers of at least 1, shape (n,); n may be 0.

    Returns
    -------
    ndarray
        Shape (n,), int64.

    Raises
    ------
    ValueError
        If the lengths are not a flat list of integers or one of them is below 1.
    """
    given = np.asarray(lengths)
    if given.size == 0:
        return np.zeros(0, dtype=np.int64)
    if given.ndim != 1:
        raise ValueError(f"lengths have {given.ndim} dimensions; give one flat list, one length for each sequence")
    if given.dtype.kind not in "iu":
        raise ValueError(f"lengths are of type {given.dtype}; give whole numbers of tokens")
    shortest = int(np.argmin(given))
    if given[shortest] < 1:
        raise ValueError(
            f"sequence {shortest} has length {int(given[shortest])}; a sequence holds at least 1 token: leave it out"
        )
    return given.astype(np.int64)


@dataclass(frozen=True, eq=False)
class PackedMicroBatch:
    """Sequences packed back to back, in the order given.

    *Logical* counts are the sequences' own tokens. *Physical* ones round each sequence up to a multiple of the
    alignment, its padding following its tokens; with alignment 1 the two are the same.

    Attributes
    ----------
    lengths
        Tokens of each sequence, shape (n,), int64; at least one sequence.
    alignment
        Each sequence occupies a multiple of this many tokens.

    Raises
    ------
    ValueError
        If there is no sequence, a length or the alignment is below 1, or the tokens exceed ``MAX_PACKED_TOKENS``.
    """

    lengths: Int64Array
    alignment: int = 1

    def __post_init__(self) -> None:
        lengths = as_lengths(self.lengths)
        if lengths.size == 0:
            raise ValueError("a micro-batch holds at least one sequence; an idle replica has no micro-batch instead")
        if self.alignment < 1:
            raise ValueError(f"alignment is {self.alignment}; give 1 (none) or more tokens")
        object.__setattr__(self, "lengths", _frozen(lengths))
        if self.num_physical_tokens > MAX_PACKED_TOKENS:
            raise ValueError(
                f"a micro-batch of {self.num_physical_tokens} tokens exceeds {MAX_PACKED_TOKENS}, the most that int32 "
                "cu_seqlens can index; split it"
            )

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return int(self.lengths.size)

    @property
    def num_tokens(self) -> int:
        """Tokens of all sequences, without padding."""
        return int(self.lengths.sum())

    @property
    def num_physical_tokens(self) -> int:
        """Tokens of all sequences, with padding."""
        return int(self.physical_lengths.sum())

    @property
    def num_padding_tokens(self) -> int:
        """Tokens that the alignment adds."""
        return self.num_physical_tokens - self.num_tokens

    @property
    def num_targets(self) -> int:
        """Tokens that have a next token to predict: all but the last of each sequence."""
        return self.num_tokens - self.num_sequences

    @cached_property
    def physical_lengths(self) -> Int64Array:
        """Tokens that each sequence occupies, shape (n,), int64."""
        return _frozen(-(-self.lengths // self.alignment) * self.alignment)

    @cached_property
    def cu_seqlens(self) -> Int32Array:
        """Bounds of the sequences' own tokens, packed without padding; shape (n + 1,), from 0 to ``num_tokens``."""
        return _bounds(self.lengths)

    @cached_property
    def physical_cu_seqlens(self) -> Int32Array:
        """Bounds of the sequences with their padding; shape (n + 1,), from 0 to ``num_physical_tokens``."""
        return _bounds(self.physical_lengths)

    @property
    def max_seqlen(self) -> int:
        """Longest sequence (tokens), without padding."""
        return int(self.lengths.max())

    @property
    def physical_max_seqlen(self) -> int:
        """Longest sequence (tokens), with padding."""
        return int(self.physical_lengths.max())

    @cached_property
    def position_ids(self) -> Int64Array:
        """Position of each token in its own sequence, restarting at 0; shape (num_tokens,)."""
        return _frozen(_count_up(self.lengths))

    @cached_property
    def physical_position_ids(self) -> Int64Array:
        """Position of each token in its own sequence, padding counted on; shape (num_physical_tokens,)."""
        return _frozen(_count_up(self.physical_lengths))

    @cached_property
    def physical_slots(self) -> Int64Array:
        """Where each logical token lies among the physical ones; shape (num_tokens,), strictly increasing."""
        return _frozen(np.repeat(self.physical_cu_seqlens[:-1].astype(np.int64), self.lengths) + self.position_ids)


def _bounds(lengths: Int64Array) -> Int32Array:
    bounds = np.zeros(lengths.size + 1, dtype=np.int32)
    np.cumsum(lengths, out=bounds[1:])
    bounds.flags.writeable = False
    return bounds


def _count_up(lengths: Int64Array) -> Int64Array:
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]), dtype=np.int64) - np.repeat(ends - lengths, lengths)


def _frozen(values: Int64Array) -> Int64Array:
    values.flags.writeable = False
    return values
