"""A plan made without the planner, from what the last good plan shows: pure, greedy, deterministic.

The strategy, the ranks and the limits are those of the plan it starts from. Sequences go, longest first, to the replica
that would end first, and are packed within its limit. What such a plan predicts rests on the rates that can be read off
the plan it starts from (`planner_client.rates`); nothing is proven of it, and it says so.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from planner_client.contract import Plan, PlanRequest, ReplicaGroup, format_strategy, parse_strategy
from planner_client.errors import BadAnswer, FallbackImpossible
from planner_client.fallback_assign import admitted_items, assign
from planner_client.fallback_packing import Bin, Item, Stages, pack, split_to
from planner_client.fallback_plan import PackedReplica, plan_of
from planner_client.plan_check import check_answers
from planner_client.rates import Rates, kind_of, rates_of

MAX_SEQUENCES = 1_000_000
"""Largest batch that a plan is made for without the planner: each sequence is looked at by itself."""


@dataclass(frozen=True)
class KnownReplica:
    """A replica that plans without the planner may use.

    Attributes
    ----------
    tp, cp, pp, device, ranks, max_tokens
        As in a plan.
    rates
        Cost of its micro-batches; None if nothing is known.
    """

    tp: int
    cp: int
    pp: int
    device: str
    ranks: tuple[int, ...]
    max_tokens: int
    rates: Rates | None = None


@dataclass(frozen=True)
class FallbackBasis:
    """What plans without the planner start from.

    Attributes
    ----------
    replicas
        The replicas of the strategy.
    strategy
        As it is written.
    profile
        Names of the profiles of the plan it is from, joined by ``+``; None if it is from no plan.
    num_gpus
        GPUs of the cluster; None if it is from no plan.
    sync_ms
        As in a plan.
    origin
        What it is, for messages.
    """

    replicas: tuple[KnownReplica, ...]
    strategy: str
    profile: str | None = None
    num_gpus: int | None = None
    sync_ms: float = 0.0
    origin: str = "the strategy given for the start"

    @classmethod
    def of_plan(cls, plan: Plan, origin: str = "the last good plan") -> "FallbackBasis":
        """Return what a plan shows."""
        rates = rates_of(plan)
        replicas = tuple(
            KnownReplica(
                tp=replica.tp,
                cp=replica.cp,
                pp=replica.pp,
                device=replica.device,
                ranks=tuple(replica.ranks),
                max_tokens=replica.max_tokens,
                rates=rates.get(kind_of(replica)),
            )
            for replica in plan.replicas
        )
        return cls(replicas, plan.strategy, plan.profile, plan.num_gpus, plan.sync_ms, origin)

    @classmethod
    def of_strategy(
        cls,
        strategy: str | Sequence[ReplicaGroup],
        *,
        max_tokens: int | Sequence[int],
        ranks: Sequence[Sequence[int]] | None = None,
    ) -> "FallbackBasis":
        """Start from a strategy alone; of such plans no times are known, and they predict 0 ms.

        Parameters
        ----------
        strategy
            Groups of replicas, or how they are written, such as ``(16,1)x1,(8,1)x6``.
        max_tokens
            Most tokens of one micro-batch of a replica, padding included: one number, or one a group.
        ranks
            Ranks of each replica in the strategy's order; counted up from 0 if not given.

        Raises
        ------
        ValueError
            If the numbers do not fit the strategy.
        """
        groups = parse_strategy(strategy) if isinstance(strategy, str) else list(strategy)
        limits = [max_tokens] * len(groups) if isinstance(max_tokens, int) else list(max_tokens)
        if len(limits) != len(groups) or any(limit < 1 for limit in limits):
            raise ValueError(f"max_tokens is {limits} for {len(groups)} groups; give one number from 1 for each")
        each = [(group, limit) for group, limit in zip(groups, limits, strict=True) for _ in range(group.num_replicas)]
        given = _counted_up(groups) if ranks is None else [tuple(own) for own in ranks]
        sizes = [group.tp * group.cp * group.pp for group, _ in each]
        flat = [rank for own in given for rank in own]
        if [len(own) for own in given] != sizes or len(set(flat)) != len(flat):
            raise ValueError(
                f"ranks are given for {len(given)} replicas of {[len(own) for own in given][:8]} ranks, but the "
                f"strategy has {len(sizes)} of {sizes[:8]}; name each rank once"
            )
        replicas = tuple(
            KnownReplica(group.tp, group.cp, group.pp, group.device or "", own, limit)
            for (group, limit), own in zip(each, given, strict=True)
        )
        return cls(replicas, format_strategy(groups))


def _counted_up(groups: Sequence[ReplicaGroup]) -> list[tuple[int, ...]]:
    given: list[tuple[int, ...]] = []
    first = 0
    for group in groups:
        size = group.tp * group.cp * group.pp
        for _ in range(group.num_replicas):
            given.append(tuple(range(first, first + size)))
            first += size
    return given


def fallback_plan(basis: FallbackBasis, request: PlanRequest) -> Plan:
    """Make a plan for a request without the planner; it is checked as a planner's would be.

    The same basis and request give the same plan.

    Raises
    ------
    FallbackImpossible
        If the basis is for another cluster, a sequence is over every limit and may not be dropped, or an option cannot
        be kept.
    """
    _refuse_unfit(basis, request)
    replicas = [_lowered(replica, request) for replica in basis.replicas]
    stages = _stages(replicas, is_padded=request.options.cost == "padded")
    admitted = admitted_items(request, stages, basis.origin)
    assigned = assign(admitted.items, stages, request.options)
    packed = _pack_all(assigned, stages, request)
    is_timed = all(replica.rates is not None for replica in replicas)
    plan = plan_of(
        request,
        [PackedReplica(*of_replica, is_timed=is_timed) for of_replica in zip(replicas, stages, packed, strict=True)],
        dropped=admitted.dropped,
        strategy=basis.strategy,
        sync_ms=basis.sync_ms if request.options.sync_ms is None else request.options.sync_ms,
    )
    try:
        return check_answers(plan, request)
    except BadAnswer as wrong:
        raise FallbackImpossible(f"the plan made without the planner would break the request: {wrong}") from wrong


def _refuse_unfit(basis: FallbackBasis, request: PlanRequest) -> None:
    options = request.options
    num_sequences = request.num_sequences
    top_rank = max((rank for replica in basis.replicas for rank in replica.ranks), default=-1)
    kept = {(layout.tp, layout.cp, layout.pp) for layout in options.allowed_layouts or ()}
    why: str | None = None
    if num_sequences > MAX_SEQUENCES:
        why = f"the batch has {num_sequences} sequences, and without the planner at most {MAX_SEQUENCES} are planned"
    elif basis.profile is not None and basis.profile != request.profile_names:
        why = f"it is for {basis.profile} but the request is for {request.profile_names}"
    elif (basis.num_gpus or request.total_gpus) != request.total_gpus or top_rank >= request.total_gpus:
        why = f"it is for {basis.num_gpus or top_rank + 1} GPUs but the request has {request.total_gpus}"
    elif not basis.replicas:
        why = "it has no replica"
    elif options.homogeneous and len({_layout(replica) for replica in basis.replicas}) > 1:
        why = f"its strategy {basis.strategy} is not homogeneous, as the request asks"
    elif kept and any(_layout(replica)[:3] not in kept for replica in basis.replicas):
        why = f"its strategy {basis.strategy} has layouts that the request does not allow"
    if why is not None:
        raise FallbackImpossible(f"{basis.origin} gives no plan for this request: {why}")


def _layout(replica: KnownReplica) -> tuple[int, int, int, str]:
    return replica.tp, replica.cp, replica.pp, replica.device


def _lowered(replica: KnownReplica, request: PlanRequest) -> KnownReplica:
    limit = request.options.max_tokens_per_micro_batch
    if limit is None or replica.max_tokens <= limit:
        return replica
    return replace(replica, max_tokens=limit)


def _stages(replicas: Sequence[KnownReplica], *, is_padded: bool) -> list[Stages]:
    """Tell replicas' costs; where none are known, tokens count for as much as there are ranks to share them."""
    is_timed = all(replica.rates is not None for replica in replicas)
    found: list[Stages] = []
    for replica in replicas:
        rates = replica.rates
        if rates is None or not is_timed:
            rates = Rates(0.0, 1.0 / len(replica.ranks), 0.0)
        found.append(Stages(replica.pp, replica.max_tokens, rates, is_padded))
    return found


def _pack_all(assigned: Sequence[Sequence[Item]], stages: Sequence[Stages], request: PlanRequest) -> list[list[Bin]]:
    """Pack every replica, with as many micro-batches as the options allow."""
    options = request.options
    packed = [pack(items, own) for items, own in zip(assigned, stages, strict=True)]
    if not options.constrains_counts:
        return packed
    multiple = options.micro_batch_count_multiple
    wanted = [
        -(-max(len(bins), own.pp if options.at_least_stages else 1) // multiple) * multiple if bins else 0
        for bins, own in zip(packed, stages, strict=True)
    ]
    if options.equal_micro_batch_counts:
        wanted = [max(wanted)] * len(wanted)
    return [
        split_to(bins, count, own, f"replica {number}")
        for number, (bins, count, own) in enumerate(zip(packed, wanted, stages, strict=True))
    ]
