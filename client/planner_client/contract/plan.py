"""Plans: strategy, placement, assignment, predictions, bound and digest of one iteration."""

import hashlib
import json
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from planner_client.contract.options import CostModel, Method
from planner_client.contract.scalars import (
    Count,
    Degree,
    LengthTokens,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Returned,
)


class SequenceCount(Returned):
    """Sequences of one length that one source holds.

    Attributes
    ----------
    source
        Who holds them.
    length
        Length of each (tokens).
    count
        How many.
    """

    source: str
    length: LengthTokens
    count: Count


class GroupCount(Returned):
    """Atomic groups of one source with the same lengths.

    Attributes
    ----------
    source
        Who holds the sequences.
    lengths
        Lengths of the sequences of one such group, ascending (tokens).
    count
        How many such groups.
    """

    source: str
    lengths: list[LengthTokens]
    count: Count


class MicroBatch(Returned):
    """Sequences that run packed together.

    Attributes
    ----------
    sequences
        What it holds, those of its groups included.
    groups
        Which of the sequences are atomic groups.
    num_tokens
        The sequences' own tokens.
    num_padding_tokens
        Tokens on top where the alignment is over 1 or sequences are padded to the longest.
    time_ms
        Predicted time on one pipeline stage, forward and backward.
    """

    sequences: list[SequenceCount]
    groups: list[GroupCount] = Field(default_factory=list)
    num_tokens: PositiveInt
    num_padding_tokens: NonNegativeInt
    time_ms: NonNegativeFloat


class Replica(Returned):
    """One model copy, the ranks it runs on and its micro-batches.

    Attributes
    ----------
    tp, cp, pp
        Degrees of its layout: tensor, context and pipeline parallel.
    device
        Type of GPU that it runs on.
    ranks
        Its ranks stage by stage; inside a stage context-parallel rank by context-parallel rank, and inside those
        tensor-parallel rank by tensor-parallel rank.
    max_tokens
        Most tokens of one micro-batch of the whole replica, padding included.
    makespan_ms
        Predicted time by the closed form.
    simulated_ms
        Predicted time under 1F1B, event by event.
    micro_batches
        In the order they run; none if the replica is idle.
    """

    tp: Degree
    cp: Degree
    pp: Degree
    device: str
    ranks: list[NonNegativeInt]
    max_tokens: LengthTokens
    makespan_ms: NonNegativeFloat
    simulated_ms: NonNegativeFloat
    micro_batches: list[MicroBatch]


class PassedOver(Returned):
    """A candidate strategy that could not be used.

    Attributes
    ----------
    strategy
        As it is written, such as ``(16,1)x1,(8,1)x6``.
    reason
        A clause with the strategy as its subject.
    """

    strategy: str
    reason: str


class Plan(Returned):
    """What every rank does in one iteration.

    Attributes
    ----------
    digest
        SHA-256 of what ranks act on: strategy, placement, assignment and counts, not timings.
    profile
        Names of the profiles it was made with, joined by ``+``.
    profile_version
        Version of what its job had learned of these profiles by then; null if it was made with them as registered.
    iteration
        The request's iteration, if it gave one.
    seed
        The request's seed.
    num_sequences
        Sequences placed.
    num_tokens
        Tokens of the sequences placed, without padding.
    dropped
        Over-long sequences that were left out.
    replicas
        The strategy's replicas, idle ones included.
    makespan_ms
        Predicted time of the slowest replica by the closed form, which bound and gap refer to; excludes ``sync_ms``.
    simulated_ms
        Time of the same plan under 1F1B, event by event.
    sync_ms
        Time of synchronisation on top of the makespan.
    lower_bound_ms
        No plan within ``bound_scope`` has a smaller makespan; null if no bound was proven.
    gap
        ``makespan_ms / lower_bound_ms - 1``; null if no bound was proven.
    bound_scope
        What the bound covers: this ``strategy``, or ``all-strategies`` of the cluster that the request allows (its
        layouts, homogeneous ones only); null if no bound was proven.
    solved_by
        Who found the assignment: the planner's ``heuristic``, the solver ``cp-sat``, or a ``fallback`` made without
        the planner.
    status
        ``optimal`` if the bound proves that no better plan exists within its scope; else ``feasible``.
    planning_ms
        The planner's own time, without process start or transport.
    method
        Who assigned the sequences, as the request asked.
    cost
        How micro-batches are charged, as the request asked.
    num_gpus
        GPUs of the cluster.
    alignment
        Multiple of tokens that each sequence is padded to.
    strategy
        The strategy as it is written, such as ``(16,1)x1,(8,1)x6``.
    all_strategies_lower_bound_ms
        Bound on the makespan over every strategy of the cluster that the request allows, where one was proven.
    cut_by_wall_clock
        The deadline ended the search before its repeatable budget did, so that another run may find another plan.
    passed_over
        Candidate strategies that could not be used.
    """

    digest: str
    profile: str
    iteration: NonNegativeInt | None
    seed: NonNegativeInt
    num_sequences: NonNegativeInt
    num_tokens: NonNegativeInt
    dropped: list[SequenceCount]
    replicas: list[Replica]
    makespan_ms: NonNegativeFloat
    simulated_ms: NonNegativeFloat
    sync_ms: NonNegativeFloat
    lower_bound_ms: NonNegativeFloat | None
    gap: NonNegativeFloat | None
    bound_scope: Literal["strategy", "all-strategies"] | None
    solved_by: Literal["heuristic", "cp-sat", "fallback"]
    status: Literal["optimal", "feasible"]
    planning_ms: NonNegativeFloat
    method: Method = "hydraulis"
    cost: CostModel = "packed"
    num_gpus: PositiveInt
    alignment: PositiveInt = 1
    strategy: str
    all_strategies_lower_bound_ms: NonNegativeFloat | None = None
    cut_by_wall_clock: bool = False
    profile_version: PositiveInt | None = None
    passed_over: list[PassedOver] = Field(default_factory=list)

    @property
    def num_ranks(self) -> int:
        """Ranks that hold a replica."""
        return sum(len(replica.ranks) for replica in self.replicas)

    @property
    def num_targets(self) -> int:
        """Tokens that have a next token to predict: all but the last of each sequence."""
        return self.num_tokens - self.num_sequences

    def expected_digest(self) -> str:
        """Digest of what ranks act on: strategy, placement, assignment and counts, not timings."""
        acted_on = {
            "iteration": self.iteration,
            "alignment": self.alignment,
            "num_sequences": self.num_sequences,
            "num_tokens": self.num_tokens,
            "dropped": [_as_row(entry) for entry in self.dropped],
            "replicas": [
                {
                    "layout": [replica.tp, replica.cp, replica.pp],
                    "device": replica.device,
                    "ranks": replica.ranks,
                    "max_tokens": replica.max_tokens,
                    "micro_batches": [
                        {
                            "sequences": [_as_row(entry) for entry in micro_batch.sequences],
                            **_groups(micro_batch),
                            "num_tokens": micro_batch.num_tokens,
                            "num_padding_tokens": micro_batch.num_padding_tokens,
                        }
                        for micro_batch in replica.micro_batches
                    ],
                }
                for replica in self.replicas
            ],
        }
        canonical = json.dumps(acted_on, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(canonical.encode("ascii")).hexdigest()

    @model_validator(mode="after")
    def _digest_holds(self) -> Self:
        expected = self.expected_digest()
        if self.digest != expected:
            raise ValueError(
                f"plan digest is {self.digest!r} but its content gives {expected!r}; the plan was changed on its way"
            )
        return self

    @classmethod
    def seal(cls, **content: Any) -> Self:
        """Build a plan from its fields and fill in the digest."""
        return cls(digest=cls.model_construct(**content).expected_digest(), **content)


def _groups(micro_batch: MicroBatch) -> dict[str, list[list[Any]]]:
    """Write groups as rows; nothing where there are none, so that plans without groups keep their digests."""
    if not micro_batch.groups:
        return {}
    return {"groups": [[group.source, group.lengths, group.count] for group in micro_batch.groups]}


def _as_row(entry: SequenceCount) -> list[str | int]:
    return [entry.source, entry.length, entry.count]
