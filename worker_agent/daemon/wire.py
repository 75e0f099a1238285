"""What ranks and the agent of their node say to one another; `docs/agent.md` shows it at work."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planner_client.contract import NodeDevice, Plan, ReplicaTiming
from planner_client.contract.request import ListedLengths
from planner_client.contract.scalars import (
    MAX_ATOMIC_GROUPS,
    MAX_GPUS,
    NonNegativeFloat,
    NonNegativeInt,
    Returned,
    Sent,
)

DEFAULT_PORT = 8471
DEFAULT_SOCKET = "/run/hydraulis/agent.sock"
MAX_RANKS_OF_NODE = 4096

RankNumber = Annotated[int, Field(ge=0, lt=MAX_GPUS, strict=True)]
IndexGroup = Annotated[list[NonNegativeInt], Field(min_length=2, max_length=1024)]

NodeIterationState = Literal["waiting-for-ranks", "reporting", "reported", "planned", "failed"]
"""How far an iteration is on this node: ranks hand in; the node's report goes to the planner; the planner has it and a
plan is waited for; the plan is there; there is none."""


class AgentCode(StrEnum):
    """What an agent refuses, beside what the planner does (`planner_client.contract.FaultCode`)."""

    NOT_HANDED_IN = "not-handed-in"
    RANKS_MISSING = "ranks-missing"
    OTHER_JOB = "other-job"
    PLANNER_AWAY = "planner-away"


class RankBatch(Sent):
    """What one rank holds of one iteration's batch.

    Attributes
    ----------
    ranks
        All ranks of this node that hand in something for the iteration, the sender among them.
    lengths
        Lengths of the rank's own sequences in the order held (tokens).
    groups
        Indices of sequences that must share a micro-batch; each names sequences of this rank alone.
    """

    ranks: Annotated[list[RankNumber], Field(min_length=1, max_length=MAX_RANKS_OF_NODE)]
    lengths: ListedLengths
    groups: Annotated[list[IndexGroup], Field(max_length=MAX_ATOMIC_GROUPS)] = Field(default_factory=list)

    @model_validator(mode="after")
    def _ranks_are_distinct(self) -> Self:
        if len(set(self.ranks)) != len(self.ranks):
            raise ValueError(f"ranks are {self.ranks}; name each rank of the node once")
        return self

    @model_validator(mode="after")
    def _groups_are_held(self) -> Self:
        seen: set[int] = set()
        for group in self.groups:
            for index in group:
                if index >= len(self.lengths):
                    raise ValueError(f"a group names sequence {index} but the rank holds {len(self.lengths)}")
                if index in seen:
                    raise ValueError(f"sequence {index} is in two groups; a sequence is in one group at most, once")
                seen.add(index)
        return self


class IterationOfNode(Returned):
    """How far an iteration is on this node.

    Attributes
    ----------
    job, iteration
        Which one.
    state
        ``waiting-for-ranks``, ``reporting``, ``reported``, ``planned`` or ``failed``.
    missing_ranks
        Ranks that are waited for.
    waits_because
        What the planner last answered, where it is not reached; null otherwise.
    code
        Why there is no plan; null if there is one or one may come.
    """

    job: str
    iteration: NonNegativeInt
    state: NodeIterationState
    missing_ranks: list[int]
    waits_because: str | None = None
    code: str | None = None


class Share(Returned):
    """Sequences of one rank that run in one micro-batch.

    Attributes
    ----------
    replica, micro_batch
        Which one, as numbered in the plan.
    indices
        Which of the rank's sequences, in the order the plan takes them.
    """

    replica: NonNegativeInt
    micro_batch: NonNegativeInt
    indices: list[NonNegativeInt]


class RankPart(Returned):
    """Where the sequences of one rank go.

    Attributes
    ----------
    node
        The node, which is a source of the plan.
    rank
        The rank.
    digest
        Digest of the plan.
    shares
        By replica and micro-batch, ascending; those without a sequence of this rank are left out.
    dropped
        Ascending indices of sequences that the plan leaves out.
    """

    node: str
    rank: NonNegativeInt
    digest: str
    shares: list[Share]
    dropped: list[NonNegativeInt]


class PlanOfRank(Returned):
    """A plan and one rank's part of it.

    Attributes
    ----------
    part
        Where the rank's own sequences go.
    plan
        The plan, the same bytes for every rank.
    """

    part: RankPart
    plan: Plan


class RankTimings(Sent):
    """What one rank measured of an iteration.

    Attributes
    ----------
    digest
        Digest of the plan that was run.
    ranks
        All ranks of this node that hand in times of the iteration, the sender among them.
    replicas
        What it measured; nothing if it was idle.
    solved_by
        Who made the plan: the ``planner``, or a rank by itself as a ``fallback``.
    """

    digest: Annotated[str, Field(min_length=1, max_length=128)]
    ranks: Annotated[list[RankNumber], Field(min_length=1, max_length=MAX_RANKS_OF_NODE)]
    replicas: Annotated[list[ReplicaTiming], Field(max_length=MAX_GPUS)] = Field(default_factory=list)
    solved_by: Literal["planner", "fallback"] = "planner"

    @model_validator(mode="after")
    def _replicas_may_be_of_a_plan(self) -> Self:
        # So that what ranks measured together is a report that the planner takes.
        for timing in self.replicas:
            if timing.replica >= MAX_GPUS:
                raise ValueError(f"replica is {timing.replica}; a plan has at most {MAX_GPUS}, numbered from 0")
        return self


class AgentStatus(Returned):
    """What an agent says of itself.

    Attributes
    ----------
    node
        The node's name, as which its sequences are reported.
    agent_version
        Its version.
    instance
        Another one each time the agent starts.
    planner_url
        Whom it asks.
    job
        The one job it serves; null if it serves any.
    devices
        What the node computes with.
    is_planner_reached
        Whether the planner took the last report of the node; null before the first.
    planner_seen_age_s
        How long ago that last happened (s); null if never.
    num_iterations
        Iterations that it knows of.
    num_timings_waiting
        Measured times that the planner has not taken yet.
    """

    node: str
    agent_version: str
    instance: str
    planner_url: str
    job: str | None
    devices: list[NodeDevice]
    is_planner_reached: bool | None = None
    planner_seen_age_s: NonNegativeFloat | None = None
    num_iterations: NonNegativeInt = 0
    num_timings_waiting: NonNegativeInt = 0
