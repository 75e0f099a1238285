"""What is to be planned: layouts, replica kinds, strategies and the batch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """Degrees of one replica: tensor, context and pipeline parallel."""

    tp: int
    cp: int
    pp: int

    @property
    def num_ranks(self) -> int:
        """Ranks of one replica."""
        return self.tp * self.cp * self.pp

    def __str__(self) -> str:
        return f"({self.tp},{self.pp})" if self.cp == 1 else f"({self.tp},{self.cp},{self.pp})"


@dataclass(frozen=True, slots=True)
class ReplicaKind:
    """A layout on one device type, with its profiled coefficients and its limit.

    ``a`` (ms per token squared), ``b`` (ms per token) and ``c`` (ms) are per pipeline stage, forward and backward;
    ``max_tokens`` caps one micro-batch of the whole replica.
    """

    layout: Layout
    device: str
    a: float
    b: float
    c: float
    max_tokens: int

    @property
    def num_ranks(self) -> int:
        """Ranks of one replica of this kind."""
        return self.layout.num_ranks

    @property
    def pp(self) -> int:
        """Number of pipeline stages."""
        return self.layout.pp


def _largest_first(group: tuple[ReplicaKind, int]) -> tuple[int, int, int, int, str]:
    layout = group[0].layout
    return (-layout.num_ranks, -layout.tp, -layout.cp, -layout.pp, group[0].device)


@dataclass(frozen=True)
class Strategy:
    """Replica kinds and how many replicas of each, in one canonical order however they were given."""

    groups: tuple[tuple[ReplicaKind, int], ...]

    @classmethod
    def of(cls, groups: Iterable[tuple[ReplicaKind, int]]) -> Self:
        """Merge groups of one kind and order them, replicas of most ranks first."""
        merged: dict[ReplicaKind, int] = {}
        for kind, num_replicas in groups:
            merged[kind] = merged.get(kind, 0) + num_replicas
        return cls(tuple(sorted(merged.items(), key=_largest_first)))

    @property
    def num_ranks(self) -> int:
        """Ranks that the strategy's replicas take together."""
        return sum(kind.num_ranks * num_replicas for kind, num_replicas in self.groups)

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return sum(num_replicas for _, num_replicas in self.groups)

    @cached_property
    def replicas(self) -> tuple[ReplicaKind, ...]:
        """The kind of each replica."""
        return tuple(kind for kind, num_replicas in self.groups for _ in range(num_replicas))

    @property
    def max_tokens(self) -> int:
        """Longest sequence that some replica holds, in tokens."""
        return max(kind.max_tokens for kind, _ in self.groups)

    @property
    def mean_max_tokens(self) -> float:
        """Mean limit of the replicas, in tokens."""
        return sum(kind.max_tokens * num_replicas for kind, num_replicas in self.groups) / self.num_replicas

    def __str__(self) -> str:
        devices = {kind.device for kind, _ in self.groups}
        return ",".join(
            f"{kind.layout}x{num_replicas}" + (f"@{kind.device}" if len(devices) > 1 else "")
            for kind, num_replicas in self.groups
        )


@dataclass(frozen=True, slots=True)
class SourceRow:
    """``count`` sequences of ``length`` tokens held by ``source``."""

    source: str
    length: int
    count: int


@dataclass(frozen=True)
class Batch:
    """A global batch as rows by source, counted at lengths rounded up to ``alignment``.

    Attributes
    ----------
    rows
        Sequences by source and true length, sources in name order, lengths ascending.
    alignment
        Multiple of tokens that each sequence occupies.
    """

    rows: tuple[SourceRow, ...]
    alignment: int = 1

    @cached_property
    def _occupied(self) -> tuple[Ints, Ints, Ints]:
        true = np.fromiter((row.length for row in self.rows), np.int64, len(self.rows))
        counts = np.fromiter((row.count for row in self.rows), np.int64, len(self.rows))
        aligned = -(-true // self.alignment) * self.alignment
        lengths, position = np.unique(aligned, return_inverse=True)
        merged = np.zeros(len(lengths), np.int64)
        np.add.at(merged, position, counts)
        return lengths, merged, position

    @property
    def lengths(self) -> Ints:
        """Distinct occupied lengths, ascending, in tokens. Shape (D,)."""
        return self._occupied[0]

    @property
    def counts(self) -> Ints:
        """Number of sequences of each occupied length. Shape (D,)."""
        return self._occupied[1]

    @property
    def length_of_row(self) -> Ints:
        """Index into `lengths` of each row. Shape (len(rows),)."""
        return self._occupied[2]

    @property
    def num_sequences(self) -> int:
        """Number of sequences."""
        return sum(row.count for row in self.rows)

    @property
    def num_tokens(self) -> int:
        """The sequences' own tokens, padding left out."""
        return sum(row.length * row.count for row in self.rows)

    @cached_property
    def num_occupied_tokens(self) -> int:
        """Tokens that the sequences occupy, padding included."""
        return sum(int(length) * int(count) for length, count in zip(self.lengths, self.counts, strict=True))

    @property
    def longest(self) -> int:
        """Longest occupied length, 0 for an empty batch."""
        return int(self.lengths[-1]) if len(self.lengths) else 0

    def split(self, max_true: int, max_occupied: int) -> tuple["Batch", tuple[SourceRow, ...]]:
        """Separate the sequences that fit both limits (tokens) from the over-long ones."""

        def fits(row: SourceRow) -> bool:
            occupied = -(-row.length // self.alignment) * self.alignment
            return row.length <= max_true and occupied <= max_occupied

        kept = tuple(row for row in self.rows if fits(row))
        return Batch(kept, self.alignment), tuple(row for row in self.rows if not fits(row))


Method = Literal["hydraulis", "plain", "off", "karmarkar-karp-tokens", "karmarkar-karp-work", "next-fit", "published"]


@dataclass(frozen=True)
class Options:
    """What constrains the search (see ``planner_client.contract.PlanOptions``).

    Options that only narrow the replica kinds (limits, allowed layouts) are applied where the kinds are made.
    """

    max_length: int | None = None
    over_long: Literal["reject", "drop"] = "reject"
    target_gap: float = 0.002
    seed: int = 0
    method: Method = "hydraulis"
    is_padded: bool = False
    equal_counts: bool = False
    count_multiple: int = 1
    at_least_stages: bool = False
    idle_allowed: bool = True
    homogeneous: bool = False
    max_process_groups: int | None = None
    lowered_max_tokens: int | None = None
    """What the kinds' limits were lowered to, which faults name as the cause."""

    @property
    def constrains_counts(self) -> bool:
        """Whether numbers of micro-batches are not free."""
        return self.equal_counts or self.count_multiple > 1 or self.at_least_stages


@dataclass(frozen=True, slots=True)
class GroupRow:
    """``count`` times sequences of ``source`` of these true lengths (ascending) that must share a micro-batch."""

    source: str
    lengths: tuple[int, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one type.

    ``nodes`` are its ranks node by node; without, ranks are numbered pool by pool, and node by node inside a pool.
    """

    device: str
    num_gpus: int
    gpus_per_node: int
    nodes: tuple[tuple[int, ...], ...] = ()

    @property
    def has_whole_nodes(self) -> bool:
        """Whether every node has all its GPUs in this pool."""
        if self.nodes:
            return all(len(node) == self.gpus_per_node for node in self.nodes)
        return self.num_gpus % self.gpus_per_node == 0


@dataclass(frozen=True)
class Problem:
    """One iteration to plan.

    Attributes
    ----------
    batch
        All sequences, over-long ones included.
    kinds
        Every replica kind that has a positive limit, for generated strategies and the bound over all of them.
    candidates
        Strategies to choose from; empty means that they are generated.
    pools
        The cluster's GPUs by type; devices are distinct.
    arrival
        (source, true length) in arrival order, for methods that need it.
    groups
        Sequences of the batch that must share a micro-batch.
    """

    batch: Batch
    kinds: tuple[ReplicaKind, ...]
    candidates: tuple[Strategy, ...]
    pools: tuple[Pool, ...]
    options: Options
    arrival: Sequence[tuple[str, int]] = ()
    groups: tuple[GroupRow, ...] = ()

    @property
    def num_gpus(self) -> int:
        """GPUs of all types together."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def cluster(self) -> str:
        """The cluster in words, with its nodes: tensor-parallel groups have to fit into them."""
        return ", ".join(
            f"{pool.num_gpus} GPUs of {pool.device} in nodes of {pool.gpus_per_node}" for pool in self.pools
        )
