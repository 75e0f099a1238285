"""What plans without the planner start from before the planner has made one: pure."""

from collections.abc import Sequence
from dataclasses import replace

from planner_client.contract import LayoutCost, Profile, ReplicaGroup
from planner_client.fallback import FallbackBasis, KnownReplica
from planner_client.rates import Rates
from worker_agent.trainer.settings import PlannerSettings


def first_basis(settings: PlannerSettings, num_ranks: int) -> FallbackBasis | None:
    """Return a strategy with limits, as far as the run's own arguments tell one; None if they do not.

    Of the candidates, or else of one for each layout of the profile, that which holds the longest sequence. Limits
    are those measured in a profile that was given whole; without it, the most tokens of a micro-batch that the options
    name.

    Parameters
    ----------
    settings
        Candidates, profile and options.
    num_ranks
        Ranks of the run.
    """
    profile = settings.profile if isinstance(settings.profile, Profile) else None
    candidates = settings.candidates() or ([] if profile is None else _homogeneous(profile, settings, num_ranks))
    found = [
        (max(limits), number, strategy, limits)
        for number, strategy in enumerate(candidates)
        if sum(group.tp * group.cp * group.pp * group.num_replicas for group in strategy) <= num_ranks
        and (limits := _limits(strategy, profile, settings.options.max_tokens_per_micro_batch)) is not None
    ]
    if not found:
        return None
    _, _, strategy, limits = max(found, key=lambda entry: (entry[0], -entry[1]))
    basis = FallbackBasis.of_strategy(strategy, max_tokens=limits)
    if profile is None:
        return basis
    timed = tuple(_timed(replica, profile) for replica in basis.replicas)
    return replace(basis, replicas=timed, profile=profile.name, num_gpus=num_ranks)


def _homogeneous(profile: Profile, settings: PlannerSettings, num_ranks: int) -> list[list[ReplicaGroup]]:
    """Return a strategy for each layout, the smallest layouts first: as many replicas as there are ranks for."""
    allowed = {(layout.tp, layout.cp, layout.pp) for layout in settings.options.allowed_layouts or ()}
    layouts = sorted(profile.layouts, key=lambda layout: layout.tp * layout.pp)
    return [
        [ReplicaGroup(tp=layout.tp, pp=layout.pp, num_replicas=num_ranks // (layout.tp * layout.pp))]
        for layout in layouts
        # The executor has no context parallelism.
        if layout.cp == 1
        and layout.tp * layout.pp <= num_ranks
        and (not allowed or (layout.tp, layout.cp, layout.pp) in allowed)
    ]


def _limits(strategy: Sequence[ReplicaGroup], profile: Profile | None, most: int | None) -> list[int] | None:
    """Return the most tokens of a micro-batch for each group; None if one is not known."""
    limits: list[int] = []
    for group in strategy:
        layout = None if profile is None else _layout(group, profile)
        measured = None if layout is None else layout.max_tokens
        known = [limit for limit in (measured, most) if limit is not None]
        if not known or (profile is not None and measured is None):
            return None
        limits.append(min(known))
    return limits


def _timed(replica: KnownReplica, profile: Profile) -> KnownReplica:
    layout = _layout(replica, profile)
    if layout is None:
        return replica
    return replace(replica, rates=Rates(layout.a_ms_per_token2, layout.b_ms_per_token, layout.c_ms))


def _layout(of: ReplicaGroup | KnownReplica, profile: Profile) -> LayoutCost | None:
    return next(
        (layout for layout in profile.layouts if (layout.tp, layout.cp, layout.pp) == (of.tp, of.cp, of.pp)), None
    )
