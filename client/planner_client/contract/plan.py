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
    """``count`` sequences of ``length`` tokens that ``source`` holds."""

    source: str
    length: LengthTokens
    count: Count


class GroupCount(Returned):
    """``count`` times some sequences of ``source``, of these lengths, that were to share a micro-batch."""

    source: str
    lengths: list[LengthTokens]
    count: Count


class MicroBatch(Returned):
    """Sequences that run packed together.

    ``num_tokens`` are the sequences' own; ``num_padding_tokens`` come on top where the alignment is over 1 or sequences
    are padded to the longest. ``groups`` says which of the sequences are atomic groups.
    """

    sequences: list[SequenceCount]
    groups: list[GroupCount] = Field(default_factory=list)
    num_tokens: PositiveInt
    num_padding_tokens: NonNegativeInt
    time_ms: NonNegativeFloat


class Replica(Returned):
    """One model copy, the ranks it runs on and its micro-batches in the order they run; none means idle.

    ``ranks`` are listed stage by stage; inside a stage context-parallel rank by context-parallel rank, and inside
    those tensor-parallel rank by tensor-parallel rank. ``max_tokens`` caps each micro-batch of the whole
    replica, padding included.
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
    """A candidate strategy that could not be used, and why."""

    strategy: str
    reason: str


class Plan(Returned):
    """What every rank does in one iteration.

    ``makespan_ms`` is the closed form that ``lower_bound_ms`` and ``gap`` refer to and excludes ``sync_ms``;
    ``simulated_ms`` is the event-by-event 1F1B time of the same plan. A plan without a proven bound has None
    there. ``cut_by_wall_clock`` tells that the deadline ended the search before its deterministic budget did, so
    that another run may find another plan. The scope ``all-strategies`` and ``all_strategies_lower_bound_ms`` speak of
    every strategy of the cluster that the request allows (its layouts, homogeneous ones only).
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
