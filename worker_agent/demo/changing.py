"""The demo's second part as values: what it plans by, and what its iterations showed. Pure: no I/O, no torch."""

from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from planner_client.contract import LayoutCost, Profile, ReplicaGroup
from planner_client.contract.strategy import parse_strategy
from worker_agent.demo.agreement import CHANGING_TOLERANCE, relative_difference
from worker_agent.demo.settings import DemoSettings


@dataclass(frozen=True)
class ReplicaRun:
    """One replica of an iteration.

    Attributes
    ----------
    tp, pp
        Degrees of its layout.
    ranks
        Its ranks, stage by stage.
    num_sequences, num_tokens, num_micro_batches
        What it computed.
    """

    tp: int
    pp: int
    ranks: tuple[int, ...]
    num_sequences: int
    num_tokens: int
    num_micro_batches: int

    @property
    def rank_runs(self) -> tuple[tuple[int, int], ...]:
        """First and last rank of each run of neighbouring ranks, ascending."""
        runs = groupby(enumerate(sorted(self.ranks)), key=lambda numbered: numbered[1] - numbered[0])
        neighbours = [[rank for _, rank in run] for _, run in runs]
        return tuple((run[0], run[-1]) for run in neighbours)


@dataclass(frozen=True)
class ChangingRecord:
    """One iteration of the second part.

    Attributes
    ----------
    strategy
        As it is written, such as ``(2,1)x1,(1,1)x2``.
    digest
        The plan that ran.
    loss
        Sum of token losses / global number of targets.
    reference_loss
        The same of one process that trains alone on the same batches.
    wall_ms
        Wall time of the iteration on its slowest rank, planning and the reference not included.
    propagation_ms
        By rank, what moving parameters and gradients added to the iteration; includes waiting for slower ranks.
    propagation_share
        Of the iteration on the rank that computed longest, for whom no other rank had to be waited for.
    planning_ms
        The planner's own time.
    gap
        Makespan / proven lower bound - 1, by the estimated profile; None where no bound was proven.
    """

    iteration: int
    strategy: str
    digest: str
    replicas: tuple[ReplicaRun, ...]
    loss: float
    reference_loss: float
    num_sequences: int
    num_tokens: int
    wall_ms: float
    propagation_ms: tuple[float, ...]
    propagation_share: float
    planning_ms: float
    gap: float | None

    @property
    def loss_difference(self) -> float:
        """Relative difference of the two losses."""
        return relative_difference(self.loss, self.reference_loss)


@dataclass(frozen=True)
class ChangingRun:
    """The second part: training whose strategy changes with every iteration.

    Attributes
    ----------
    profile_source
        What the profile that it was planned by is made from.
    num_ranks
        Ranks that trained.
    max_length
        Longest sequence (tokens).
    records
        Its iterations in order.

    Raises
    ------
    ValueError
        If there is no iteration.
    """

    profile_source: str
    num_ranks: int
    max_length: int
    records: tuple[ChangingRecord, ...]

    def __post_init__(self) -> None:
        if not self.records:
            raise ValueError("no iteration ran with changing strategies; give at least one strategy")

    @property
    def loss_difference(self) -> float:
        """Largest relative difference to the reference's losses over all iterations."""
        return max(record.loss_difference for record in self.records)

    @property
    def losses_agree(self) -> bool:
        """Whether the loss did not depend on the strategies, within fp32."""
        return self.loss_difference <= CHANGING_TOLERANCE

    def as_document(self) -> dict[str, Any]:
        """Return the part as JSON values."""
        return {
            "profile_source": self.profile_source,
            "num_ranks": self.num_ranks,
            "max_length": self.max_length,
            "loss_difference": self.loss_difference,
            "losses_agree": self.losses_agree,
            "iterations": [asdict(record) | {"loss_difference": record.loss_difference} for record in self.records],
        }


def estimated_profile(measured: Profile, settings: DemoSettings) -> Profile:
    """Estimate what every layout of the second part costs from the one layout that was measured, (1,1).

    A stage of a (tp, pp) replica computes 1 / (tp * pp) of a sequence's work, so ``a`` and ``b`` are divided by that
    product, and a micro-batch may hold as many times the tokens. ``c`` stays. All three are scaled from the measured
    decoder's layers to this one's. What communication inside a replica takes is left out, so that layouts look
    better than they are: good enough to divide the work, not to choose a strategy by.

    Parameters
    ----------
    measured
        The profile of the first part's decoder; its first layout is (1,1).
    settings
        Says which layouts, ranks, layers and lengths the second part has.
    """
    cost, scale = measured.layouts[0], settings.changing_layers / measured.model.num_layers
    max_tokens = changing_max_length(settings)
    kinds = dict.fromkeys((group.tp, group.pp) for groups in candidates(settings) for group in groups)
    return Profile(
        name=f"{measured.name}-estimated",
        source=(
            f"estimated, not measured: from layout (1,1) of profile {measured.name}, a and b divided by tp * pp and c "
            f"as it is, all for {settings.changing_layers} layers in place of {measured.model.num_layers}; "
            "communication inside a replica is left out"
        ),
        model=measured.model.model_copy(
            update={
                "name": f"decoder {settings.changing_layers}x{settings.hidden_size}",
                "num_layers": settings.changing_layers,
            }
        ),
        device=measured.device.model_copy(
            update={
                "memory_bytes": measured.device.memory_bytes * settings.num_ranks // settings.changing_ranks,
                "gpus_per_node": settings.changing_ranks,
            }
        ),
        sync_ms=measured.sync_ms * scale,
        layouts=[
            LayoutCost(
                tp=tp,
                pp=pp,
                a_ms_per_token2=scale * cost.a_ms_per_token2 / (tp * pp),
                b_ms_per_token=scale * cost.b_ms_per_token / (tp * pp),
                c_ms=scale * cost.c_ms,
                max_tokens=max_tokens * tp * pp,
            )
            for tp, pp in kinds
        ],
    )


def candidates(settings: DemoSettings) -> list[list[ReplicaGroup]]:
    """Return the groups of each strategy of the second part, in order."""
    return [parse_strategy(strategy) for strategy in settings.strategies]


def changing_max_length(settings: DemoSettings) -> int:
    """Return the longest sequence of the second part (tokens)."""
    return min(settings.changing_max_length, settings.max_length)
