"""A file of lengths as a data set: how often each length occurs."""

from dataclasses import dataclass

import numpy as np

from planner_service.commands.lengths_file import LengthsFileError, read_lengths
from planner_service.core.problem import Floats, Ints


@dataclass(frozen=True)
class DataSet:
    """Distinct lengths in tokens, ascending, with their counts, and how many over-long sequences were left out."""

    lengths: Ints
    counts: Floats
    num_left_out: int

    @property
    def mean_tokens(self) -> float:
        """Mean length in tokens."""
        return float(self.lengths @ self.counts / self.counts.sum())


def lowered_by(option: int | None, limit: int, alignment: int) -> str:
    """Say that ``--max-tokens-per-micro-batch`` is the cause of a limit (both in tokens); nothing if it is not."""
    is_cause = option is not None and limit == option // alignment * alignment
    return f" (the limit of --max-tokens-per-micro-batch {option})" if is_cause else ""


def read_data_set(
    path: str, max_length: int | None, max_tokens: int, alignment: int, lowered_to: int | None = None
) -> DataSet:
    """Read a data set.

    Parameters
    ----------
    path
        What `read_lengths` takes.
    max_length
        Longest sequence to train on, in tokens; longer ones are left out.
    max_tokens
        Largest micro-batch of any layout, in tokens.
    alignment
        Multiple of tokens that each sequence occupies.
    lowered_to
        What ``--max-tokens-per-micro-batch`` lowers limits to, in tokens.

    Raises
    ------
    LengthsFileError
        If the file cannot be read, has no sequence within ``max_length``, or one that no layout holds.
    """
    held = read_lengths(path)
    if held.histogram is not None:
        lengths = np.array(held.histogram.lengths, dtype=np.int64)
        counts = np.array(held.histogram.counts, dtype=float)
    else:
        lengths, found = np.unique(np.array(held.stream or [], dtype=np.int64), return_counts=True)
        counts = found.astype(float)
    within = lengths <= max_length if max_length is not None else np.full(len(lengths), fill_value=True)
    if not within.any():
        limit = "" if max_length is None else f" of at most {max_length} tokens"
        raise LengthsFileError(f"{path} holds no sequence{limit}, so no batch can be drawn")
    kept, kept_counts = lengths[within], counts[within]
    runnable = max_tokens // alignment * alignment
    if kept[-1] > runnable:
        num_over = int(kept_counts[kept > runnable].sum())
        raise LengthsFileError(
            f"{num_over} sequence(s) are too long: the longest has {int(kept[-1])} tokens but no layout of the cluster "
            f"holds more than {runnable}{lowered_by(lowered_to, runnable, alignment)}; leave them out with "
            f"--max-length {runnable}"
        )
    return DataSet(kept, kept_counts, int(counts[~within].sum()))
