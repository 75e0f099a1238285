"""Plans for a run: asked on one rank while the iteration before computes, then shared with all."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch.distributed as dist

from planner_client.client import ANSWER_MARGIN_S, PlannerClient
from planner_client.contract import Plan, PlanOptions, PlanRequest, Profile, ReplicaGroup
from planner_client.errors import HydraulisError, RequestRefused
from worker_agent.executor.agree import share_plan
from worker_agent.executor.collectives import Group
from worker_agent.prefetch import PlanPrefetcher
from worker_agent.trainer.faults import NoPlan
from worker_agent.trainer.loader import BatchLoader, GlobalBatch
from worker_agent.trainer.settings import PlannerSettings, refuse_no_duration

LengthsBySource = Mapping[str, Sequence[int]]
"""Lengths (tokens) of one global batch by source, in the order held."""

MakePlan = Callable[[LengthsBySource], Plan]
"""Makes the plan of one global batch."""

DECIDER = 0
"""The rank that asks for plans."""

OWN_PLANS_TIMEOUT_S = 30.0
"""How long a run waits for a plan that no planner service makes, unless told otherwise."""

GRACE = 1.5
"""Ranks wait this much longer than a plan may take, so that the message of whoever makes it comes first."""


@dataclass(frozen=True)
class OwnPlans:
    """Plans without a planner service.

    Attributes
    ----------
    make
        Makes the plan of one global batch.
    timeout_s
        Most time to wait for one plan.
    busy
        Held while ``make`` runs: training and evaluation each have a thread that asks for plans.

    Raises
    ------
    ValueError
        If the time is not positive.
    """

    make: MakePlan
    timeout_s: float = OWN_PLANS_TIMEOUT_S
    busy: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def __post_init__(self) -> None:
        refuse_no_duration(plan_timeout_s=self.timeout_s)


Planner = PlannerSettings | OwnPlans
"""Who makes a run's plans."""


@dataclass(frozen=True)
class RunPlan:
    """A plan as a run takes it.

    Attributes
    ----------
    plan
        The plan, the same on every rank.
    fetch_ms
        From asking for it to having it; 0 on ranks that did not ask.
    waited_ms
        How long the deciding rank was kept waiting; 0 on the others.
    """

    plan: Plan
    fetch_ms: float = 0.0
    waited_ms: float = 0.0


def plan_request(
    settings: PlannerSettings, lengths: LengthsBySource, num_ranks: int, iteration: int | None
) -> PlanRequest:
    """Return what the planner is asked for one global batch.

    Raises
    ------
    ValueError
        If the settings have no profile.
    """
    return PlanRequest(
        profile=settings.profile,
        num_gpus=num_ranks,
        strategies=settings.candidates(),
        iteration=iteration,
        lengths={source: list(held) for source, held in lengths.items()},
        options=settings.options,
    )


def plan_timeout_s(planner: Planner) -> float:
    """Return how long a run waits for one plan (s)."""
    if isinstance(planner, OwnPlans):
        return planner.timeout_s
    if planner.timeout_s is not None:
        return planner.timeout_s
    return planner.options.deadline_ms / 1000.0 + ANSWER_MARGIN_S


def planner_of(  # noqa: PLR0913, PLR0917 - what the run's owner may say about planning, and how long ranks wait
    url: str | None,
    plans: MakePlan | None,
    profile: Profile | str | None,
    strategies: Sequence[str | Sequence[ReplicaGroup]],
    options: PlanOptions | None,
    timeout_s: float | None,
    collective_timeout_s: float,
) -> Planner:
    """Return who makes a run's plans.

    Raises
    ------
    ValueError
        If nobody does, two do, a time is not positive, or ranks would give up waiting before a plan is overdue.
    """
    refuse_no_duration(collective_timeout_s=collective_timeout_s)
    if (url is None) == (plans is None):
        raise ValueError(
            "nobody makes plans; give planner_url (start one with `hydraulis serve`), or plans="
            if url is None
            else f"planner {url} and plans= both make plans; give one of them"
        )
    planner: Planner
    if plans is not None:
        planner = OwnPlans(plans, OWN_PLANS_TIMEOUT_S if timeout_s is None else timeout_s)
    else:
        candidates = tuple(strategy if isinstance(strategy, str) else tuple(strategy) for strategy in strategies)
        planner = PlannerSettings(str(url), profile, candidates, options or PlanOptions(), timeout_s)
    longest_s = GRACE * plan_timeout_s(planner)
    if longest_s >= collective_timeout_s:
        raise ValueError(
            f"a plan may take {longest_s:g} s but ranks wait for one another for {collective_timeout_s:g} s only; "
            "raise collective_timeout_s or lower plan_timeout_s"
        )
    return planner


class PlanFeed:
    """Feeds a run with plans; every rank of the group builds one, and rank 0 asks.

    Parameters
    ----------
    planner
        Who makes the plans.
    group
        The process group; by default all ranks.
    numbered
        Whether plans carry the iteration's number.

    Raises
    ------
    ValueError
        If the planner's address cannot be read.
    """

    def __init__(self, planner: Planner, *, group: Group = None, numbered: bool = True) -> None:
        self._planner = planner
        self._group = group
        self._numbered = numbered
        self._num_ranks = dist.get_world_size(group)
        self._lengths: dict[int, LengthsBySource] = {}
        # Every rank reads the address, so that a bad one is an error on all of them.
        self._client = PlannerClient(planner.url) if isinstance(planner, PlannerSettings) else None
        self._prefetcher = PlanPrefetcher(self._fetch, timeout_s=GRACE * plan_timeout_s(planner))
        self._decides = dist.get_rank(group) == DECIDER

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._prefetcher.close()
        if self._client is not None:
            self._client.close()

    def announce(self, iteration: int, lengths: LengthsBySource) -> None:
        """Begin to fetch the plan of an iteration in the background."""
        if self._decides:
            self._lengths[iteration] = lengths
            self._prefetcher.start(iteration)

    def take(self, iteration: int) -> RunPlan:
        """Return the plan of an announced iteration; a collective that every rank of the group calls.

        Raises
        ------
        worker_agent.executor.faults.PlanningFailed
            On every rank, if there is no plan.
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        if not self._decides:
            return RunPlan(share_plan(group=self._group, decider=DECIDER))
        try:
            fetched = self._prefetcher.take(iteration)
        except Exception as fault:  # noqa: BLE001 - whatever kept the plan away is every rank's fault
            return RunPlan(share_plan(fault, group=self._group, decider=DECIDER))
        finally:
            self._lengths.pop(iteration, None)
        plan = share_plan(fetched.plan, group=self._group, decider=DECIDER)
        return RunPlan(plan, fetched.fetch_ms, fetched.waited_ms)

    def _fetch(self, iteration: int) -> Plan:
        lengths, settings = self._lengths[iteration], self._planner
        if isinstance(settings, OwnPlans):
            with settings.busy:
                return _own_plan(settings.make, lengths)
        if self._client is None:
            raise NoPlan(f"the client of {settings.url} is closed; build a new PlanFeed")
        request = plan_request(settings, lengths, self._num_ranks, iteration if self._numbered else None)
        try:
            return self._client.plan(request, timeout_s=plan_timeout_s(settings))
        except RequestRefused as refused:
            raise NoPlan(f"the planner at {settings.url} refused to plan: {refused}") from refused
        except HydraulisError as fault:
            raise NoPlan(
                f"the planner at {settings.url} gave no plan: {fault}; see whether `hydraulis serve` runs there and "
                "is ready (/readyz), or train with plans=, a function that makes plans without it"
            ) from fault


def _own_plan(make: MakePlan, lengths: LengthsBySource) -> Plan:
    try:
        plan: object = make(lengths)
    except SystemExit as wish:
        raise NoPlan(f"plans= called sys.exit({wish.code!r}) where a plan was wanted") from wish
    if not isinstance(plan, Plan):
        raise NoPlan(f"plans= gave a {type(plan).__name__}; return a planner_client.contract.Plan")
    return plan


def announced(loader: BatchLoader, feed: PlanFeed, iteration: int) -> GlobalBatch:
    """Read the next batch and begin to fetch its plan; a collective that every rank of the group calls."""
    batch = loader.next()
    feed.announce(iteration, batch.lengths)
    return batch
