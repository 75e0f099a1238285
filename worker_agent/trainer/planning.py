"""Plans for a run: asked on one rank while the iteration before computes, then shared with all."""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import torch.distributed as dist

from planner_client.contract import LearningMode, Plan, PlanOptions, Profile, ReplicaGroup, ReplicaTiming
from planner_client.errors import HydraulisError
from worker_agent.executor.agree import share_plan
from worker_agent.executor.collectives import Group
from worker_agent.executor.faults import PlanningFailed
from worker_agent.executor.measure import gather_timings
from worker_agent.prefetch import FetchedPlan, PlanPrefetcher
from worker_agent.trainer.agent_plans import AgentPlans
from worker_agent.trainer.faults import NoPlan, OverLong
from worker_agent.trainer.loader import BatchLoader, GlobalBatch
from worker_agent.trainer.metrics import PlanOrigin
from worker_agent.trainer.service_plans import LengthsBySource, ServicePlans
from worker_agent.trainer.settings import PlannerSettings, refuse_no_duration
from worker_agent.trainer.settled import settled

MakePlan = Callable[[LengthsBySource], Plan]
"""Makes the plan of one global batch."""

DECIDER = 0
"""The rank that asks for plans."""

OWN_PLANS_TIMEOUT_S = 30.0
"""How long a run waits for a plan that no planner service makes, unless told otherwise."""

AGENT_VARIABLE = "HYDRAULIS_AGENT_SOCKET"
"""Tells where the node's agent listens, for runs that are told of no planner."""

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

    def close(self) -> None:
        """Do nothing: the function is its owner's."""


Planner = ServicePlans | OwnPlans
"""Who makes a run's plans."""


@dataclass(frozen=True)
class RunPlan:
    """A plan as a run takes it.

    Attributes
    ----------
    plan
        The plan, the same on every rank.
    made
        The plan as its maker gave it, whose digest he knows it by; another one than ``plan`` where it names nodes.
    origin
        Where it came from.
    fetch_ms
        From asking for it to having it; 0 on ranks that did not ask.
    waited_ms
        How long the deciding rank was kept waiting; 0 on the others.
    """

    plan: Plan
    made: Plan
    origin: PlanOrigin
    fetch_ms: float = 0.0
    waited_ms: float = 0.0


def planner_of(  # noqa: PLR0913 - what the run's owner may say about planning, and how long ranks wait
    url: str | None,
    plans: MakePlan | None,
    *,
    agent: str | None = None,
    profile: Profile | str | None = None,
    strategies: Sequence[str | Sequence[ReplicaGroup]] = (),
    options: PlanOptions | None = None,
    timeout_s: float | None = None,
    token: str | None = None,
    ca_file: Path | str | None = None,
    job: str | None = None,
    window: int = 2,
    learning: LearningMode = "observe",
    folder: Path | None = None,
    collective_timeout_s: float,
) -> Planner:
    """Return who makes a run's plans.

    Raises
    ------
    ValueError
        If nobody does, two do, an argument cannot be used, or ranks would give up waiting before a plan is overdue.
    """
    refuse_no_duration(collective_timeout_s=collective_timeout_s)
    _refuse_none_or_several(url, plans, agent)
    planner: Planner
    if plans is not None:
        if job is not None:
            raise ValueError(f"job {job!r} is registered with a planner, and plans= needs none; give planner_url=")
        if learning == "on":
            raise ValueError("learning is 'on', but plans= makes plans without a planner; give planner_url= and job=")
        planner = OwnPlans(plans, OWN_PLANS_TIMEOUT_S if timeout_s is None else timeout_s)
    else:
        candidates = tuple(strategy if isinstance(strategy, str) else tuple(strategy) for strategy in strategies)
        settings = PlannerSettings(
            str(url if agent is None else agent),
            profile,
            candidates,
            options or PlanOptions(),
            timeout_s,
            token,
            ca_file,
            job,
            window,
            by_agent=agent is not None,
            learning=learning,
        )
        planner = ServicePlans(settings, folder) if agent is None else AgentPlans(settings, folder)
    longest_s = GRACE * planner.timeout_s
    if longest_s >= collective_timeout_s:
        raise ValueError(
            f"a plan may take {longest_s:g} s but ranks wait for one another for {collective_timeout_s:g} s only; "
            "raise collective_timeout_s or lower plan_timeout_s"
        )
    return planner


def agent_of(agent: str | None, url: str | None, plans: MakePlan | None) -> str | None:
    """Return the agent that a run goes by: the one named, or that of ``HYDRAULIS_AGENT_SOCKET`` if nothing else is."""
    if agent is not None or url is not None or plans is not None:
        return agent
    socket = os.environ.get(AGENT_VARIABLE, "")
    return None if socket in {"", "none"} else socket


def _refuse_none_or_several(url: str | None, plans: MakePlan | None, agent: str | None) -> None:
    named = {f"planner {url}": url, f"agent {agent}": agent, "plans=": plans}
    makers = [name for name, maker in named.items() if maker is not None]
    if not makers:
        raise ValueError(
            "nobody makes plans; give planner_url (start one with `hydraulis serve`), agent= (`hydraulis agent`), or "
            "plans="
        )
    if len(makers) > 1:
        raise ValueError(f"{' and '.join(makers)} both make plans; give one of them")


class _OwnFeed:
    """Plans that a function makes, on a thread of its own."""

    def __init__(self, plans: OwnPlans) -> None:
        self._plans = plans
        self._lengths: dict[int, LengthsBySource] = {}
        self._prefetcher = PlanPrefetcher(self._fetch, timeout_s=GRACE * plans.timeout_s)

    def announce(self, iteration: int, lengths: LengthsBySource) -> None:
        self._lengths[iteration] = lengths
        self._prefetcher.start(iteration)

    def take(self, iteration: int) -> FetchedPlan:
        try:
            return self._prefetcher.take(iteration)
        finally:
            self._lengths.pop(iteration, None)

    def close(self) -> None:
        self._prefetcher.close()

    def _fetch(self, iteration: int) -> Plan:
        with self._plans.busy:
            return _own_plan(self._plans.make, self._lengths[iteration])


class _ServiceFeed:
    """Plans of a planner service; training and evaluation each have a feed on the same service."""

    def __init__(self, plans: ServicePlans, num_ranks: int, *, numbered: bool) -> None:
        self._plans = plans
        self._numbered = numbered
        self._numbers: dict[int, int] = {}
        self._unannounced: dict[int, ValueError] = {}
        plans.open(num_ranks)
        if numbered:
            plans.forget()

    def announce(self, iteration: int, lengths: LengthsBySource) -> None:
        number = iteration if self._numbered else self._plans.number_for_evaluation()
        self._numbers[iteration] = number
        try:
            self._plans.announce(number, lengths)
        except ValueError as unfit:
            self._unannounced[iteration] = unfit

    def take(self, iteration: int) -> FetchedPlan:
        unfit = self._unannounced.pop(iteration, None)
        if unfit is not None:
            raise NoPlan(f"the batch of iteration {iteration} cannot be planned: {unfit}") from unfit
        return self._plans.take(self._numbers.pop(iteration, iteration))

    def close(self) -> None:
        """Leave the service open: it goes on for the next feed."""


class PlanFeed:
    """Feeds a run with plans; every rank of the group builds one, and rank 0 asks.

    Parameters
    ----------
    planner
        Who makes the plans.
    group
        The process group; by default all ranks.
    numbered
        Whether plans carry the iteration's number, as those of training do.

    Raises
    ------
    worker_agent.executor.faults.IterationFailed
        On every rank, if rank 0 cannot make ready to ask: its token or certificates cannot be used.
    """

    def __init__(self, planner: Planner, *, group: Group = None, numbered: bool = True) -> None:
        self._planner = planner
        self._group = group
        self._decides = dist.get_rank(group) == DECIDER
        self._source: _OwnFeed | _ServiceFeed | None = None
        # Iterations that agents report; batches of an evaluation are asked for by themselves.
        self._agents = planner if isinstance(planner, AgentPlans) and numbered else None
        self._lengths: dict[int, LengthsBySource] = {}
        if isinstance(planner, AgentPlans):
            rank, num_ranks = dist.get_rank(group), dist.get_world_size(group)
            planner.open_with_all(rank, num_ranks, group, decides=self._decides)
            if self._agents is not None and not self._decides:
                planner.forget()
        with settled("opening the planner", group):
            if self._decides:
                self._source = (
                    _OwnFeed(planner)
                    if isinstance(planner, OwnPlans)
                    else _ServiceFeed(planner, dist.get_world_size(group), numbered=numbered)
                )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._source is not None:
            self._source.close()

    def announce(self, iteration: int, lengths: LengthsBySource) -> None:
        """Begin to fetch the plan of an iteration in the background."""
        if self._agents is not None:
            self._lengths[iteration] = lengths
            self._agents.hold(iteration, lengths)
        if self._source is not None:
            self._source.announce(iteration, lengths)

    def take(self, iteration: int) -> RunPlan:
        """Return the plan of an announced iteration; a collective that every rank of the group calls.

        Raises
        ------
        worker_agent.executor.faults.PlanningFailed
            On every rank, if there is no plan.
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        if self._source is None:
            return self._run_plan(iteration, share_plan(group=self._group, decider=DECIDER))
        try:
            fetched = self._source.take(iteration)
        except Exception as fault:  # noqa: BLE001 - whatever kept the plan away is every rank's fault
            return self._run_plan(iteration, share_plan(fault, group=self._group, decider=DECIDER))
        plan = share_plan(fetched.plan, group=self._group, decider=DECIDER)
        return self._run_plan(iteration, plan, fetched)

    def report(self, iteration: int, plan: Plan, timing: ReplicaTiming | None) -> None:
        """Give a job what ranks measured; a collective that every rank of the group calls.

        Parameters
        ----------
        iteration
            The iteration that was run.
        plan
            Its plan, as its maker gave it.
        timing
            What this rank measured; None if it was idle.

        Raises
        ------
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        planner = self._planner
        if isinstance(planner, OwnPlans) or not planner.takes_timings:
            return
        timings = gather_timings(plan, timing, iteration=iteration, group=self._group)
        if self._decides and timings is not None:
            planner.report(timings)

    def _run_plan(self, iteration: int, made: Plan, fetched: FetchedPlan | None = None) -> RunPlan:
        """Return a shared plan as the run takes it; the same on every rank, or the same fault."""
        plan = made
        if self._agents is not None:
            try:
                plan = self._agents.taken(iteration, made, self._lengths.pop(iteration, {}))
            except (HydraulisError, NoPlan) as unfit:
                raise PlanningFailed(type(unfit).__name__, str(unfit)) from unfit
        times_ms = (0.0, 0.0) if fetched is None else (fetched.fetch_ms, fetched.waited_ms)
        return RunPlan(plan, made, self._origin(made), *times_ms)

    def _origin(self, plan: Plan) -> PlanOrigin:
        if isinstance(self._planner, OwnPlans):
            return "own"
        return "fallback" if plan.solved_by == "fallback" else "service"


def _own_plan(make: MakePlan, lengths: LengthsBySource) -> Plan:
    try:
        plan: object = make(lengths)
    except SystemExit as wish:
        raise NoPlan(f"plans= called sys.exit({wish.code!r}) where a plan was wanted") from wish
    if not isinstance(plan, Plan):
        raise NoPlan(f"plans= gave a {type(plan).__name__}; return a planner_client.contract.Plan")
    return plan


def taken(feed: PlanFeed, iteration: int, batch: GlobalBatch) -> RunPlan:
    """Return the plan of an announced batch; a collective that every rank of the group calls.

    Raises
    ------
    worker_agent.executor.faults.PlanningFailed
        On every rank, if there is no plan; of a sequence that is too long, it says where the data has it.
    worker_agent.executor.faults.RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    try:
        return feed.take(iteration)
    except PlanningFailed as fault:
        if fault.kind != OverLong.__name__:
            raise
        raise PlanningFailed(fault.kind, f"{batch.longest} but {fault.detail}") from None


def announced(loader: BatchLoader, feed: PlanFeed, iteration: int) -> GlobalBatch:
    """Read the next batch and begin to fetch its plan; a collective that every rank of the group calls."""
    batch = loader.next()
    feed.announce(iteration, batch.lengths)
    return batch
