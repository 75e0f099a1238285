"""Histograms: how many sequences of each length one source holds."""

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import Field, model_validator

from planner_client.contract.scalars import MAX_DISTINCT_LENGTHS, Count, LengthTokens, Sent


class Histogram(Sent):
    """How many sequences of each length one source holds.

    Attributes
    ----------
    lengths
        Distinct lengths, ascending (tokens).
    counts
        Number of sequences of each length.
    """

    lengths: Annotated[list[LengthTokens], Field(max_length=MAX_DISTINCT_LENGTHS, fail_fast=True)]
    counts: Annotated[list[Count], Field(max_length=MAX_DISTINCT_LENGTHS, fail_fast=True)]

    @model_validator(mode="after")
    def _ascending_and_paired(self) -> Self:
        if len(self.lengths) != len(self.counts):
            raise ValueError(
                f"{len(self.lengths)} lengths but {len(self.counts)} counts; give one count for each length"
            )
        for before, after in zip(self.lengths, self.lengths[1:], strict=False):
            if after <= before:
                raise ValueError(
                    f"length {after} follows {before}; lengths must be distinct and ascending: merge equal ones, sort"
                )
        return self

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Self:
        """Count the lengths (tokens) of a list of sequences."""
        counts: dict[int, int] = {}
        for length in lengths:
            counts[int(length)] = counts.get(int(length), 0) + 1
        ascending = sorted(counts)
        return cls(lengths=ascending, counts=[counts[length] for length in ascending])

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return sum(self.counts)

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all sequences."""
        return sum(length * count for length, count in zip(self.lengths, self.counts, strict=True))
