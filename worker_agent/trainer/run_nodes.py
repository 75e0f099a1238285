"""Which rank of a run is on which node, and what nodes hold for it: pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner_client.contract import Plan, SourceBatch
from worker_agent.daemon.rank_plan import plan_of_ranks


@dataclass(frozen=True)
class RunNodes:
    """The nodes of a run.

    Attributes
    ----------
    node_of_rank
        The node of each rank, in rank order.
    """

    node_of_rank: tuple[str, ...]

    @cached_property
    def names(self) -> list[str]:
        """All nodes, ascending."""
        return sorted(set(self.node_of_rank))

    def ranks_beside(self, rank: int) -> list[int]:
        """Return the ranks of a rank's node, itself included, ascending."""
        return [other for other, node in enumerate(self.node_of_rank) if node == self.node_of_rank[rank]]

    def held(self, lengths: Mapping[str, Sequence[int]]) -> dict[str, dict[str, Sequence[int]]]:
        """Sort the lengths (tokens) that ranks hold to their nodes, in the order that nodes hold them."""
        by_node: dict[str, dict[str, Sequence[int]]] = {name: {} for name in self.names}
        for rank, node in enumerate(self.node_of_rank):
            source = source_of(rank)
            by_node[node][source] = lengths.get(source, ())
        return by_node

    def batches(self, lengths: Mapping[str, Sequence[int]]) -> dict[str, SourceBatch]:
        """Return what each node holds."""
        return {
            node: SourceBatch(lengths=[length for own in ranks.values() for length in own])
            for node, ranks in self.held(lengths).items()
        }

    def by_rank(self, plan: Plan, lengths: Mapping[str, Sequence[int]]) -> Plan:
        """Return a plan over these nodes as one over ranks.

        Raises
        ------
        planner_client.sequences.PlanMismatch
            If the ranks do not hold what the plan names.
        """
        return plan_of_ranks(plan, self.held(lengths))


def source_of(rank: int) -> str:
    """Return the name of what a rank holds."""
    return f"rank-{rank}"
