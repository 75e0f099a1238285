"""Everything that can be asked of a planner, as flows: what both clients have in common."""

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel, RootModel

from planner_client.contract import (
    IterationList,
    IterationStatus,
    IterationSummary,
    IterationTimings,
    Job,
    JobList,
    JobSpec,
    JobSummary,
    LearnedVersion,
    LearnedVersionList,
    LearnedVersionSummary,
    Learning,
    Node,
    NodeList,
    NodeReport,
    Plan,
    PlanList,
    PlanRequest,
    PlanSummary,
    Profile,
    ProfileList,
    ProfileMeasurement,
    ProfileSummary,
    SourceBatch,
    SourceBatches,
)
from planner_client.contract.scalars import MAX_WAIT_MS
from planner_client.errors import BadAnswer
from planner_client.flow import Answer, Flow, Pause, Query, RetryPolicy, call, call_to_delete, read
from planner_client.plan_check import check_answers
from planner_client.waits import positive, with_an_end

DEFAULT_TIMEOUT_S = 30.0
ANSWER_MARGIN_S = 15.0
"""Time that a plan may take on top of its own deadline: waiting for a solver, transport, further tries."""

POLL_S = 30.0
"""Longest wait asked for in one request; proxies cut those that take much longer."""

POLL_MARGIN_S = 5.0
"""An answer that comes this much later than was asked for does not come any more."""

ANSWER_S = 0.25
ANSWER_SHARE = 0.1
"""Part of a call's time that is kept for the last answer to a long poll: so much, or this share if that is less."""

READY_PAUSE_S = 0.25
PAGE = 1000
ACCEPTED = 202

Wire = TypeVar("Wire", bound=BaseModel)


class _AllTimings(RootModel[list[IterationTimings]]):
    """All measured times of an iteration."""


class PlannerCalls:
    """What both clients ask, as flows.

    Where a call takes ``timeout_s``, that is its time in all, the client's own if it is None.

    Parameters
    ----------
    timeout_s
        Time for calls that are given none.
    policy
        When to try again.
    clock
        Monotonic time in seconds.

    Raises
    ------
    ValueError
        If there is no time, or no end of it; from every call that is given a time without an end, too.
    """

    def __init__(
        self,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        policy: RetryPolicy | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._timeout_s = positive("timeout_s", timeout_s)
        self._policy = policy if policy is not None else RetryPolicy()
        self._clock = clock

    def plan(self, request: PlanRequest, *, timeout_s: float | None = None) -> Flow[Plan]:
        """Plan one iteration; by default the request's own deadline and 15 s are the limit."""
        limit_s = request.options.deadline_ms / 1000.0 + ANSWER_MARGIN_S if timeout_s is None else timeout_s
        body = request.model_dump_json(exclude_unset=True).encode()
        answer = yield from self._call(Query("POST", "/v1/plans", body), limit_s)
        return check_answers(read(answer, Plan), request)

    def plan_with_digest(self, digest: str, *, timeout_s: float | None = None) -> Flow[Plan]:
        """Fetch a plan that the planner made before."""
        plan = yield from self._get(f"/v1/plans/{_quoted(digest)}", Plan, timeout_s)
        if plan.digest != digest:
            raise BadAnswer(f"asked for the plan {digest}, got {plan.digest}")
        return plan

    def plans(
        self, *, after: int | None = None, limit: int | None = None, timeout_s: float | None = None
    ) -> Flow[list[PlanSummary]]:
        """List plans in the order they were stored, at most ``limit`` after number ``after``; all if not given."""
        found: list[PlanSummary] = []
        ends_at = self._ends_at(timeout_s)
        while (count := _page(limit, len(found))) > 0:
            page = yield from self._page("/v1/plans", PlanList, {"after": after, "limit": count}, ends_at)
            found += page.plans
            if page.next_after is None:
                break
            after = _onward("/v1/plans", after, page.next_after, is_onward=after is None or page.next_after > after)
        return found[:limit]

    def delete_plan(self, digest: str, *, timeout_s: float | None = None) -> Flow[None]:
        """Delete the plan with this digest; refused if a job's iteration has it."""
        yield from self._delete(f"/v1/plans/{_quoted(digest)}", timeout_s)

    def profiles(self, *, timeout_s: float | None = None) -> Flow[list[ProfileSummary]]:
        """List the profiles that the planner has."""
        return (yield from self._get("/v1/profiles", ProfileList, timeout_s)).profiles

    def profile(self, name: str, *, timeout_s: float | None = None) -> Flow[Profile]:
        """Fetch a profile."""
        return (yield from self._get(f"/v1/profiles/{_quoted(name)}", Profile, timeout_s))

    def register_profile(
        self, profile: Profile | ProfileMeasurement, *, timeout_s: float | None = None
    ) -> Flow[Profile]:
        """Register a profile, or a measurement that the planner fits; return the profile that it keeps."""
        return (yield from self._send("POST", "/v1/profiles", profile, Profile, timeout_s))

    def delete_profile(self, name: str, *, timeout_s: float | None = None) -> Flow[None]:
        """Delete a profile that was registered; refused while a job uses it."""
        yield from self._delete(f"/v1/profiles/{_quoted(name)}", timeout_s)

    def register_job(self, spec: JobSpec, *, timeout_s: float | None = None) -> Flow[Job]:
        """Register a job; the same again changes nothing, another one under the same name is refused."""
        return (yield from self._send("POST", "/v1/jobs", spec, Job, timeout_s))

    def job(self, name: str, *, timeout_s: float | None = None) -> Flow[Job]:
        """Fetch a job as it was registered."""
        job = yield from self._get(_job(name), Job, timeout_s)
        if job.name != name:
            raise BadAnswer(f"asked for the job {name}, got {job.name}")
        return job

    def jobs(
        self, *, after: str = "", limit: int | None = None, timeout_s: float | None = None
    ) -> Flow[list[JobSummary]]:
        """List jobs, ascending by name, at most ``limit`` after the name ``after``; all if not given."""
        found: list[JobSummary] = []
        ends_at = self._ends_at(timeout_s)
        while (count := _page(limit, len(found))) > 0:
            page = yield from self._page("/v1/jobs", JobList, {"after": after, "limit": count}, ends_at)
            found += page.jobs
            if page.next_after is None:
                break
            after = _onward("/v1/jobs", after, page.next_after, is_onward=page.next_after > after)
        return found[:limit]

    def delete_job(self, name: str, *, timeout_s: float | None = None) -> Flow[None]:
        """Delete a job with its iterations and measured times."""
        yield from self._delete(_job(name), timeout_s)

    def learning(self, job: str, *, timeout_s: float | None = None) -> Flow[Learning]:
        """Ask what a job learned from measured times by now."""
        return (yield from self._get(f"{_job(job)}/learning", Learning, timeout_s))

    def learned_versions(
        self, job: str, *, after: int | None = None, limit: int | None = None, timeout_s: float | None = None
    ) -> Flow[list[LearnedVersionSummary]]:
        """List versions of what a job learned, from the newest on, at most ``limit`` before number ``after``."""
        found: list[LearnedVersionSummary] = []
        ends_at = self._ends_at(timeout_s)
        path = f"{_job(job)}/learning/versions"
        while (count := _page(limit, len(found))) > 0:
            page = yield from self._page(path, LearnedVersionList, {"after": after, "limit": count}, ends_at)
            found += page.versions
            if page.next_after is None:
                break
            after = _onward(path, after, page.next_after, is_onward=after is None or page.next_after < after)
        return found[:limit]

    def learned_version(self, job: str, version: int, *, timeout_s: float | None = None) -> Flow[LearnedVersion]:
        """Fetch one version of what a job learned."""
        return (yield from self._get(f"{_job(job)}/learning/versions/{version}", LearnedVersion, timeout_s))

    def reset_learning(self, job: str, *, timeout_s: float | None = None) -> Flow[LearnedVersion]:
        """Let what was registered hold again, as a new version, and let the job learn anew."""
        query = Query("POST", f"{_job(job)}/learning/reset")
        return read((yield from self._call(query, self._limit_s(timeout_s))), LearnedVersion)

    def report(
        self, job: str, iteration: int, source: str, batch: SourceBatch, *, timeout_s: float | None = None
    ) -> Flow[IterationStatus]:
        """Report what one source holds of an iteration; the same again changes nothing, something else is refused."""
        path = f"{_iteration(job, iteration)}/histograms/{_quoted(source)}"
        status = yield from self._send("PUT", path, batch, IterationStatus, timeout_s)
        return _checked_status(status, job, iteration)

    def report_all(
        self, job: str, iteration: int, batches: Mapping[str, SourceBatch], *, timeout_s: float | None = None
    ) -> Flow[IterationStatus]:
        """Report what several sources hold of an iteration, all of it or nothing."""
        sent = SourceBatches(sources=dict(batches))
        path = f"{_iteration(job, iteration)}/histograms"
        status = yield from self._send("PUT", path, sent, IterationStatus, timeout_s)
        return _checked_status(status, job, iteration)

    def iteration(self, job: str, iteration: int, *, timeout_s: float | None = None) -> Flow[IterationStatus]:
        """Ask how far an iteration is."""
        status = yield from self._get(_iteration(job, iteration), IterationStatus, timeout_s)
        return _checked_status(status, job, iteration)

    def iterations(
        self,
        job: str,
        *,
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        timeout_s: float | None = None,
    ) -> Flow[list[IterationSummary]]:
        """List a job's iterations, at most ``limit`` after number ``after`` (before it, if newest come first)."""
        found: list[IterationSummary] = []
        ends_at = self._ends_at(timeout_s)
        path = f"{_job(job)}/iterations"
        order = "true" if newest_first else None
        while (count := _page(limit, len(found))) > 0:
            page = yield from self._page(
                path, IterationList, {"newest_first": order, "after": after, "limit": count}, ends_at
            )
            found += page.iterations
            if page.next_after is None:
                break
            is_onward = after is None or (page.next_after < after if newest_first else page.next_after > after)
            after = _onward(path, after, page.next_after, is_onward=is_onward)
        return found[:limit]

    def iteration_plan(
        self, job: str, iteration: int, *, wait_s: float = 0.0, timeout_s: float | None = None
    ) -> Flow[Plan | IterationStatus]:
        """Fetch an iteration's plan, waiting for it up to ``wait_s``; how far the iteration is if there is none yet.

        The time in all is ``wait_s`` and the client's own, unless ``timeout_s`` is given. A little of it is kept for
        the last answer; nobody waits for longer than ten minutes.

        Raises
        ------
        HydraulisError
            `RequestRefused` with the problem document if the iteration has failed.
        """
        if math.isnan(wait_s):
            raise ValueError("wait_s is no number; give the seconds to wait for the plan")
        began = self._clock()
        longest_s = min(max(0.0, wait_s), MAX_WAIT_MS / 1000.0)
        limit_s = longest_s + self._timeout_s if timeout_s is None else with_an_end("timeout_s", timeout_s)
        ends_at = began + limit_s
        waits_until = min(began + longest_s, ends_at - min(ANSWER_S, ANSWER_SHARE * limit_s))
        path = f"{_iteration(job, iteration)}/plan"
        while True:
            asked_at = self._clock()
            asked_s = min(max(0.0, waits_until - asked_at), POLL_S)
            query = Query("GET", f"{path}?{urlencode({'wait_ms': int(asked_s * 1000)})}")
            answer = yield from self._call(query, ends_at - asked_at, try_timeout_s=asked_s + POLL_MARGIN_S)
            if answer.status != ACCEPTED:
                return _checked_plan(read(answer, Plan), job, iteration)
            status = _checked_status(read(answer, IterationStatus), job, iteration)
            now = self._clock()
            left_s = waits_until - now
            if left_s <= 0:
                return status
            if now - asked_at < asked_s / 2:
                # Whoever does not hold the request open must not be asked without end.
                yield Pause(min(left_s, self._policy.pause_s(1, None)))

    def report_timings(
        self, job: str, iteration: int, timings: IterationTimings, *, timeout_s: float | None = None
    ) -> Flow[None]:
        """Give what ranks measured; the same twice counts once."""
        query = Query("POST", f"{_iteration(job, iteration)}/timings", timings.model_dump_json().encode())
        yield from self._call(query, self._limit_s(timeout_s))

    def timings(self, job: str, iteration: int, *, timeout_s: float | None = None) -> Flow[list[IterationTimings]]:
        """Fetch what was measured of an iteration, in the order it came."""
        return (yield from self._get(f"{_iteration(job, iteration)}/timings", _AllTimings, timeout_s)).root

    def report_node(self, name: str, report: NodeReport, *, timeout_s: float | None = None) -> Flow[Node]:
        """Say that a node is there; again and again while it is."""
        node = yield from self._send("PUT", f"/v1/nodes/{_quoted(name)}", report, Node, timeout_s)
        if node.name != name:
            raise BadAnswer(f"reported the node {name}, got {node.name}")
        return node

    def nodes(self, *, after: str = "", limit: int | None = None, timeout_s: float | None = None) -> Flow[list[Node]]:
        """List nodes, ascending by name, at most ``limit`` after the name ``after``; all if not given."""
        found: list[Node] = []
        ends_at = self._ends_at(timeout_s)
        while (count := _page(limit, len(found))) > 0:
            page = yield from self._page("/v1/nodes", NodeList, {"after": after, "limit": count}, ends_at)
            found += page.nodes
            if page.next_after is None:
                break
            after = _onward("/v1/nodes", after, page.next_after, is_onward=page.next_after > after)
        return found[:limit]

    def wait_ready(self, timeout_s: float = 60.0) -> Flow[None]:
        """Wait until the planner can plan."""
        patient = RetryPolicy(max_attempts=None, first_pause_s=READY_PAUSE_S, max_pause_s=READY_PAUSE_S)
        yield from call(Query("GET", "/readyz"), timeout_s=timeout_s, clock=self._clock, policy=patient)

    def _limit_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s

    def _ends_at(self, timeout_s: float | None) -> float:
        return self._clock() + self._limit_s(timeout_s)

    def _call(self, query: Query, timeout_s: float, *, try_timeout_s: float | None = None) -> Flow[Answer]:
        return call(query, timeout_s=timeout_s, clock=self._clock, policy=self._policy, try_timeout_s=try_timeout_s)

    def _get(self, path: str, model: type[Wire], timeout_s: float | None) -> Flow[Wire]:
        return read((yield from self._call(Query("GET", path), self._limit_s(timeout_s))), model)

    def _send(self, method: str, path: str, value: BaseModel, model: type[Wire], timeout_s: float | None) -> Flow[Wire]:
        query = Query(method, path, value.model_dump_json(exclude_unset=True).encode())
        return read((yield from self._call(query, self._limit_s(timeout_s))), model)

    def _delete(self, path: str, timeout_s: float | None) -> Flow[None]:
        yield from call_to_delete(
            Query("DELETE", path), timeout_s=self._limit_s(timeout_s), clock=self._clock, policy=self._policy
        )

    def _page(self, path: str, model: type[Wire], fields: Mapping[str, str | int | None], ends_at: float) -> Flow[Wire]:
        query = urlencode({name: value for name, value in fields.items() if value not in {None, ""}})
        return (yield from self._get(f"{path}?{query}", model, ends_at - self._clock()))


After = TypeVar("After", str, int)


def _onward(path: str, after: After | None, next_after: After, *, is_onward: bool) -> After:
    """Return where the next page begins, unless a list turns in circles."""
    if not is_onward:
        raise BadAnswer(f"the list at {path} goes on after {next_after!r}, which does not follow {after!r}")
    return next_after


def _page(limit: int | None, num_found: int) -> int:
    return PAGE if limit is None else min(PAGE, limit - num_found)


def _checked_status(status: IterationStatus, job: str, iteration: int) -> IterationStatus:
    if (status.job, status.iteration) != (job, iteration):
        raise BadAnswer(f"asked for iteration {iteration} of {job}, got {status.iteration} of {status.job}")
    return status


def _checked_plan(plan: Plan, job: str, iteration: int) -> Plan:
    if plan.iteration != iteration:
        raise BadAnswer(f"asked for the plan of iteration {iteration} of {job}, got that of {plan.iteration}")
    return plan


def _job(name: str) -> str:
    return f"/v1/jobs/{_quoted(name)}"


def _iteration(job: str, iteration: int) -> str:
    return f"{_job(job)}/iterations/{iteration:d}"


def _quoted(segment: str) -> str:
    if segment in {".", ".."}:
        # As they are they would lead to another address.
        return segment.replace(".", "%2E")
    return quote(segment, safe=":")
