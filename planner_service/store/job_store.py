"""Jobs, their iterations, and who solves them."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal

from planner_service.store.plan_store import PlanRow

State = Literal["collecting", "due", "solving", "planned", "failed"]
"""``collecting``: sources may report. ``due``: all have; a solver may take it up. ``solving``: one has, and reports are
refused from now on, also after it gave the iteration back or died. ``planned`` and ``failed`` are final."""


@dataclass(frozen=True)
class JobRow:
    """A registered job.

    Attributes
    ----------
    name
        Its name, unique in the store.
    spec
        The `JobSpec` as canonical JSON, UTF-8; profiles given whole are in it.
    created_at
        When it was registered (seconds since 1970, UTC).
    """

    name: str
    spec: bytes
    created_at: float = 0.0


@dataclass(frozen=True)
class JobCounts:
    """How many iterations of a job are kept.

    Attributes
    ----------
    num_iterations, num_planned, num_failed
        All, those with a plan, and those for which there is none.
    last_iteration
        Highest number; None if there is none.
    """

    num_iterations: int
    num_planned: int
    num_failed: int
    last_iteration: int | None


@dataclass(frozen=True)
class IterationRow:
    """How far an iteration is.

    Attributes
    ----------
    job, iteration
        Which one.
    state
        See `State`.
    num_expected, num_reported
        Sources the job has, and those that reported.
    due_at
        When it is solved without those that are missing (seconds since 1970, UTC).
    finished_at
        When it was planned or failed; None before.
    num_tries
        Times that it was taken up.
    request_key
        Key of its plan in the plan store; None without one.
    summary
        What a list tells of the plan, a JSON object as UTF-8; None without one.
    problem
        The problem document that tells why there is no plan, UTF-8; None if there is one or one may come.
    measured_ms
        Longest time that a replica measured; None while no timings came.
    """

    job: str
    iteration: int
    state: State
    num_expected: int
    num_reported: int
    due_at: float
    finished_at: float | None = None
    num_tries: int = 0
    request_key: str | None = None
    summary: bytes | None = None
    problem: bytes | None = None
    measured_ms: float | None = None


@dataclass(frozen=True)
class Claim:
    """An iteration that one solver has to itself until its lease ends.

    Attributes
    ----------
    job, iteration
        Which one.
    owner
        Who took it up.
    spec
        The job's spec.
    batches
        What each source reported, by source.
    is_overdue
        Whether it was taken up at its deadline, with sources missing.
    num_tries
        Times that it was taken up, this one included.
    number
        The store's own number of the iteration, so that one of the same name, begun after this one was deleted, is not
        taken for it.
    waited_s
        How long it could have been taken up before it was.
    """

    job: str
    iteration: int
    owner: str
    spec: bytes
    batches: Mapping[str, bytes]
    is_overdue: bool
    num_tries: int
    number: int = 0
    waited_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class ReportTerms:
    """What holds for reports of a job's sources.

    Attributes
    ----------
    num_expected
        Sources the job has; the iteration is due when as many have reported.
    wait_s
        From the first report of an iteration to its deadline.
    max_open
        Most unfinished iterations that the job may have.
    useful_s
        From when no source is waited for any more until a plan is of no use; None if it always is.
    """

    num_expected: int
    wait_s: float
    max_open: int
    useful_s: float | None = None


class JobStore(ABC):
    """Jobs and iterations; see `planner_service.store.interface.Store` for what every method owes.

    Every change of an iteration is one transaction that holds its row, so that a report, a claim and a result never
    cross: whatever was reported before a claim is in it, and whatever comes after is told so.
    """

    @abstractmethod
    def put(self, row: JobRow) -> tuple[JobRow, bool]:
        """Register a job; return what stands under the name now, and whether it is new.

        Raises
        ------
        JobConflict
            If a job with another spec stands under the name; it stays.
        """

    @abstractmethod
    def get(self, name: str) -> JobRow | None:
        """Return the job of that name, or None."""

    @abstractmethod
    def page(self, *, after: str, limit: int) -> list[JobRow]:
        """Return jobs whose names come after ``after``, ascending, at most ``limit``."""

    @abstractmethod
    def counts_of(self, names: Collection[str]) -> dict[str, JobCounts]:
        """Count the iterations of some jobs, by name, as they were at one moment; jobs that are not there are left out.

        There are at most as many names as a page of a list has entries.
        """

    def counts(self, name: str) -> JobCounts:
        """Count a job's iterations; zeros if there is no such job."""
        return self.counts_of([name]).get(name, JobCounts(0, 0, 0, None))

    @abstractmethod
    def num_open(self) -> int:
        """Count the unfinished iterations of all jobs."""

    @abstractmethod
    def delete(self, name: str) -> bool:
        """Delete a job with its iterations, batches and timings (its plans stay); return whether there was one."""

    @abstractmethod
    def report(self, job: str, iteration: int, batches: Mapping[str, bytes], terms: ReportTerms) -> IterationRow:
        """Keep what sources hold of an iteration, all of it or nothing.

        The first report begins the iteration and its wait; the last one makes it due. What was reported before and is
        the same is taken as said, also when the iteration is closed. Listeners hear when it becomes due.

        Parameters
        ----------
        batches
            Canonical JSON by source.

        Raises
        ------
        JobUnknown
            If there is no such job.
        BatchConflict
            If a source reported something else before.
        IterationClosed
            If a source that has not reported comes after the iteration was taken up or finished.
        TooManyOpen
            If this would begin one iteration too many.
        """

    @abstractmethod
    def iteration(self, job: str, iteration: int) -> IterationRow | None:
        """Return an iteration, or None."""

    @abstractmethod
    def iterations(self, job: str, *, after: int | None, limit: int, newest_first: bool = False) -> list[IterationRow]:
        """Return iterations after a number, ascending; or before it, descending; at most ``limit``."""

    @abstractmethod
    def sources(self, job: str, iteration: int) -> list[str]:
        """Return the sources that reported, ascending."""

    @abstractmethod
    def claim(self, owner: str, lease_s: float, solve_s: float = 0.0) -> Claim | None:
        """Take up the next iteration that is due or overdue, or whose owner's lease ended; None if there is none.

        Jobs take turns: the job served longest ago comes first, and of it the lowest iteration. Of several who claim
        at once no two get the same one. Iterations whose plan is of no use any more are left out; those whose plan
        will probably not be there in time come after all others.

        A clock that is set back keeps nothing from being taken up: what was due is so still, who is missing is waited
        for as long as the job says, from now on, and a lease ends ten minutes after its time at most.

        Parameters
        ----------
        solve_s
            How long a plan usually takes.
        """

    @abstractmethod
    def give_up_late(self, problem: bytes) -> int:
        """Fail iterations that nobody took up while a plan was of use, a bounded number each call; tell listeners.

        Parameters
        ----------
        problem
            What is told of why they have no plan.

        Returns
        -------
        int
            How many these were. Those of a job that another transaction holds are left for the next call.
        """

    @abstractmethod
    def next_late_at(self) -> tuple[float, float] | None:
        """Return when the next iteration is to be given up, and what the time is now (seconds since 1970, UTC)."""

    @abstractmethod
    def next_due_at(self) -> tuple[float, float] | None:
        """Return when the next iteration may be claimed, and what the time is now (seconds since 1970, UTC)."""

    @abstractmethod
    def renew(self, claim: Claim, lease_s: float) -> bool:
        """Lengthen a lease; return whether the iteration is still the owner's."""

    @abstractmethod
    def give_back(self, claim: Claim) -> None:
        """Let others claim the iteration at once; does nothing if it is no longer the owner's."""

    @abstractmethod
    def finish(self, claim: Claim, plan: PlanRow, summary: bytes) -> IterationRow | None:
        """Store an iteration's plan, unless it is finished already, and tell listeners.

        The plan is put in the same transaction. Whoever comes first wins, owner or not: a plan that was found is not
        lost because a lease ended.

        Returns
        -------
        IterationRow or None
            What the iteration is now; None if it was deleted meanwhile.

        Raises
        ------
        PlanStands
            If the request has another plan, whose summary is another one, too; nothing is stored.
        """

    @abstractmethod
    def fail(self, claim: Claim, problem: bytes) -> IterationRow | None:
        """Store why an iteration has no plan, unless it is finished or another has it now, and tell listeners."""

    @abstractmethod
    def put_timings(self, job: str, iteration: int, key: str, body: bytes, measured_ms: float) -> bool:
        """Keep measured times under a key of their own; return whether they are new.

        ``measured_ms`` raises the iteration's, if it is larger.

        Raises
        ------
        JobUnknown
            If there is no such iteration.
        """

    @abstractmethod
    def timings(self, job: str, iteration: int) -> list[bytes]:
        """Return the measured times of an iteration, in the order they came."""
