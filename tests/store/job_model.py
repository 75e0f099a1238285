"""What a job store owes, as dictionaries: slow, alone, and easy to believe."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn

from planner_service.store import Claim, IterationRow, JobCounts, JobRow, PlanRow, ReportTerms


class Refused(Exception):  # noqa: N818 - names what the model answered
    """The model refuses, with the name of the store's fault and what it tells."""


def refuse(*told: object) -> NoReturn:
    raise Refused(*told)


@dataclass
class ModelIteration:
    """One iteration; field names are those of `IterationRow` and `Claim`."""

    began_at: float
    due_at: float
    claimable_at: float | None
    num_expected: int
    useless_at: float = math.inf
    state: str = "collecting"
    batches: dict[str, bytes] = field(default_factory=dict)
    owner: str | None = None
    num_tries: int = 0
    finished_at: float | None = None
    request_key: str | None = None
    summary: bytes | None = None
    problem: bytes | None = None
    timings: dict[str, bytes] = field(default_factory=dict)
    measured_ms: float | None = None

    @property
    def is_final(self) -> bool:
        return self.state in {"planned", "failed"}

    def is_claimable(self, now: float) -> bool:
        return self.claimable_at is not None and self.claimable_at <= now

    def is_of_use(self, at: float) -> bool:
        return self.useless_at > at

    def settle(self, state: str, now: float) -> None:
        self.state, self.finished_at, self.claimable_at, self.owner = state, now, None, None


@dataclass
class ModelJob:
    """One job; jobs with equal turns come in the order they were registered."""

    row: JobRow
    place: int
    served: int = 0
    iterations: dict[int, ModelIteration] = field(default_factory=dict)

    @property
    def num_open(self) -> int:
        return sum(not iteration.is_final for iteration in self.iterations.values())


@dataclass(frozen=True)
class Held:
    """A claim that was handed out, and what it was on."""

    claim: Claim
    iteration: ModelIteration


class JobModel:
    """The jobs, iterations and plans of one database, and its clock."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.jobs: dict[str, ModelJob] = {}
        self.plans: dict[str, tuple[PlanRow, float]] = {}
        self._num_turns = 0
        self._num_registered = 0

    def put(self, name: str, spec: bytes) -> tuple[JobRow, bool]:
        if name in self.jobs:
            row = self.jobs[name].row
            return (row, False) if row.spec == spec else refuse("JobConflict", name)
        self._num_registered += 1
        self.jobs[name] = ModelJob(JobRow(name, spec, self.now), self._num_registered)
        return self.jobs[name].row, True

    def delete(self, name: str) -> bool:
        return self.jobs.pop(name, None) is not None

    def report(self, name: str, number: int, batches: Mapping[str, bytes], terms: ReportTerms) -> IterationRow:
        if name not in self.jobs:
            refuse("JobUnknown", name)
        job = self.jobs[name]
        iteration = job.iterations.get(number)
        if iteration is None:
            if job.num_open >= terms.max_open:
                refuse("TooManyOpen", job.num_open)
            due_at = self.now + terms.wait_s
            iteration = job.iterations[number] = ModelIteration(self.now, due_at, due_at, terms.num_expected)
            iteration.useless_at = due_at + (math.inf if terms.useful_s is None else terms.useful_s)
        for source, body in sorted(batches.items()):
            if iteration.batches.get(source, body) != body:
                refuse("BatchConflict", source)
        new = sorted(batches.keys() - iteration.batches.keys())
        if new and iteration.state not in {"collecting", "due"}:
            refuse("IterationClosed", new[0])
        iteration.batches |= batches
        if iteration.state == "collecting" and len(iteration.batches) >= iteration.num_expected:
            iteration.state, iteration.claimable_at = "due", self.now
            iteration.useless_at = self.now + (math.inf if terms.useful_s is None else terms.useful_s)
        return self.row(name, number)

    def next(self, solve_s: float) -> tuple[str, int] | None:
        """Whose turn it is."""
        return self._next(self.now + solve_s) or self._next(self.now)

    def _next(self, of_use_at: float) -> tuple[str, int] | None:
        waiting = {
            name: [
                number
                for number, iteration in job.iterations.items()
                if iteration.is_claimable(self.now) and iteration.is_of_use(of_use_at)
            ]
            for name, job in self.jobs.items()
        }
        turns = sorted((self.jobs[name].served, self.jobs[name].place, name) for name in waiting if waiting[name])
        return (turns[0][2], min(waiting[turns[0][2]])) if turns else None

    def give_up_late(self, problem: bytes) -> int:
        late = [
            iteration
            for job in self.jobs.values()
            for iteration in job.iterations.values()
            if iteration.is_claimable(self.now) and not iteration.is_of_use(self.now)
        ]
        for iteration in late:
            iteration.settle("failed", self.now)
            iteration.problem = problem
        return len(late)

    def take(self, name: str, number: int, owner: str, lease_s: float) -> ModelIteration:
        self._num_turns += 1
        self.jobs[name].served = self._num_turns
        iteration = self.jobs[name].iterations[number]
        iteration.state, iteration.owner, iteration.claimable_at = "solving", owner, self.now + lease_s
        iteration.num_tries += 1
        return iteration

    def is_there(self, held: Held) -> bool:
        job = self.jobs.get(held.claim.job)
        return job is not None and job.iterations.get(held.claim.iteration) is held.iteration

    def is_owners(self, held: Held) -> bool:
        iteration = held.iteration
        return (
            self.is_there(held)
            and iteration.state == "solving"
            and (iteration.owner, iteration.num_tries) == (held.claim.owner, held.claim.num_tries)
        )

    def finish(self, held: Held, plan: PlanRow, summary: bytes) -> IterationRow | None:
        if not self.is_there(held):
            return None
        if not held.iteration.is_final:
            stands, _ = self.plans.setdefault(plan.request_key, (plan, self.now))
            if stands != plan:
                refuse("PlanStands", stands)
            held.iteration.settle("planned", self.now)
            held.iteration.request_key, held.iteration.summary = plan.request_key, summary
        return self.row(held.claim.job, held.claim.iteration)

    def fail(self, held: Held, problem: bytes) -> IterationRow | None:
        if not self.is_there(held):
            return None
        is_anothers = held.iteration.num_tries != held.claim.num_tries or held.iteration.owner not in {
            None,
            held.claim.owner,
        }
        if not held.iteration.is_final and not is_anothers:
            held.iteration.settle("failed", self.now)
            held.iteration.problem = problem
        return self.row(held.claim.job, held.claim.iteration)

    def put_timings(self, name: str, number: int, key: str, body: bytes, measured_ms: float) -> bool:
        iteration = self.jobs[name].iterations.get(number) if name in self.jobs else None
        if iteration is None:
            refuse("JobUnknown", name)
        if key in iteration.timings:
            return False
        iteration.timings[key] = body
        iteration.measured_ms = max(iteration.measured_ms or 0.0, measured_ms)
        return True

    def delete_plans(self, digest: str) -> int:
        named = self._named()
        return self._drop_plans(
            key for key, (plan, _) in self.plans.items() if plan.digest == digest and key not in named
        )

    def prune(self, keep_iterations_s: float, keep_plans_s: float) -> int:
        num_gone = 0
        for job in self.jobs.values():
            for number, iteration in list(job.iterations.items()):
                is_old = iteration.finished_at is not None and iteration.finished_at < self.now - keep_iterations_s
                is_forgotten = iteration.is_claimable(self.now) and iteration.began_at < self.now - keep_iterations_s
                if is_old or is_forgotten:
                    del job.iterations[number]
                    num_gone += 1
        named = self._named()
        return num_gone + self._drop_plans(
            key for key, (_, at) in self.plans.items() if at < self.now - keep_plans_s and key not in named
        )

    def row(self, name: str, number: int) -> IterationRow:
        iteration = self.jobs[name].iterations[number]
        same = ("state", "num_expected", "due_at", "finished_at", "num_tries", "request_key", "summary", "problem")
        return IterationRow(
            job=name,
            iteration=number,
            num_reported=len(iteration.batches),
            measured_ms=iteration.measured_ms,
            **{name: getattr(iteration, name) for name in same},
        )

    def counts(self, name: str) -> JobCounts:
        states = [iteration.state for iteration in self.jobs[name].iterations.values()]
        last = max(self.jobs[name].iterations, default=None)
        return JobCounts(len(states), states.count("planned"), states.count("failed"), last)

    def next_due_at(self) -> tuple[float, float] | None:
        times = [
            iteration.claimable_at
            for job in self.jobs.values()
            for iteration in job.iterations.values()
            if iteration.claimable_at is not None
        ]
        return (min(times), self.now) if times else None

    def next_late_at(self) -> tuple[float, float] | None:
        times = [
            max(iteration.claimable_at, iteration.useless_at)
            for job in self.jobs.values()
            for iteration in job.iterations.values()
            if iteration.claimable_at is not None and iteration.useless_at < math.inf
        ]
        return (min(times), self.now) if times else None

    def _named(self) -> set[str | None]:
        return {iteration.request_key for job in self.jobs.values() for iteration in job.iterations.values()}

    def _drop_plans(self, keys: Iterable[str]) -> int:
        gone = list(keys)
        for key in gone:
            del self.plans[key]
        return len(gone)
