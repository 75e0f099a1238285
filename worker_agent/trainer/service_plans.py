"""Plans of a planner service, or made without it where it gives none in time: on the rank that decides."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planner_client.address import checked_address
from planner_client.asking import Asking, Batches, ByJob, OneShot
from planner_client.client import ANSWER_MARGIN_S, PlannerClient
from planner_client.contract import (
    Cluster,
    FaultCode,
    IterationTimings,
    JobSpec,
    Plan,
    PlanRequest,
    SourceBatch,
    request_for,
)
from planner_client.errors import NoPlanPossible, RequestRefused, SequenceTooLong
from planner_client.steady import SteadyPlan, SteadyPlanner, SteadySettings
from worker_agent.prefetch import FetchedPlan
from worker_agent.trainer.faults import NoPlan, OverLong
from worker_agent.trainer.first_basis import first_basis
from worker_agent.trainer.settings import PlannerSettings

LengthsBySource = Mapping[str, Sequence[int]]
"""Lengths (tokens) of one global batch by source, in the order held."""

LAST_GOOD_PLAN = "last-good-plan.json"
"""File beside the checkpoints from which a restarted run makes plans where the planner is away."""

EVALUATION_WINDOW = 2
"""Batches of an evaluation whose plans are asked for at a time, while iterations wait to be taken."""

_OF_ONE_ITERATION = frozenset(
    {
        FaultCode.BATCH_CONFLICT,
        FaultCode.ITERATION_CLOSED,
        FaultCode.SOURCES_MISSING,
        FaultCode.PLAN_TOO_LATE,
        FaultCode.BATCH_TOO_LARGE,
        FaultCode.SEQUENCE_TOO_LONG,
        FaultCode.CONSTRAINT_INFEASIBLE,
    }
)
"""Refusals that say nothing of other iterations; any other one means that the run is set up wrongly."""

_HINTS: dict[str, str] = {
    FaultCode.UNAUTHENTICATED: "; give token=, or HYDRAULIS_TOKEN on rank 0",
    FaultCode.TOKEN_EXPIRED: "; give another token=, or HYDRAULIS_TOKEN on rank 0",
    FaultCode.FORBIDDEN: "; give a token= that may plan for this job",
    FaultCode.JOB_CONFLICT: "; give another job=, for cluster, sources and options of a job stay as they are",
}


def cluster_of(settings: PlannerSettings, num_ranks: int) -> Cluster:
    """Return what all plans of a run are asked for: a `JobSpec` if the run is a job."""
    strategies, options = settings.candidates(), settings.options
    if settings.job is None:
        return Cluster(profile=settings.profile, num_gpus=num_ranks, strategies=strategies, options=options)
    return JobSpec(
        name=settings.job,
        profile=settings.profile,
        num_gpus=num_ranks,
        strategies=strategies,
        options=options,
        sources=[f"rank-{rank}" for rank in range(num_ranks)],
        learning=settings.learning,
    )


def plan_deadline_s(settings: PlannerSettings) -> float:
    """Return the most time (s) that training waits for one plan."""
    if settings.timeout_s is not None:
        return settings.timeout_s
    return settings.options.deadline_ms / 1000.0 + ANSWER_MARGIN_S


@dataclass(frozen=True)
class _Answer:
    """What became of a request: how long the planner took, and its refusal if it refused."""

    took_ms: float
    refusal: RequestRefused | None = None


class RunAsking:
    """Asks for iterations as the run is set up, and for evaluation one by one (`planner_client.asking.Asking`).

    Iterations of a job are numbered and asked for once; batches of an evaluation have negative numbers here, and none
    on the wire.

    Parameters
    ----------
    client
        Talks to the planner.
    cluster
        The cluster, or the job.
    by_job
        How iterations of the job are asked for; by default all at once by this rank.
    """

    def __init__(self, client: PlannerClient, cluster: Cluster, by_job: Asking | None = None) -> None:
        self._cluster = cluster
        self._one_shot = OneShot(client, cluster)
        self._by_job = by_job or (ByJob(client, cluster) if isinstance(cluster, JobSpec) else None)
        self._answers: dict[int | None, _Answer] = {}

    def request(self, iteration: int, batches: Batches) -> PlanRequest:
        """Return what is asked for one batch."""
        if iteration < 0:
            return request_for(self._cluster, None, batches)
        return (self._by_job or self._one_shot).request(iteration, batches)

    def ask(self, request: PlanRequest, batches: Batches, timeout_s: float) -> Plan:
        """Get the planner's plan, and note how that went."""
        began = time.perf_counter()
        asking = self._one_shot if self._by_job is None or request.iteration is None else self._by_job
        refusal: RequestRefused | None = None
        try:
            return asking.ask(request, batches, timeout_s)
        except RequestRefused as refused:
            refusal = refused
            raise
        finally:
            self._answers[request.iteration] = _Answer(1000 * (time.perf_counter() - began), refusal)

    def report_timings(self, timings: IterationTimings, timeout_s: float) -> bool:
        """Give measured times to the job, if the run is one."""
        return self._by_job is not None and self._by_job.report_timings(timings, timeout_s)

    def answer(self, iteration: int) -> _Answer | None:
        """Return what became of an iteration's request, and forget it and those of iterations before."""
        answer = self._answers.get(iteration if iteration >= 0 else None)
        for number in list(self._answers):
            if number is not None and number <= iteration:
                self._answers.pop(number, None)
        return answer


class ServicePlans:
    """The plans of one run: every rank has one, the rank that decides opens it.

    Parameters
    ----------
    settings
        Whom to ask, and for what.
    folder
        Where the last good plan is kept, if anywhere.
    """

    def __init__(self, settings: PlannerSettings, folder: Path | None = None) -> None:
        self.settings = settings
        self.who = f"planner at {settings.url}"
        self.looked_at = "`hydraulis serve` runs there and is ready (/readyz)"
        self.hints = _HINTS
        self._folder = folder
        self._client: PlannerClient | None = None
        self._asking: RunAsking | None = None
        self._steady: SteadyPlanner | None = None
        self._num_evaluated = 0
        self._has_begun = False

    @property
    def takes_timings(self) -> bool:
        """Whether anybody takes measured times."""
        return self.settings.job is not None

    @property
    def timeout_s(self) -> float:
        """Most time that training waits for one plan (s)."""
        return plan_deadline_s(self.settings)

    def open(self, num_ranks: int) -> None:
        """Make ready to ask, unless it is; asks nobody yet.

        Raises
        ------
        ValueError
            If the token or the file of certificates cannot be used.
        """
        if self._steady is not None:
            return
        settings = self.settings
        cluster = cluster_of(settings, num_ranks)
        self._client = PlannerClient(settings.url, token=_token(settings), ca_file=_ca_file(settings))
        self._begin(RunAsking(self._client, cluster), num_ranks)

    def _begin(self, asking: RunAsking, num_ranks: int) -> None:
        settings = self.settings
        self._asking = asking
        self._steady = SteadyPlanner(
            self._asking,
            SteadySettings(deadline_s=self.timeout_s, window=settings.window + EVALUATION_WINDOW),
            initial=first_basis(settings, num_ranks),
            keep_in=None if self._folder is None else self._folder / LAST_GOOD_PLAN,
        )

    def close(self) -> None:
        """Give measured times a last chance, and close connections."""
        if self._steady is not None:
            self._steady.close()
        if self._client is not None:
            self._client.close()
        self._steady = self._asking = self._client = None

    def forget(self) -> None:
        """Forget iterations that were announced and not run, as a run does that begins anew."""
        if self._steady is not None:
            self._steady.forget()

    def number_for_evaluation(self) -> int:
        """Return a number for a batch of an evaluation that no other batch has."""
        self._num_evaluated += 1
        return -self._num_evaluated

    def announce(self, number: int, lengths: LengthsBySource) -> None:
        """Begin to ask for a plan.

        Raises
        ------
        ValueError
            If the batch cannot be planned as it is.
        NoPlan
            If this was closed.
        """
        self._opened()[0].announce(number, self._batches(number, lengths))

    def _batches(self, number: int, lengths: LengthsBySource) -> dict[str, SourceBatch]:  # noqa: ARG002 - a subclass's
        """Return what is asked for: what each source holds."""
        return {source: SourceBatch(lengths=list(held)) for source, held in lengths.items()}

    def take(self, number: int) -> FetchedPlan:
        """Return what an announced batch runs by, within the time for it.

        Raises
        ------
        NoPlan
            If there is no plan; or, before anything was run, if the planner refuses what every plan is asked with.
        """
        steady, asking = self._opened()
        try:
            taken = steady.take(number)
        except NoPlanPossible as impossible:
            answer = asking.answer(number)
            limit = _length_limit(answer, impossible)
            if limit is not None:
                raise OverLong(self._over_long(limit)) from impossible
            if answer is not None and answer.refusal is not None:
                raise self._refused(answer.refusal) from impossible
            raise NoPlan(
                f"the {self.who} gave no plan: {impossible}; see whether {self.looked_at}, or train with plans=, a "
                "function that makes plans without it"
            ) from impossible
        answer = asking.answer(number)
        refusal = None if answer is None else answer.refusal
        is_for_all = refusal is not None and refusal.problem.code not in _OF_ONE_ITERATION
        if refusal is not None and is_for_all and taken.origin == "fallback" and not self._has_begun:
            # Told before anything was run; a run that has begun is not stopped for it any more.
            raise self._refused(refusal)
        self._has_begun = True
        return FetchedPlan(taken.plan, _fetch_ms(taken, answer), taken.waited_ms)

    def report(self, timings: IterationTimings) -> None:
        """Hand over measured times; returns at once."""
        self._opened()[0].report_timings(timings)

    def _opened(self) -> tuple[SteadyPlanner, RunAsking]:
        if self._steady is None or self._asking is None:
            raise NoPlan(f"nobody asks the {self.who} any more; build a new PlanFeed")
        return self._steady, self._asking

    def _over_long(self, limit: int) -> str:
        whose = (
            "max_length of plan_options"
            if limit == self.settings.options.max_length
            else "what the largest micro-batch of any replica holds"
        )
        return (
            f"the limit is {limit} tokens, {whose}; leave such sequences out with "
            'plan_options=PlanOptions(over_long="drop"), cut them, or let the run use layouts that hold more '
            "(strategies=, profile=)"
        )

    def _refused(self, refusal: RequestRefused) -> NoPlan:
        hint = self.hints.get(refusal.problem.code, "")
        return NoPlan(f"the {self.who} refused to plan: {refusal}{hint}")


def _length_limit(answer: _Answer | None, impossible: NoPlanPossible) -> int | None:
    """Return the most tokens of a sequence, if the batch has a longer one and for that has no plan."""
    refusal = None if answer is None else answer.refusal
    if refusal is not None:
        limit = refusal.problem.numbers.get("limit")
        return limit if refusal.problem.code == FaultCode.SEQUENCE_TOO_LONG and isinstance(limit, int) else None
    without = impossible.__cause__
    return without.limit if isinstance(without, SequenceTooLong) else None


def _fetch_ms(taken: SteadyPlan, answer: _Answer | None) -> float:
    """Return how long it took to have a plan; one made without the planner took what was waited for it."""
    return taken.waited_ms if taken.origin == "fallback" or answer is None else max(answer.took_ms, taken.waited_ms)


def _token(settings: PlannerSettings) -> str | None:
    return settings.token if settings.token is not None else os.environ.get("HYDRAULIS_TOKEN") or None


def _ca_file(settings: PlannerSettings) -> Path | str | None:
    if settings.ca_file is not None or checked_address(settings.url).scheme != "https":
        return settings.ca_file
    return os.environ.get("HYDRAULIS_CA_FILE") or None
