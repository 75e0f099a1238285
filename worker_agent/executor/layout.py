"""Which part each rank plays in a plan: pure, no torch."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner_client.contract import Plan, Replica
from worker_agent.executor.faults import LayoutRefused
from worker_agent.executor.shape import DecoderConfig


@dataclass(frozen=True)
class RankRole:
    """What one rank does in one iteration.

    Attributes
    ----------
    rank
        The rank, in the group that runs the plan.
    replica
        Index of its replica in the plan; None is an idle rank, which takes part in the collectives all the same.
    stage, tp_rank
        Its coordinates in the replica, from 0; 0 for an idle rank.
    pp, tp
        Stages of its replica, and ranks that share each stage; 1 for an idle rank.
    previous_rank, next_rank
        The ranks that hold the same part of the stages before and after; None at the replica's ends.
    tensor_ranks
        The ranks that share its stage, itself included, by ``tp_rank``.
    """

    rank: int
    replica: int | None
    stage: int = 0
    tp_rank: int = 0
    pp: int = 1
    tp: int = 1
    previous_rank: int | None = None
    next_rank: int | None = None
    tensor_ranks: tuple[int, ...] = ()

    @property
    def is_idle(self) -> bool:
        """Whether the rank has no replica."""
        return self.replica is None


def rank_roles(plan: Plan, world_size: int) -> tuple[RankRole, ...]:
    """Give every rank of a group its role.

    A replica lists its ranks stage by stage, inside a stage by tensor-parallel rank (see
    ``planner_client.contract.Replica``).

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
        _check_degrees(number, replica)
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
            roles[rank] = _role(number, replica, position)
    return tuple(roles.get(rank, RankRole(rank, None)) for rank in range(world_size))


def check_model_fits(plan: Plan, config: DecoderConfig) -> None:
    """Refuse a plan with a layout that this decoder cannot be cut into.

    Raises
    ------
    LayoutRefused
        Naming the replica, the degree, the limit and what to change.
    """
    for number, replica in enumerate(plan.replicas):
        where = f"replica {number} has layout (tp={replica.tp}, cp={replica.cp}, pp={replica.pp})"
        if config.num_heads % replica.tp:
            raise LayoutRefused(
                f"{where} but the model's {config.num_heads} attention heads do not divide by tp={replica.tp}; "
                f"leave layouts out whose tp does not divide {config.num_heads}"
            )
        for what, size in (("vocabulary entries", config.vocab_size), ("feed-forward columns", config.ffn)):
            if size < replica.tp:
                raise LayoutRefused(
                    f"{where} but the model's {size} {what} cannot be shared by tp={replica.tp} ranks; "
                    f"leave layouts with tp over {size} out"
                )
        if replica.pp > config.num_layers:
            raise LayoutRefused(
                f"{where} but the model's {config.num_layers} layers cannot fill pp={replica.pp} stages; "
                f"leave layouts with pp over {config.num_layers} out"
            )


def tensor_groups(plan: Plan) -> tuple[tuple[int, ...], ...]:
    """Return the ranks of every tensor-parallel group that a plan needs, in the order all ranks make them.

    By replica, then by stage; a replica without micro-batches needs none.
    """
    return tuple(
        tuple(replica.ranks[stage * replica.tp : (stage + 1) * replica.tp])
        for replica in plan.replicas
        if replica.tp > 1 and replica.micro_batches
        for stage in range(replica.pp)
    )


def revise_groups(
    held: Sequence[tuple[int, ...]], needed: Sequence[tuple[int, ...]], limit: int
) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Decide which process groups to give up and which to make.

    Parameters
    ----------
    held
        Those that there are, the least recently used first.
    needed
        Those that an iteration needs.
    limit
        Most that there may be.

    Returns
    -------
    tuple
        Those to give up, the least recently used first, and those to make, in the order needed. Given the same
        history, every rank decides the same.

    Raises
    ------
    LayoutRefused
        If the iteration alone needs more than the limit.
    """
    wanted = tuple(dict.fromkeys(needed))
    if len(wanted) > limit:
        raise LayoutRefused(
            f"the plan needs {len(wanted)} process groups at once but the limit is {limit}; raise max_process_groups, "
            "or ask for a strategy with fewer tensor-parallel replicas"
        )
    made = tuple(ranks for ranks in wanted if ranks not in held)
    num_surplus = max(0, len(held) + len(made) - limit)
    return tuple(ranks for ranks in held if ranks not in wanted)[:num_surplus], made


def stage_layers(num_layers: int, num_stages: int, stage: int) -> range:
    """Return the layers of one pipeline stage.

    As even as possible; the first stages get one layer more where the layers do not divide, because the last stage
    has the output head to compute besides.
    """
    each, extra = divmod(num_layers, num_stages)
    begin = stage * each + min(stage, extra)
    return range(begin, begin + each + (stage < extra))


def token_ranks(replica: Replica) -> tuple[int, ...]:
    """Return the ranks of a replica that need its token ids: those of the first stage, and of the last for targets."""
    first, last = replica.ranks[: replica.tp], replica.ranks[-replica.tp :]
    return tuple(first) if replica.pp == 1 else (*first, *last)


def reporting_rank(replica: Replica) -> int:
    """Return the rank of a replica that tells its losses: the first of the last stage, all of which know them."""
    return replica.ranks[-replica.tp]


def _role(number: int, replica: Replica, position: int) -> RankRole:
    stage, tp_rank = divmod(position, replica.tp)
    last = replica.pp - 1
    return RankRole(
        rank=replica.ranks[position],
        replica=number,
        stage=stage,
        tp_rank=tp_rank,
        pp=replica.pp,
        tp=replica.tp,
        previous_rank=replica.ranks[position - replica.tp] if stage else None,
        next_rank=replica.ranks[position + replica.tp] if stage < last else None,
        tensor_ranks=tuple(replica.ranks[stage * replica.tp : (stage + 1) * replica.tp]),
    )


def _check_degrees(number: int, replica: Replica) -> None:
    if replica.cp != 1:
        raise LayoutRefused(
            f"replica {number} has layout (tp={replica.tp}, cp={replica.cp}, pp={replica.pp}) but this executor runs "
            f"cp=1 only; leave layouts with cp over 1 out, for example by allowing tp={replica.tp * replica.cp} instead"
        )
    needed = replica.tp * replica.pp
    if len(replica.ranks) != needed:
        raise LayoutRefused(
            f"replica {number} lists {len(replica.ranks)} ranks but its layout needs {needed}; ask for a new plan"
        )
