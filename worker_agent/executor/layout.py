"""Which part each rank plays in a plan: pure, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner_client.contract import Plan, Replica
from worker_agent.executor.faults import LayoutRefused

RUNNABLE = "tp=1, cp=1, pp=1"


@dataclass(frozen=True)
class RankRole:
    """What one rank does in one iteration.

    Attributes
    ----------
    rank
        The rank, in the group that runs the plan.
    replica
        Index of its replica in the plan; None is an idle rank, which takes part in the collectives all the same.
    stage, cp_rank, tp_rank
        Its coordinates in the replica, from 0; all 0 for an idle rank.
    """

    rank: int
    replica: int | None
    stage: int = 0
    cp_rank: int = 0
    tp_rank: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether the rank has no replica."""
        return self.replica is None


def rank_roles(plan: Plan, world_size: int) -> tuple[RankRole, ...]:
    """Give every rank of a group its role.

    A replica lists its ranks stage by stage, inside a stage by context-parallel rank, inside those by
    tensor-parallel rank (see ``planner_client.contract.Replica``).

    Parameters
    ----------
    plan
        The plan.
    world_size
        Number of ranks in the group that runs it.

    Returns
    -------
    tuple of RankRole
        One for each rank, ascending.

    Raises
    ------
    LayoutRefused
        If a rank is not in the group, has two replicas, or a replica's layout is not one that runs.
    """
    roles: dict[int, RankRole] = {}
    for number, replica in enumerate(plan.replicas):
        _check_layout(number, replica)
        for position, rank in enumerate(replica.ranks):
            if rank >= world_size:
                raise LayoutRefused(
                    f"replica {number} of the plan runs on rank {rank} but the group has ranks 0 to {world_size - 1}; "
                    f"ask for a plan with num_gpus={world_size}, or start more ranks"
                )
            if rank in roles:
                raise LayoutRefused(
                    f"rank {rank} is placed twice, in replicas {roles[rank].replica} and {number}; "
                    "a rank runs one replica: ask for a new plan"
                )
            stage, within_stage = divmod(position, replica.tp * replica.cp)
            cp_rank, tp_rank = divmod(within_stage, replica.tp)
            roles[rank] = RankRole(rank, number, stage, cp_rank, tp_rank)
    return tuple(roles.get(rank, RankRole(rank, None)) for rank in range(world_size))


def replica_ranks(plan: Plan) -> Sequence[int]:
    """Return the one rank of each replica."""
    return [replica.ranks[0] for replica in plan.replicas]


def _check_layout(number: int, replica: Replica) -> None:
    degrees = (replica.tp, replica.cp, replica.pp)
    if degrees != (1, 1, 1):
        raise LayoutRefused(
            f"replica {number} has layout (tp={replica.tp}, cp={replica.cp}, pp={replica.pp}) but this executor runs "
            f"{RUNNABLE} only; ask for a strategy of such replicas, for example (1,1)x{len(replica.ranks)}"
        )
    needed = replica.tp * replica.cp * replica.pp
    if len(replica.ranks) != needed:
        raise LayoutRefused(
            f"replica {number} lists {len(replica.ranks)} ranks but its layout needs {needed}; ask for a new plan"
        )
