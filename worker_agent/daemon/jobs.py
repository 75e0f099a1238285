"""The jobs that ranks of this node train: registered with the planner through the agent, and remembered."""

from collections.abc import Callable

from planner_client.contract import FaultCode, Job, JobSpec
from planner_client.errors import DeadlineExceeded, PlannerUnavailable
from worker_agent.daemon.planner_link import PlannerLink
from worker_agent.daemon.problems import AgentProblem
from worker_agent.daemon.wire import AgentCode

MAX_JOBS = 64
"""Jobs remembered; the oldest is asked for again when needed."""


class KnownJobs:
    """Jobs by name.

    Parameters
    ----------
    link
        The line to the planner.
    node
        The node's name.
    only
        The one job that is served; None for any.
    """

    def __init__(self, link: PlannerLink, node: str, only: str | None) -> None:
        self._link = link
        self._node = node
        self._only = only
        self._jobs: dict[str, Job] = {}
        self.on_anew: Callable[[str], None] = lambda _: None

    def refuse_other(self, name: str) -> None:
        """Refuse a job that this agent does not serve.

        Raises
        ------
        AgentProblem
            Code ``other-job``.
        """
        if self._only is not None and name != self._only:
            raise AgentProblem(
                403,
                AgentCode.OTHER_JOB,
                f"this node works for job {self._only} and not for {name[:128]!r}",
                "train under that name, or start the agent with another --job, or without",
            )

    async def register(self, spec: JobSpec) -> Job:
        """Register a job with the planner; one that was registered before stands where the planner gives no answer.

        Raises
        ------
        AgentProblem
            If this node does not serve the job, or is none of its sources.
        planner_client.errors.HydraulisError
            If the planner refuses it or gives no answer.
        """
        self.refuse_other(spec.name)
        if self._node not in spec.sources:
            raise AgentProblem(
                422,
                FaultCode.UNKNOWN_SOURCE,
                f"job {spec.name} has no source {self._node!r}, as which this node reports",
                "name all nodes of the run as sources of the job",
            )
        known = self._jobs.get(spec.name)
        is_same = known is not None and known.spec == spec
        if known is not None and is_same and self._link.is_reached is False:
            return known
        try:
            job = await self._link.ask(lambda client: client.register_job(spec))
        except (PlannerUnavailable, DeadlineExceeded):
            if known is not None and is_same:
                return known
            raise
        known = self._jobs.get(spec.name)
        if known is not None and known.created_at != job.created_at:
            # Somebody deleted it meanwhile; what is remembered of it is of another run.
            self.on_anew(spec.name)
        return self._keep(job)

    async def spec(self, name: str) -> JobSpec:
        """Return what a job was registered as, asking the planner if it was registered elsewhere.

        Raises
        ------
        planner_client.errors.HydraulisError
            If the planner does not know it or gives no answer.
        """
        known = self._jobs.get(name)
        if known is None:
            known = self._keep(await self._link.ask(lambda client: client.job(name)))
        return known.spec

    async def register_again(self, name: str) -> bool:
        """Register a job that the planner has lost; return whether there is anything to register."""
        known = self._jobs.pop(name, None)
        if known is None:
            return False
        self._keep(await self._link.ask(lambda client: client.register_job(known.spec)))
        return True

    def _keep(self, job: Job) -> Job:
        self._jobs.pop(job.name, None)
        self._jobs[job.name] = job
        while len(self._jobs) > MAX_JOBS:
            del self._jobs[next(iter(self._jobs))]
        return job
