"""Runs one iteration by a plan on all ranks: agree, exchange, compute, sum, step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner_client.contract import Plan, ReplicaTiming
from worker_agent.executor.agree import agree_on_plan, settle
from worker_agent.executor.collectives import Group, collective_device, sum_in_place
from worker_agent.executor.exchange import HeldSequences, MicroBatchTokens, SequenceExchange
from worker_agent.executor.faults import IterationFailed, LayoutRefused, NotFinite
from worker_agent.executor.gradients import FlatGradients
from worker_agent.executor.layout import RankRole, rank_roles
from worker_agent.executor.loss import next_token_targets, scaled_loss, sequence_losses, token_losses
from worker_agent.executor.measure import Stopwatch
from worker_agent.executor.routes import default_rank_of_source, sequence_routes

_REMEDY = "lower the learning rate, or restart from the last checkpoint"


@dataclass(frozen=True)
class IterationResult:
    """What one rank knows after an iteration.

    Attributes
    ----------
    loss
        Mean token loss (nats) of the global batch; the same on every rank, whatever the plan. 0 without targets.
    num_targets
        Tokens predicted in the whole iteration; without any, the optimizer did not step.
    wall_ms
        The whole iteration on this rank, waiting for other ranks included.
    compute_ms
        Forward and backward of this rank's micro-batches.
    cpu_ms
        CPU time of this process during ``compute_ms``.
    exchange_ms
        Comparing plans and exchanging sequences, waiting for other ranks included.
    reduce_ms
        Summing loss and gradients, waiting for slower ranks included.
    step_ms
        The optimizer's step.
    micro_batch_ms
        Forward and backward of each micro-batch, in the order they ran.
    timing
        What the planner learns from; None on an idle rank.
    sequence_losses
        Summed token loss of each sequence this rank holds, by source, in the order held; NaN for a dropped sequence.
        None unless the runner was built to return them.
    """

    loss: float
    num_targets: int
    wall_ms: float
    compute_ms: float
    cpu_ms: float
    exchange_ms: float
    reduce_ms: float
    step_ms: float
    micro_batch_ms: tuple[float, ...]
    timing: ReplicaTiming | None
    sequence_losses: Mapping[str, npt.NDArray[np.float64]] | None = None


@dataclass(frozen=True, eq=False)
class _Computed:
    """One rank's part of the computation, or what kept it from finishing."""

    loss_sum: float = 0.0
    num_targets: int = 0
    micro_batch_ms: tuple[float, ...] = ()
    by_sequence: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    fault: Exception | None = None


class IterationRunner:
    """Runs iterations by plans.

    Every rank of the group builds one, around a model with the same weights, and calls `run` with the same plan. The
    group decides how long a rank waits for another: start it with a timeout (``init_process_group(timeout=...)``).

    Parameters
    ----------
    model
        Called as ``model(tokens, cu_seqlens, max_seqlen)``, returns logits of shape (tokens, vocab size). All trained
        weights have one dtype and lie on one device. If it has a ``vocab_size``, token ids are checked against it.
    optimizer
        Steps once an iteration, on gradients that are the same on every rank.
    rank_of_source
        The rank that holds each source's sequences; ``rank-<r>`` on rank r by default.
    return_sequence_losses
        Whether results carry the loss of each sequence this rank holds.
    group
        The process group; by default all ranks. Plans speak of ranks of this group.

    Raises
    ------
    ValueError
        If the model's trained weights differ in dtype or device, or there are none.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        rank_of_source: Mapping[str, int] | None = None,
        return_sequence_losses: bool = False,
        group: Group = None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._group = group
        self._rank = dist.get_rank(group)
        self._world_size = dist.get_world_size(group)
        named = default_rank_of_source(self._world_size) if rank_of_source is None else rank_of_source
        self._rank_of_source = dict(named)
        self._return_sequence_losses = return_sequence_losses
        self._gradients = FlatGradients(model.parameters())
        self._device = self._gradients.flat.device
        self._compared_weights = False

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources whose sequences this rank holds."""
        return tuple(source for source, rank in self._rank_of_source.items() if rank == self._rank)

    def run(self, plan: Plan, sequences: HeldSequences | Sequence[Tensor]) -> IterationResult:
        """Run one iteration; a collective that every rank of the group calls.

        Parameters
        ----------
        plan
            The plan, the same on every rank (see `share_plan`).
        sequences
            Token ids of the sequences this rank holds, in the order whose lengths were sent to the planner: a list of
            flat integer tensors, or such lists by source where this rank holds several sources.

        Raises
        ------
        PlanDisagreement
            On every rank, if plans or the runners' arguments differ.
        IterationFailed
            On every rank, if any rank cannot do its part: its sequences are not those of the plan, the plan's layout
            does not run here, or its computation raised.
        NotFinite
            On every rank, if the loss or a gradient is NaN or infinite.
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        whole, watch = Stopwatch(self._device), Stopwatch(self._device)
        exchange, role = self._prepare(plan, sequences)
        received = exchange.exchange_tokens()
        exchange_ms, _ = watch.lap()
        computed = self._attempt(plan, exchange, received)
        compute_ms, cpu_ms = watch.lap()
        loss = self._sum(plan, computed)
        reduce_ms, _ = watch.lap()
        if plan.num_targets:
            self._step(plan)
        step_ms, _ = watch.lap()
        by_source = exchange.to_sources(computed.by_sequence) if self._return_sequence_losses else None
        return IterationResult(
            loss=loss,
            num_targets=plan.num_targets,
            wall_ms=whole.lap()[0],
            compute_ms=compute_ms,
            cpu_ms=cpu_ms,
            exchange_ms=exchange_ms,
            reduce_ms=reduce_ms,
            step_ms=step_ms,
            micro_batch_ms=computed.micro_batch_ms,
            timing=_timing(role, compute_ms, cpu_ms, computed.micro_batch_ms),
            sequence_losses=by_source,
        )

    def _prepare(self, plan: Plan, sequences: HeldSequences | Sequence[Tensor]) -> tuple[SequenceExchange, RankRole]:
        """Do all that this rank can do alone, then find out whether every rank could."""
        prepared: tuple[SequenceExchange, RankRole] | None = None
        fault: Exception | None = None
        try:
            self._gradients.check(self._model.parameters())
            role = rank_roles(plan, self._world_size)[self._rank]
            if role.tp > 1 or role.pp > 1:
                raise LayoutRefused(  # noqa: TRY301 - goes with this step
                    f"layout (tp={role.tp}, cp=1, pp={role.pp}) is not run yet; take tp=1, cp=1, pp=1"
                )
            exchange = SequenceExchange(
                sequence_routes(plan, self._world_size, self._rank_of_source),
                role,
                self._by_source(sequences),
                group=self._group,
                vocab_size=getattr(self._model, "vocab_size", None),
            )
            prepared = (exchange, role)
        except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
            fault = caught
        agree_on_plan(plan, self._terms(), fault, self._group)
        if prepared is None:
            raise IterationFailed("this rank could not prepare the iteration", {}) from fault
        return prepared

    def _terms(self) -> dict[str, object]:
        return {
            "rank_of_source": self._rank_of_source,
            "return_sequence_losses": self._return_sequence_losses,
            "trained_weights": self._gradients.flat.numel(),
            "dtype": str(self._gradients.flat.dtype),
            "weights_checksum": self._first_checksum(),
        }

    def _first_checksum(self) -> int | None:
        """Checksum of the weights before the first iteration; later ones are equal if they began equal."""
        if self._compared_weights:
            return None
        self._compared_weights = True
        return self._gradients.checksum()

    def _by_source(self, sequences: HeldSequences | Sequence[Tensor]) -> HeldSequences:
        if isinstance(sequences, Mapping):
            strangers = sorted(set(sequences) - set(self.sources))
            if strangers:
                raise ValueError(
                    f"rank {self._rank} was given sequences of source {strangers[0]!r} but holds "
                    f"{', '.join(self.sources) or 'no source'}; put the source into rank_of_source"
                )
            return {source: sequences.get(source, ()) for source in self.sources}
        if len(self.sources) == 1:
            return {self.sources[0]: sequences}
        if not self.sources and not sequences:
            return {}
        raise ValueError(
            f"rank {self._rank} holds {len(self.sources)} sources but was given one list of {len(sequences)} "
            "sequences; give a list for each source, by name"
        )

    def _step(self, plan: Plan) -> None:
        """Step the optimizer; if it raises on one rank, every rank hears of it, for their weights now differ."""
        fault: Exception | None = None
        try:
            self._optimizer.step()
        except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
            fault = caught
        settle(fault, f"stepping the optimizer after {_iteration(plan)}, so that weights may differ now", self._group)

    def _attempt(self, plan: Plan, exchange: SequenceExchange, received: Tensor) -> _Computed:
        """Compute this rank's micro-batches; a fault is carried along, so that no rank waits for this one."""
        try:
            self._gradients.zero()
            return self._compute(plan, exchange.micro_batches(received, self._device))
        except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
            return _Computed(fault=caught)

    def _compute(self, plan: Plan, micro_batches: Sequence[MicroBatchTokens]) -> _Computed:
        watch = Stopwatch(self._device)
        loss_sum, num_targets = 0.0, 0
        micro_batch_ms: list[float] = []
        by_sequence = [torch.zeros(0, dtype=torch.float64, device=self._device)]
        for micro_batch in micro_batches:
            logits = self._model(micro_batch.tokens, micro_batch.cu_seqlens, micro_batch.max_seqlen)
            targets = next_token_targets(micro_batch.tokens, micro_batch.cu_seqlens, micro_batch.lengths)
            losses = token_losses(logits, targets)
            scaled_loss(losses, plan.num_targets).backward()  # type: ignore[no-untyped-call]
            losses = losses.detach()
            loss_sum += float(losses.double().sum())
            num_targets += micro_batch.packed.num_targets
            if self._return_sequence_losses:
                by_sequence.append(sequence_losses(losses, micro_batch.cu_seqlens))
            micro_batch_ms.append(watch.lap()[0])
        return _Computed(loss_sum, num_targets, tuple(micro_batch_ms), torch.cat(by_sequence))

    def _sum(self, plan: Plan, computed: _Computed) -> float:
        """Sum loss and gradients over all ranks; every rank comes to the same verdict from the same sums."""
        doing = f"computing {_iteration(plan)}"
        totals = torch.tensor(
            [computed.loss_sum, computed.num_targets, computed.fault is not None],
            dtype=torch.float64,
            device=collective_device(self._group),
        )
        sum_in_place(totals, self._group, doing)
        loss_sum, num_targets, num_faults = totals.tolist()
        if num_faults:
            settle(computed.fault, doing, self._group)
        if num_targets != plan.num_targets:
            raise IterationFailed(
                f"the ranks predicted {int(num_targets)} tokens while {doing} but the plan has {plan.num_targets} "
                "targets; the optimizer did not step",
                {},
            )
        if not np.isfinite(loss_sum):
            raise NotFinite(f"the loss is {loss_sum} after {doing}; the optimizer did not step: {_REMEDY}")
        if plan.num_targets == 0:
            return 0.0
        self._gradients.sum_over(self._group)
        if not self._gradients.are_finite():
            raise NotFinite(f"a gradient is not finite after {doing}; the optimizer did not step: {_REMEDY}")
        return float(loss_sum) / plan.num_targets


def _iteration(plan: Plan) -> str:
    return "an iteration without a number" if plan.iteration is None else f"iteration {plan.iteration}"


def _timing(
    role: RankRole, compute_ms: float, cpu_ms: float, micro_batch_ms: tuple[float, ...]
) -> ReplicaTiming | None:
    if role.replica is None:
        return None
    return ReplicaTiming(replica=role.replica, wall_ms=compute_ms, cpu_ms=cpu_ms, micro_batch_ms=list(micro_batch_ms))
