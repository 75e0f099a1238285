"""Plans by way of the agents of the run's nodes: every rank hands in what it holds, one takes the plans for all."""

import json
import logging
import os
import time
from pathlib import Path

from planner_client.contract import FaultCode, JobSpec, Plan, SourceBatch
from planner_client.errors import BadAnswer, HydraulisError
from worker_agent.daemon.client import AgentClient
from worker_agent.daemon.node_name import default_node
from worker_agent.executor.collectives import Group
from worker_agent.trainer.faults import NoPlan
from worker_agent.trainer.rank_link import HandIns, RankLink
from worker_agent.trainer.run_nodes import RunNodes, source_of
from worker_agent.trainer.same_arguments import gather_texts
from worker_agent.trainer.service_plans import LengthsBySource, RunAsking, ServicePlans, cluster_of
from worker_agent.trainer.settings import PlannerSettings
from worker_agent.trainer.settled import settled

_TOKEN_HINT = "; give the agent a token of scope plan with --token-file"  # noqa: S105 - a sentence about tokens
_HINTS: dict[str, str] = {
    FaultCode.UNAUTHENTICATED: _TOKEN_HINT,
    FaultCode.TOKEN_EXPIRED: _TOKEN_HINT,
    FaultCode.FORBIDDEN: "; give the agent a token that may plan for this job with --token-file",
    FaultCode.JOB_CONFLICT: "; give another job=, for cluster, nodes and options of a job stay as they are",
}

MEET_PAUSE_S = 0.25
MEET_MOST_S = 15.0
"""How long a rank looks for its agent before it goes by this machine's own name."""

_log = logging.getLogger("worker_agent.trainer")


class AgentPlans(ServicePlans):
    """The plans of one run by way of agents; every rank has one and opens it.

    Sources of the job are nodes. The rank that decides takes their plans as it takes a service's, fallbacks included;
    every rank rewrites them by rank.

    Parameters
    ----------
    settings
        Whom to ask, and for what.
    folder
        Where the last good plan is kept, if anywhere.
    """

    def __init__(self, settings: PlannerSettings, folder: Path | None = None) -> None:
        super().__init__(settings, folder)
        self.who = f"agent at {settings.url}"
        self.looked_at = "`hydraulis agent` runs there and reaches the planner (GET /v1/agent)"
        self.hints = _HINTS
        self._agent: AgentClient | None = None
        self._nodes: RunNodes | None = None
        self._rank = 0
        self._link: RankLink | None = None
        self._hand_ins: HandIns | None = None

    @property
    def takes_timings(self) -> bool:
        """Whether anybody takes measured times: the job does."""
        return True

    def open_with_all(self, rank: int, num_ranks: int, group: Group, *, decides: bool) -> None:
        """Learn which rank is on which node and make ready, unless it is; a collective that every rank calls.

        Raises
        ------
        worker_agent.executor.faults.IterationFailed
            On every rank, if a rank cannot: the address cannot be used, or the run has no name.
        worker_agent.executor.faults.RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        if self._nodes is not None:
            return
        told: dict[str, str | None] = {}
        with settled("asking the node's agent", group):
            self._agent = AgentClient(self.settings.url)
            told = self._meet(self._agent)
        texts = gather_texts(json.dumps(told).encode(), group, "comparing the nodes of ranks")
        by_rank = [json.loads(text) for text in texts]
        with settled("opening the planner", group):
            job = self.settings.job or next((known["job"] for known in by_rank if known["job"]), None)
            if job is None:
                raise NoPlan(
                    f"the run has no name for the {self.who} to report it as; give job=, or start agents with --job"
                )
            self._nodes = RunNodes(tuple(known["node"] for known in by_rank))
            self._rank = rank
            self._begin_with(job, num_ranks, decides=decides)

    def close(self) -> None:
        """Give measured times a last chance, and close connections."""
        super().close()
        if self._hand_ins is not None:
            self._hand_ins.close()
        if self._agent is not None:
            self._agent.close()
        self._hand_ins = self._link = self._agent = self._nodes = None

    def forget(self) -> None:
        """Forget iterations that were announced and not run, as a run does that begins anew."""
        super().forget()
        if self._link is not None:
            self._link.forget()

    def hold(self, number: int, lengths: LengthsBySource) -> None:
        """Hand in what this rank holds of an iteration; on ranks that do not decide."""
        if self._hand_ins is not None:
            self._hand_ins.announce(number, self._own(lengths))

    def taken(self, number: int, plan: Plan, lengths: LengthsBySource) -> Plan:
        """Return the plan that runs: by rank; what was handed in for it is let go.

        Raises
        ------
        planner_client.sequences.PlanMismatch
            If the ranks do not hold what the plan names.
        """
        if self._link is None or self._nodes is None:
            raise NoPlan(f"nobody asks the {self.who} any more; build a new PlanFeed")
        self._link.let_go(number)
        return self._nodes.by_rank(plan, lengths)

    def _begin_with(self, job: str, num_ranks: int, *, decides: bool) -> None:
        agent, nodes = self._agent, self._nodes
        if agent is None or nodes is None:
            raise NoPlan("the agent was closed while it was opened")
        settings = self.settings
        cluster = cluster_of(settings, num_ranks)
        fields = {name: getattr(cluster, name) for name in type(cluster).model_fields}
        # A plan without some of the nodes is of no use: the run's ranks hold their batch and train on all of it.
        named = {"name": job, "sources": nodes.names, "missing_sources": "refuse", "learning": settings.learning}
        spec = JobSpec(**{**fields, **named})
        self._link = RankLink(agent, spec, self._rank, nodes.ranks_beside(self._rank))
        if decides:
            self._begin(RunAsking(agent.planner, spec, self._link), num_ranks)
        else:
            self._hand_ins = HandIns(self._link)

    def _batches(self, number: int, lengths: LengthsBySource) -> dict[str, SourceBatch]:
        if number < 0 or self._nodes is None or self._link is None:
            return super()._batches(number, lengths)
        self._link.hold(number, self._own(lengths))
        return self._nodes.batches(lengths)

    def _own(self, lengths: LengthsBySource) -> list[int]:
        return list(lengths.get(source_of(self._rank), ()))

    def _meet(self, agent: AgentClient) -> dict[str, str | None]:
        """Ask the agent which node this is; go by this machine's own name where there is no agent yet."""
        limit_s = min(self.timeout_s, MEET_MOST_S)
        ends_at = time.monotonic() + limit_s
        while True:
            try:
                status = agent.status(timeout_s=max(0.01, ends_at - time.monotonic()))
            except BadAnswer as stranger:
                raise NoPlan(f"what answers at {self.settings.url} is no agent: {stranger}") from stranger
            except HydraulisError as away:
                if time.monotonic() + MEET_PAUSE_S >= ends_at:
                    node = os.environ.get("HYDRAULIS_NODE") or default_node()
                    _log.warning(
                        "the %s gave no answer within %g s (%s); this is node %s", self.who, limit_s, away, node
                    )
                    return {"node": node, "job": None}
                time.sleep(MEET_PAUSE_S)
            else:
                return {"node": status.node, "job": status.job}
