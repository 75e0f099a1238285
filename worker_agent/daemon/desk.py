"""What ranks ask of their agent: take in what they hold, give them the plan and their part of it."""

import asyncio
import logging
import time
from collections.abc import Callable

from planner_client.contract import FaultCode, IterationStatus, Plan, Problem
from planner_client.errors import HydraulisError, RequestRefused
from worker_agent.daemon.decisions import Step, handed_in, is_final, next_step, ranks_missing, reports_in_order
from worker_agent.daemon.jobs import KnownJobs
from worker_agent.daemon.metrics import AgentMetrics
from worker_agent.daemon.node_iteration import NodeIteration, PlanHere, changed_within
from worker_agent.daemon.planner_link import PlannerLink, retry_after_s
from worker_agent.daemon.problems import AgentProblem, planner_away, problem_of
from worker_agent.daemon.settings import AgentSettings
from worker_agent.daemon.wire import AgentCode, IterationOfNode, RankBatch

MAX_ITERATIONS = 512
"""Iterations remembered. Ranks hand in again what was forgotten, and the planner has its plan."""

KEEP_S = 600.0
LINGER_S = 5.0
"""How long an iteration is worked on that no rank asks for any more; asked for again, it is taken up again."""

POLL_S = 3.0
"""Longest wait asked of the planner: a connection that died silently is noticed soon after."""

AWAY_AFTER_S = 1.0
"""Ranks are told that the planner is away after it was not reached for so long."""

FIRST_PAUSE_S = 0.05
MAX_PAUSE_S = 1.0

_log = logging.getLogger("hydraulis.agent")


class AgentDesk:
    """Answers ranks. All on one event loop.

    Parameters
    ----------
    settings
        How the agent runs.
    link, jobs, metrics
        The line to the planner, the jobs of this node, who counts.
    clock
        Monotonic time (s).
    """

    def __init__(
        self,
        settings: AgentSettings,
        link: PlannerLink,
        jobs: KnownJobs,
        metrics: AgentMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._link = link
        self._jobs = jobs
        jobs.on_anew = self.forget_job
        self._metrics = metrics
        self._clock = clock
        self._iterations: dict[tuple[str, int], NodeIteration] = {}
        self._closing = asyncio.Event()

    @property
    def num_iterations(self) -> int:
        """Iterations that are known."""
        return len(self._iterations)

    def hand_in(self, job: str, iteration: int, rank: int, batch: RankBatch) -> IterationOfNode:
        """Take in what a rank holds; the same again changes nothing, but tries again what failed.

        Raises
        ------
        AgentProblem
            Codes ``other-job``, ``invalid-request``, ``iteration-closed``, ``batch-conflict``, ``overloaded``.
        """
        self._jobs.refuse_other(job)
        now = self._clock()
        entry = self._iterations.get((job, iteration))
        held = handed_in(
            None if entry is None else entry.batch, rank, batch, is_sent=entry is not None and entry.is_sent
        )
        if entry is None:
            self._forget_old(now)
            entry = NodeIteration(job, iteration, held, began_at=now, wanted_at=now)
            self._iterations[job, iteration] = entry
        entry.hold(held, now)
        self._ensure_work(entry)
        return entry.status()

    async def plan(self, job: str, iteration: int, rank: int, wait_s: float) -> bytes | IterationOfNode:
        """Return a `PlanOfRank` as JSON; how far the iteration is if there is no plan within the wait.

        Raises
        ------
        AgentProblem
            Code ``not-handed-in`` if the rank is to hand in first, ``planner-away``, ``shutting-down``.
        AnsweredWith
            Why there is no plan.
        """
        entry = self._handed_in(job, iteration, rank)
        ends_at = self._clock() + wait_s
        entry.num_asking += 1
        try:
            while True:
                entry.wanted_at = now = self._clock()
                if entry.found is not None:
                    return entry.found.answer(rank)
                if entry.problem is not None:
                    raise AnsweredWith(entry.problem)
                if self._closing.is_set():
                    raise AgentProblem(503, FaultCode.SHUTTING_DOWN, "the agent is shutting down", "ask again")
                if self._is_away(entry, now):
                    raise AnsweredWith(planner_away(entry.waits_because or "it is not reached"))
                if now >= ends_at:
                    return entry.status()
                self._ensure_work(entry)
                await changed_within(entry.changed, min(ends_at - now, AWAY_AFTER_S))
        finally:
            entry.num_asking -= 1

    def status(self, job: str, iteration: int, rank: int) -> IterationOfNode:
        """Return how far an iteration is.

        Raises
        ------
        AgentProblem
            Code ``not-handed-in`` if the rank is to hand in first.
        """
        entry = self._handed_in(job, iteration, rank)
        # Whoever asks how far it is wants it.
        entry.wanted_at = self._clock()
        self._ensure_work(entry)
        return entry.status()

    def plan_of(self, job: str, iteration: int) -> Plan | None:
        """Return an iteration's plan if it is here."""
        entry = self._iterations.get((job, iteration))
        return None if entry is None or entry.found is None else entry.found.plan

    def forget_job(self, job: str) -> None:
        """Forget the iterations of a job that was registered anew; ranks that wait are told to hand in again."""
        for key in [key for key in self._iterations if key[0] == job]:
            entry = self._iterations[key]
            self._forget(key)
            entry.problem = _not_handed_in(job, key[1]).problem
            entry.tell()

    def begin_shutdown(self) -> None:
        """Let those who wait go."""
        self._closing.set()
        for entry in self._iterations.values():
            entry.tell()

    async def close(self) -> None:
        """Stop all work."""
        self.begin_shutdown()
        works = [entry.work for entry in self._iterations.values() if entry.work is not None]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)

    def _handed_in(self, job: str, iteration: int, rank: int) -> NodeIteration:
        entry = self._iterations.get((job, iteration))
        if entry is None or rank not in entry.batch.held:
            raise _not_handed_in(job, iteration)
        return entry

    def _is_away(self, entry: NodeIteration, now: float) -> bool:
        since = entry.failing_since
        return since is not None and now - since > AWAY_AFTER_S and not self._link.is_reached

    def _ensure_work(self, entry: NodeIteration) -> None:
        if not entry.is_finished and (entry.work is None or entry.work.done()) and not self._closing.is_set():
            entry.work = asyncio.create_task(self._work(entry))

    async def _work(self, entry: NodeIteration) -> None:
        """Report an iteration and fetch its plan, for as long as anybody wants it."""
        pause_s = FIRST_PAUSE_S
        while not entry.is_finished and entry.is_wanted(self._clock(), LINGER_S):
            try:
                await self._advance(entry)
                pause_s = FIRST_PAUSE_S
                continue
            except AgentProblem as refused:
                self._fail(entry, refused.problem)
                return
            except HydraulisError as error:
                if not await self._is_registered_again(entry, error):
                    if is_final(error):
                        self._fail(entry, problem_of(error))
                        return
                    entry.failing_since = entry.failing_since or self._clock()
                    entry.waits_because = str(error)
                wait_s = max(pause_s, min(retry_after_s(error), MAX_PAUSE_S))
                pause_s = min(MAX_PAUSE_S, 2 * pause_s)
            except Exception as defect:  # noqa: BLE001 - ranks that wait must hear of whatever it is
                _log.exception("unexpected_error", extra={"fields": {"job": entry.job, "iteration": entry.iteration}})
                self._fail(entry, problem_of(defect))
                return
            await asyncio.sleep(wait_s)

    async def _advance(self, entry: NodeIteration) -> None:
        """Do what is next; whatever is awaited here ends within the line's own timeouts."""
        if not entry.is_reported and not await self._report(entry):
            return
        found = await self._link.ask(lambda client: client.iteration_plan(entry.job, entry.iteration, wait_s=POLL_S))
        entry.failing_since = entry.waits_because = None
        if isinstance(found, IterationStatus):
            return
        parts = entry.batch.parts(found, self._settings.node)
        entry.found = PlanHere(found, found.model_dump_json().encode(), parts)
        seconds = self._clock() - (entry.completed_at or entry.began_at)
        self._metrics.observe_plan(seconds)
        _log.info(
            "planned",
            extra={
                "fields": {
                    "job": entry.job,
                    "iteration": entry.iteration,
                    "digest": found.digest,
                    "ms": round(1000 * seconds, 1),
                }
            },
        )
        entry.tell()

    async def _report(self, entry: NodeIteration) -> bool:
        """Send the node's report, if it is time; return whether the planner has it."""
        spec = await self._jobs.spec(entry.job)
        changed = entry.changed
        batch, age_s, wait_s = entry.batch, self._clock() - entry.began_at, self._settings.rank_wait_s
        step = next_step(batch, age_s, wait_s, spec.missing_sources)
        if step is Step.REFUSE:
            raise ranks_missing(batch, wait_s)
        if step is Step.WAIT:
            await changed_within(changed, wait_s - age_s)
            return False
        entry.is_sent = True
        report = batch.report(in_order=reports_in_order(spec))
        await self._link.ask(lambda client: client.report(entry.job, entry.iteration, self._settings.node, report))
        entry.is_reported = True
        entry.failing_since = entry.waits_because = None
        return True

    async def _is_registered_again(self, entry: NodeIteration, error: HydraulisError) -> bool:
        if not isinstance(error, RequestRefused) or error.problem.code != FaultCode.UNKNOWN_JOB:
            return False
        entry.is_reported = False
        try:
            return await self._jobs.register_again(entry.job)
        except HydraulisError:
            return False

    def _fail(self, entry: NodeIteration, problem: Problem) -> None:
        entry.problem = problem
        entry.began_at = self._clock()
        self._metrics.observe_failure(problem.code)
        _log.log(
            # What nobody waits for is no trouble: ranks go on by plans of their own, and some still hand in.
            logging.WARNING if entry.num_asking else logging.INFO,
            "no_plan",
            extra={
                "fields": {
                    "job": entry.job,
                    "iteration": entry.iteration,
                    "code": problem.code,
                    "detail": problem.detail,
                }
            },
        )
        entry.tell()

    def _forget_old(self, now: float) -> None:
        """Make room: what nobody wants any more goes first."""
        old = [
            key for key, entry in self._iterations.items() if not entry.num_asking and now - entry.wanted_at > KEEP_S
        ]
        for key in old:
            self._forget(key)
        while len(self._iterations) >= MAX_ITERATIONS:
            unwanted = [
                key
                for key, entry in self._iterations.items()
                if not entry.num_asking and (entry.is_finished or not entry.is_wanted(now, LINGER_S))
            ]
            if not unwanted:
                raise AgentProblem(
                    429,
                    FaultCode.OVERLOADED,
                    f"ranks wait for the plans of {MAX_ITERATIONS} iterations already",
                    "hand in fewer iterations ahead",
                )
            self._forget(min(unwanted, key=lambda key: self._iterations[key].wanted_at))

    def _forget(self, key: tuple[str, int]) -> None:
        entry = self._iterations.pop(key)
        if entry.work is not None:
            entry.work.cancel()


def _not_handed_in(job: str, iteration: int) -> AgentProblem:
    return AgentProblem(
        404,
        AgentCode.NOT_HANDED_IN,
        f"the rank handed in nothing for iteration {iteration} of job {job[:128]!r}, or the agent was started or the "
        "job registered anew since",
        "hand in what the rank holds, then ask again",
    )


class AnsweredWith(Exception):  # noqa: N818 - an answer as good as any
    """Answer with this problem document, as it is."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem
