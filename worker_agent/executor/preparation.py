"""What one rank can do for an iteration alone: its role, its routes, its sequences checked against the plan."""

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from planner_client.contract import Plan
from planner_client.groups import Groups
from worker_agent.executor.exchange import HeldGroups, HeldSequences, SequenceExchange
from worker_agent.executor.layout import RankRole, check_model_fits, rank_roles, reporting_rank, tensor_groups
from worker_agent.executor.parameter_routes import parameter_routes
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.parts import ModelPart
from worker_agent.executor.pipeline import StageWork
from worker_agent.executor.propagate import RankRoutes
from worker_agent.executor.routes import sequence_routes
from worker_agent.executor.schedule import forward_only, one_forward_one_backward, with_messages

_MAX_STRATEGIES = 16
"""Strategies whose routes are kept; working them out takes longer than an iteration of a small model."""


@dataclass(frozen=True, eq=False)
class PreparedIteration:
    """One rank's part of an iteration, checked; nothing of it involved another rank.

    Attributes
    ----------
    plan
        The plan.
    role
        The rank's role.
    part
        What it computes; None where its replica has nothing to do, or it has no replica.
    routes
        The propagation of the plan's strategy.
    exchange
        The exchange of its sequences.
    groups
        Ranks of the process groups of stages that the plan needs.
    """

    plan: Plan
    role: RankRole
    part: ModelPart | None
    routes: RankRoutes
    exchange: SequenceExchange
    groups: tuple[tuple[int, ...], ...]

    @property
    def has_pipeline(self) -> bool:
        """Whether any replica of the plan has stages that send to one another."""
        return any(replica.pp > 1 and replica.micro_batches for replica in self.plan.replicas)

    def work(self, *, trains: bool) -> StageWork | None:
        """Return what the rank computes; None if nothing."""
        role = self.role
        if self.part is None or role.replica is None:
            return None
        replica = self.plan.replicas[role.replica]
        num = len(replica.micro_batches)
        order = one_forward_one_backward(role.pp, role.stage, num) if trains else forward_only(num)
        return StageWork(
            replica=role.replica,
            steps=with_messages(order, role.pp, role.stage),
            packed=self.exchange.packed,
            predicted_ms=tuple(micro_batch.time_ms for micro_batch in replica.micro_batches),
            max_tokens=replica.max_tokens,
            num_targets=self.plan.num_targets,
            reports_losses=role.rank == reporting_rank(replica),
        )


class Preparer:
    """Prepares one rank's iterations; may be called from several threads.

    Parameters
    ----------
    table
        The decoder's parameters.
    rank, world_size
        Of the process group.
    rank_of_source
        The rank that holds each source's sequences.
    layers_per_bucket
        Layers whose parameters are moved together.
    """

    def __init__(
        self,
        table: ParameterTable,
        rank: int,
        world_size: int,
        rank_of_source: Mapping[str, int],
        layers_per_bucket: int,
    ) -> None:
        self._table = table
        self._rank = rank
        self._world_size = world_size
        self._rank_of_source = dict(rank_of_source)
        self._layers_per_bucket = layers_per_bucket
        self._lock = threading.Lock()
        self._strategies: OrderedDict[object, RankRoutes] = OrderedDict()

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources whose sequences this rank holds."""
        return tuple(source for source, rank in self._rank_of_source.items() if rank == self._rank)

    def prepare(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor],
        groups: HeldGroups | Groups | None = None,
    ) -> PreparedIteration:
        """Do all of an iteration that this rank can do alone.

        Parameters
        ----------
        plan
            The plan.
        sequences
            Token ids of the sequences this rank holds, as one list or by source.
        groups
            Atomic groups of them, in the same form; None if there are none.

        Raises
        ------
        LayoutRefused
            If the plan does not run here, or not with this model.
        ValueError
            If the sequences are not what the plan and the model want.
        """
        if not isinstance(plan, Plan):
            raise ValueError(  # noqa: TRY004 - a bad argument like the others, and a caller catches them as one
                f"a {type(plan).__name__} was given in place of a plan; give every rank what share_plan returns"
            )
        roles = rank_roles(plan, self._world_size)
        check_model_fits(plan, self._table.config)
        role = roles[self._rank]
        exchange = SequenceExchange(
            sequence_routes(plan, self._world_size, self._rank_of_source),
            role,
            self._by_source(sequences),
            self._groups_by_source(groups),
            vocab_size=self._table.config.vocab_size,
        )
        works = role.replica is not None and bool(plan.replicas[role.replica].micro_batches)
        return PreparedIteration(
            plan=plan,
            role=role,
            part=ModelPart.of(self._table.config, role) if works else None,
            routes=self._routes(plan, roles),
            exchange=exchange,
            groups=tensor_groups(plan),
        )

    def _routes(self, plan: Plan, roles: Sequence[RankRole]) -> RankRoutes:
        strategy = tuple(
            (replica.tp, replica.pp, tuple(replica.ranks), bool(replica.micro_batches)) for replica in plan.replicas
        )
        with self._lock:
            if strategy not in self._strategies:
                routes = parameter_routes(plan, roles, self._table, self._layers_per_bucket)
                self._strategies[strategy] = RankRoutes(routes, self._rank)
                if len(self._strategies) > _MAX_STRATEGIES:
                    self._strategies.popitem(last=False)
            self._strategies.move_to_end(strategy)
            return self._strategies[strategy]

    def _by_source(self, sequences: HeldSequences | Sequence[Tensor]) -> HeldSequences:
        if isinstance(sequences, Mapping):
            self._check_sources(sequences, "sequences")
            return {source: sequences.get(source, ()) for source in self.sources}
        if not isinstance(sequences, Sequence):
            raise ValueError(  # noqa: TRY004 - as above
                f"rank {self._rank} was given a {type(sequences).__name__} in place of sequences; give a list of "
                "tensors, or such lists by source"
            )
        if len(self.sources) == 1:
            return {self.sources[0]: sequences}
        if not self.sources and not sequences:
            return {}
        raise ValueError(
            f"rank {self._rank} holds {len(self.sources)} sources but was given one list of {len(sequences)} "
            "sequences; give a list for each source, by name"
        )

    def _groups_by_source(self, groups: HeldGroups | Groups | None) -> HeldGroups:
        if isinstance(groups, Mapping):
            self._check_sources(groups, "groups")
            return groups
        if not groups:
            return {}
        if len(self.sources) == 1:
            return {self.sources[0]: groups}
        raise ValueError(
            f"rank {self._rank} holds {len(self.sources)} sources but was given one list of {len(groups)} groups; "
            "give a list for each source, by name"
        )

    def _check_sources(self, named: Mapping[str, object], what: str) -> None:
        strangers = sorted(set(named) - set(self.sources))
        if strangers:
            raise ValueError(
                f"rank {self._rank} was given {what} of source {strangers[0]!r} but holds "
                f"{', '.join(self.sources) or 'no source'}; put the source into rank_of_source"
            )
