"""What the ranks of one node hold of an iteration, as the one batch of their node and back again: pure.

The node's sequences are those of its ranks, one rank after the other, the lowest rank first and each in the order its
rank holds them. The plan takes a source's sequences of one length in the order held (`planner_client.run_order`), so
that this order alone decides which of them are whose, on every machine and after every restart.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from planner_client.contract import Histogram, Plan, SourceBatch
from planner_client.groups import atomic_groups_of
from planner_client.packing import Int64Array
from planner_client.sequences import local_assignment
from worker_agent.daemon.wire import RankBatch, RankPart, Share


@dataclass(frozen=True)
class NodeBatch:
    """What ranks have handed in of one iteration.

    Attributes
    ----------
    ranks
        All ranks that are to hand in, ascending.
    held
        What those that did hold, by rank.
    """

    ranks: tuple[int, ...]
    held: Mapping[int, RankBatch] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def begun_by(cls, rank: int, batch: RankBatch) -> "NodeBatch":
        """Return the node's batch as the first rank begins it."""
        return cls(tuple(sorted(batch.ranks))).with_rank(rank, batch)

    def with_rank(self, rank: int, batch: RankBatch) -> "NodeBatch":
        """Return it with what one more rank holds.

        Raises
        ------
        ValueError
            If the rank is none of those that hand in.
        """
        if rank not in self.ranks:
            raise ValueError(f"rank {rank} is not among the ranks {list(self.ranks)} that hand in; name it in `ranks`")
        return NodeBatch(self.ranks, MappingProxyType({**self.held, rank: batch}))

    def is_same(self, rank: int, batch: RankBatch) -> bool:
        """Whether a rank handed in this very batch before."""
        known = self.held.get(rank)
        return (
            known is not None
            and tuple(sorted(batch.ranks)) == self.ranks
            and (known.lengths, known.groups) == (batch.lengths, batch.groups)
        )

    @property
    def missing(self) -> list[int]:
        """Ranks that have not handed in."""
        return [rank for rank in self.ranks if rank not in self.held]

    @cached_property
    def _order(self) -> list[int]:
        return sorted(self.held)

    @cached_property
    def lengths(self) -> Int64Array:
        """Lengths (tokens) of the node's sequences in the node's order, shape (n,)."""
        return np.array([length for rank in self._order for length in self.held[rank].lengths], dtype=np.int64)

    @cached_property
    def bounds(self) -> Int64Array:
        """Where in the node's order each rank's sequences begin, and the end of the last; shape (ranks + 1,)."""
        return np.array([0, *accumulate(len(self.held[rank].lengths) for rank in self._order)], dtype=np.int64)

    @cached_property
    def groups(self) -> list[list[int]]:
        """Atomic groups as indices in the node's order."""
        return [
            [int(begin) + index for index in group]
            for rank, begin in zip(self._order, self.bounds[:-1], strict=True)
            for group in self.held[rank].groups
        ]

    def report(self, *, in_order: bool = False) -> SourceBatch:
        """Return what the planner is told: a histogram, or all lengths where the job needs their order."""
        groups = atomic_groups_of(self.lengths, self.groups)
        if in_order:
            return SourceBatch(lengths=self.lengths.tolist(), atomic_groups=groups)
        return SourceBatch(histogram=Histogram.of(self.lengths.tolist()), atomic_groups=groups)

    def parts(self, plan: Plan, node: str) -> dict[int, RankPart]:
        """Return where each rank's sequences go.

        Parameters
        ----------
        plan
            The plan.
        node
            The source that this batch was reported as.

        Raises
        ------
        planner_client.errors.HydraulisError
            If the plan was made for another batch, or contradicts itself.
        """
        assignment = local_assignment(plan, node, self.lengths, self.groups)
        shares: dict[int, list[Share]] = {rank: [] for rank in self._order}
        for replica, micro_batches in enumerate(assignment.replicas):
            for number, indices in enumerate(micro_batches):
                for rank, own in self._by_rank(indices).items():
                    shares[rank].append(Share(replica=replica, micro_batch=number, indices=own))
        dropped = self._by_rank(assignment.dropped)
        return {
            rank: RankPart(node=node, rank=rank, digest=plan.digest, shares=shares[rank], dropped=dropped.get(rank, []))
            for rank in self._order
        }

    def _by_rank(self, indices: Int64Array) -> dict[int, list[int]]:
        """Sort indices in the node's order to the ranks that hold them, as indices of these; their order stays."""
        positions = np.searchsorted(self.bounds, indices, side="right") - 1
        own: dict[int, list[int]] = {}
        for position in sorted(set(positions.tolist())):
            rows = positions == position
            own[self._order[position]] = (indices[rows] - self.bounds[position]).tolist()
        return own
