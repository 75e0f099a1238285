"""Two ways to ask a planner for an iteration's plan: as part of a job, or by itself."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from planner_client.client import PlannerClient
from planner_client.contract import (
    Cluster,
    FaultCode,
    IterationStatus,
    IterationTimings,
    JobSpec,
    Plan,
    PlanRequest,
    SourceBatch,
    request_for,
)
from planner_client.errors import DeadlineExceeded, RequestRefused

Batches = Mapping[str, SourceBatch]
"""What each source holds of one iteration."""


class Asking(Protocol):
    """How a planner is asked. Threads call these methods at the same time."""

    def request(self, iteration: int, batches: Batches) -> PlanRequest:
        """Return what a plan of the iteration has to answer, whoever makes it; without a network.

        Raises
        ------
        ValueError
            If the batches cannot be planned as they are.
        """
        ...

    def ask(self, request: PlanRequest, batches: Batches, timeout_s: float) -> Plan:
        """Get the planner's plan within the time given.

        Raises
        ------
        HydraulisError
            If there is none.
        """
        ...

    def report_timings(self, timings: IterationTimings, timeout_s: float) -> bool:
        """Give measured times; return whether there is anybody to take them.

        Raises
        ------
        HydraulisError
            If they could not be given.
        """
        ...


class OneShot:
    """Asks for each plan by itself (``POST /v1/plans``); nothing is registered, and nobody takes measured times.

    Parameters
    ----------
    client
        Talks to the planner.
    cluster
        The cluster and what constrains plans; or a function that makes the request of an iteration.
    """

    def __init__(self, client: PlannerClient, cluster: Cluster | Callable[[int, Batches], PlanRequest]) -> None:
        self._client = client
        self._cluster = cluster

    def request(self, iteration: int, batches: Batches) -> PlanRequest:
        """Return the request of an iteration (see `Asking`)."""
        if isinstance(self._cluster, Cluster):
            return request_for(self._cluster, iteration, batches)
        return self._cluster(iteration, batches)

    def ask(self, request: PlanRequest, batches: Batches, timeout_s: float) -> Plan:  # noqa: ARG002 - a job needs them
        """Get the planner's plan (see `Asking`)."""
        return self._client.plan(request, timeout_s=timeout_s)

    def report_timings(self, timings: IterationTimings, timeout_s: float) -> bool:  # noqa: ARG002 - nobody takes them
        """Return False: only jobs keep measured times."""
        return False


class ByJob:
    """Asks as one iteration of a job: reports all sources' batches, then waits for the plan.

    The job is registered when the planner is first reached, and again if the planner has lost it.

    Parameters
    ----------
    client
        Talks to the planner.
    spec
        The job; the batches of an iteration name its sources.
    """

    def __init__(self, client: PlannerClient, spec: JobSpec) -> None:
        self._client = client
        self._spec = spec
        self._is_registered = threading.Event()

    def request(self, iteration: int, batches: Batches) -> PlanRequest:
        """Return the request of an iteration (see `Asking`).

        Raises
        ------
        ValueError
            If the batches are not those of the job's sources, all of them.
        """
        sources = set(self._spec.sources)
        if batches.keys() != sources:
            odd = sorted(batches.keys() ^ sources)
            raise ValueError(
                f"iteration {iteration} has {len(batches)} batches but job {self._spec.name} has {len(sources)} "
                f"sources, and {odd[0]!r} is in only one of them; give one batch for each source, even an empty one"
            )
        return request_for(self._spec, iteration, batches)

    def ask(self, request: PlanRequest, batches: Batches, timeout_s: float) -> Plan:
        """Get the planner's plan (see `Asking`)."""
        ends_at = time.monotonic() + timeout_s
        iteration = self._number(request)
        self._register(ends_at)
        try:
            self._client.report_all(self._spec.name, iteration, batches, timeout_s=ends_at - time.monotonic())
        except RequestRefused as refused:
            if refused.problem.code != FaultCode.UNKNOWN_JOB:
                raise
            self._is_registered.clear()
            self._register(ends_at)
            self._client.report_all(self._spec.name, iteration, batches, timeout_s=ends_at - time.monotonic())
        left_s = ends_at - time.monotonic()
        found = self._client.iteration_plan(self._spec.name, iteration, wait_s=max(0.0, left_s), timeout_s=left_s)
        if isinstance(found, IterationStatus):
            raise DeadlineExceeded(
                f"iteration {iteration} of job {self._spec.name} was still {found.state} after {timeout_s:g} s"
            )
        return found

    def report_timings(self, timings: IterationTimings, timeout_s: float) -> bool:
        """Give measured times (see `Asking`)."""
        self._client.report_timings(self._spec.name, timings.iteration, timings, timeout_s=timeout_s)
        return True

    def _register(self, ends_at: float) -> None:
        if not self._is_registered.is_set():
            self._client.register_job(self._spec, timeout_s=ends_at - time.monotonic())
            self._is_registered.set()

    def _number(self, request: PlanRequest) -> int:
        if request.iteration is None:
            raise ValueError(f"a request of job {self._spec.name} has no iteration; number the iterations")
        return request.iteration
