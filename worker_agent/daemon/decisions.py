"""What an agent decides about an iteration, apart from doing it: pure."""

from enum import StrEnum

from planner_client.contract import FaultCode, JobSpec, MissingSources
from planner_client.errors import BadAnswer, HydraulisError, PlannerUnavailable
from worker_agent.daemon.node_batch import NodeBatch
from worker_agent.daemon.problems import AgentProblem
from worker_agent.daemon.wire import AgentCode, RankBatch

_OF_THE_MOMENT = frozenset(
    {
        FaultCode.OVERLOADED,
        FaultCode.SHUTTING_DOWN,
        FaultCode.NOT_READY,
        FaultCode.STORE_UNAVAILABLE,
        FaultCode.INTERNAL,
    }
)
"""Answers of a planner that is there, after which the same may be asked again."""

_NEED_ORDER = frozenset({"plain", "off", "next-fit"})
"""Methods that histograms do not tell enough."""


class Step(StrEnum):
    """What to do with an iteration now."""

    WAIT = "wait"
    REPORT = "report"
    REFUSE = "refuse"


def handed_in(known: NodeBatch | None, rank: int, batch: RankBatch, *, is_sent: bool) -> NodeBatch:
    """Return what the node holds after a rank handed in its part.

    As long as nothing of the iteration went to the planner, the newest hand-in counts: a trainer that was restarted
    may hold something else.

    Parameters
    ----------
    known
        What the node held before; None if nobody handed in.
    rank, batch
        Who hands in, and what.
    is_sent
        Whether the node's report may have reached the planner, which never changes what it took.

    Raises
    ------
    AgentProblem
        If the rank is none of its own list, comes after the report went without it, or differs from what was reported.
    """
    if rank not in batch.ranks:
        raise AgentProblem(
            422,
            FaultCode.INVALID_REQUEST,
            f"rank {rank} hands in for ranks {sorted(batch.ranks)} and is none of them",
            "list all ranks of this node that hand in, the sender among them",
        )
    if known is None:
        return NodeBatch.begun_by(rank, batch)
    if known.is_same(rank, batch):
        return known
    is_other_node = tuple(sorted(batch.ranks)) != known.ranks
    if not is_sent:
        return NodeBatch.begun_by(rank, batch) if is_other_node else known.with_rank(rank, batch)
    if not is_other_node and rank not in known.held:
        raise AgentProblem(
            409,
            FaultCode.ITERATION_CLOSED,
            f"the node's report went to the planner without rank {rank}, which handed in too late",
            "keep these sequences for a later iteration; a longer --rank-wait waits longer",
        )
    raise AgentProblem(
        409,
        FaultCode.BATCH_CONFLICT,
        f"rank {rank} handed in something else than what the node reported for this iteration",
        "hand in an iteration once; what was reported first holds",
    )


def next_step(batch: NodeBatch, age_s: float, wait_s: float, missing_sources: MissingSources) -> Step:
    """Decide whether the node's report goes out.

    Parameters
    ----------
    batch
        What was handed in.
    age_s
        How long ago the first rank handed in (s).
    wait_s
        How long the others are waited for (s).
    missing_sources
        What the job does without those that are missing.
    """
    if not batch.missing:
        return Step.REPORT
    if age_s < wait_s:
        return Step.WAIT
    return Step.REPORT if missing_sources == "leave-out" else Step.REFUSE


def ranks_missing(batch: NodeBatch, wait_s: float) -> AgentProblem:
    """Return why an iteration has no plan whose ranks did not all hand in."""
    return AgentProblem(
        504,
        AgentCode.RANKS_MISSING,
        f"ranks {batch.missing} of this node handed in nothing within {wait_s:g} s",
        "look why they are late; a longer --rank-wait waits longer",
    )


def reports_in_order(spec: JobSpec) -> bool:
    """Whether a job's plans depend on the order of sequences, so that a histogram will not do."""
    return spec.options.method in _NEED_ORDER


def is_final(error: HydraulisError) -> bool:
    """Whether an error tells that asking the same again is of no use."""
    if isinstance(error, BadAnswer):
        return False
    if not isinstance(error, PlannerUnavailable):
        return True
    return error.problem is not None and error.problem.code not in _OF_THE_MOMENT
