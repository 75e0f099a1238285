"""What constrains a plan and the search for it."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planner_client.contract.scalars import (
    MAX_DEADLINE_MS,
    LengthTokens,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    Sent,
)
from planner_client.contract.strategy import AllowedLayout

Method = Literal["hydraulis", "plain", "off", "karmarkar-karp-tokens", "karmarkar-karp-work", "next-fit", "published"]
"""Who assigns the sequences: this planner, or what it is measured against (`planner_service.core.baselines`)."""

CostModel = Literal["packed", "padded"]
"""How a micro-batch is charged: its sequences back to back, or each as long as its longest."""


class PlanOptions(Sent):
    """What constrains a plan and the search for it.

    Attributes
    ----------
    alignment
        Each sequence counts, for caps and for time, at its length rounded up to a multiple of this (tokens).
    max_length
        Longest sequence to train on (tokens); longer ones are over-long.
    over_long
        What becomes of over-long sequences: ``reject`` refuses the batch, ``drop`` leaves them out and lists them.
    max_tokens_per_micro_batch
        Lowers the limit of every layout (tokens of one micro-batch of one replica, padding included).
    cost
        ``packed`` for executors that pack sequences back to back; ``padded`` for those that pad each sequence of a
        micro-batch to its longest, so that n sequences take n times the longest in tokens and in time.
    equal_micro_batch_counts
        Every replica runs the same number of micro-batches, none of them empty, as frameworks in lock-step need.
    micro_batch_count_multiple
        The number of micro-batches of each busy replica is a multiple of this, as interleaved pipelines need.
    at_least_stages
        Each busy replica runs at least as many micro-batches as it has pipeline stages.
    idle_replicas
        Whether a replica may be left without sequences (``allow``) or not (``forbid``).
    allowed_layouts
        Layouts that strategies may use; all of the profile's if not given.
    homogeneous
        Only strategies whose replicas all are of one kind.
    tp_inside_node
        Only layouts whose tensor-parallel groups fit into a node.
    max_process_groups
        Most distinct process groups of two ranks or more (tensor, context and pipeline groups) that the plan may need.
    deadline_ms
        Wall-clock guard; a plan is returned by then, the best known so far.
    target_gap
        The search stops once the makespan is within this share of the proven bound.
    seed
        Seed of every random choice.
    sync_ms
        Time added to every iteration for synchronisation; the profile's own value if not given.
    method
        ``hydraulis`` plans. For comparison: ``plain`` does what a plain data loader does (arrival order, round-robin
        over replicas, first-fit by tokens); ``off`` keeps the given order (each replica a run of consecutive sequences,
        a new micro-batch when the next one does not fit); ``karmarkar-karp-tokens`` and ``karmarkar-karp-work`` balance
        replicas and micro-batches by largest differencing; ``next-fit`` balances replicas and fills micro-batches
        next-fit; ``published`` is the method published with Hydraulis.
    """

    alignment: Annotated[PositiveInt, Field(le=65_536)] = 1
    max_length: LengthTokens | None = None
    over_long: Literal["reject", "drop"] = "reject"
    max_tokens_per_micro_batch: LengthTokens | None = None
    cost: CostModel = "packed"
    equal_micro_batch_counts: bool = False
    micro_batch_count_multiple: Annotated[PositiveInt, Field(le=1024)] = 1
    at_least_stages: bool = False
    idle_replicas: Literal["allow", "forbid"] = "allow"
    allowed_layouts: Annotated[list[AllowedLayout], Field(min_length=1, max_length=1024)] | None = None
    homogeneous: bool = False
    tp_inside_node: bool = False
    max_process_groups: Annotated[NonNegativeInt, Field(le=2**31 - 1)] | None = None
    deadline_ms: Annotated[PositiveInt, Field(le=MAX_DEADLINE_MS)] = 1000
    target_gap: Annotated[float, Field(ge=0, le=10)] = 0.002
    seed: Annotated[NonNegativeInt, Field(le=2**31 - 1)] = 0
    sync_ms: NonNegativeFloat | None = None
    method: Method = "hydraulis"

    @property
    def constrains_counts(self) -> bool:
        """Whether numbers of micro-batches are not free."""
        return self.equal_micro_batch_counts or self.micro_batch_count_multiple > 1 or self.at_least_stages

    @model_validator(mode="after")
    def _comparisons_take_no_constraints(self) -> Self:
        if self.method == "hydraulis":
            return self
        given = [
            name
            for name, is_set in {
                "cost": self.cost != "packed",
                "equal_micro_batch_counts": self.equal_micro_batch_counts,
                "micro_batch_count_multiple": self.micro_batch_count_multiple > 1,
                "at_least_stages": self.at_least_stages,
                "idle_replicas": self.idle_replicas != "allow",
                "max_process_groups": self.max_process_groups is not None,
            }.items()
            if is_set
        ]
        if given:
            raise ValueError(
                f"method {self.method} only serves comparison and does not honour {', '.join(given)}; "
                "leave them out, or use method hydraulis"
            )
        return self
