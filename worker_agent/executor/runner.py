"""Runs one iteration by a plan on all ranks: agree, exchange, assemble, compute, return, step."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from planner_client.contract import Plan, ReplicaTiming
from planner_client.groups import Groups
from worker_agent.executor.agree import agree_on_plan, settle
from worker_agent.executor.ahead import Preparation, PreparationAhead
from worker_agent.executor.carried import CarriedFault
from worker_agent.executor.collectives import Group, RowExchange, collective_device, sum_in_place
from worker_agent.executor.compute_buffer import Arena
from worker_agent.executor.exchange import HeldGroups, HeldSequences, MicroBatchTokens
from worker_agent.executor.faults import IterationFailed, NotFinite, RunnerClosed
from worker_agent.executor.layout import RankRole
from worker_agent.executor.measure import OperationClock, Stopwatch
from worker_agent.executor.pipeline import Computed, StagePipeline
from worker_agent.executor.preparation import PreparedIteration, Preparer
from worker_agent.executor.process_groups import DEFAULT_MAX_PROCESS_GROUPS, ProcessGroups
from worker_agent.executor.propagate import Propagation
from worker_agent.executor.result import IterationResult
from worker_agent.executor.routes import default_rank_of_source
from worker_agent.executor.scratch import Scratch, num_scratch_bytes
from worker_agent.executor.shards import ShardedState

__all__ = ["IterationResult", "IterationRunner"]

_REMEDY = "lower the learning rate, or restart from the last checkpoint"
_NORM_ELEMENTS = {"cpu": 2**16, "cuda": 2**22}
_CLIP_MARGIN = 1e-6
"""Added to the norm that a gradient is divided by, as ``torch.nn.utils.clip_grad_norm_`` does."""


@dataclass(frozen=True, eq=False)
class _Ready:
    """One rank's part of an iteration that all ranks agreed on, with all that it needs to take part in it.

    ``tokens`` are those received where sequences were exchanged before; ``results`` brings losses back to the sources.
    """

    prepared: PreparedIteration
    pipeline: StagePipeline | None
    tokens: Tensor | RowExchange
    results: RowExchange | None
    carried: CarriedFault


class IterationRunner:
    """Runs iterations by plans, each on whatever mix of replicas its plan asks for.

    Every rank of the group builds one and calls its methods with the same plans. The group decides how long a rank
    waits for another: start it with a timeout (``init_process_group(timeout=...)``) longer than any iteration computes,
    since ranks that have nothing to compute wait for those that have.

    Parameters
    ----------
    state
        The rank's shard of the training state; built on the same group.
    compute_dtype
        What parameters and activations are computed in, for example ``torch.bfloat16``; that of the masters by default.
        Masters, gradient sums, losses and optimizer states keep the masters' dtype whatever it is.
    max_norm
        The whole gradient is scaled down to this norm where it is larger; None leaves it alone.
    max_process_groups
        Most process groups of tensor-parallel stages held at a time.
    layers_per_bucket
        Layers whose parameters and gradients are moved together: fewer begin sooner, more move in fewer messages.
    rank_of_source
        The rank that holds each source's sequences; ``rank-<r>`` on rank r by default.
    return_sequence_losses
        Whether results carry the loss of each sequence this rank holds.
    group
        The process group; by default all ranks. Plans speak of ranks of this group.

    Raises
    ------
    ValueError
        If an argument is out of range, or the state was built on another group.
    """

    @torch.inference_mode(mode=False)
    def __init__(  # noqa: PLR0913 - one argument for each thing only the caller knows
        self,
        state: ShardedState,
        *,
        compute_dtype: torch.dtype | None = None,
        max_norm: float | None = None,
        max_process_groups: int = DEFAULT_MAX_PROCESS_GROUPS,
        layers_per_bucket: int = 4,
        rank_of_source: Mapping[str, int] | None = None,
        return_sequence_losses: bool = False,
        group: Group = None,
    ) -> None:
        for name, value in (("max_norm", max_norm), ("layers_per_bucket", layers_per_bucket)):
            if value is not None and not value > 0:
                raise ValueError(f"{name} is {value}; give more than 0")
        self._group = group
        rank, world_size = dist.get_rank(group), dist.get_world_size(group)
        if (state.rank, state.world_size) != (rank, world_size):
            raise ValueError(
                f"the state is that of rank {state.rank} of {state.world_size} but the runner's group has this "
                f"process as rank {rank} of {world_size}; build both on one group"
            )
        self._state = state
        self._max_norm = max_norm
        self._compute_dtype = state.masters.dtype if compute_dtype is None else compute_dtype
        self._return_sequence_losses = return_sequence_losses
        ranks = dict(default_rank_of_source(world_size) if rank_of_source is None else rank_of_source)
        self._preparer = Preparer(state.table, rank, world_size, ranks, layers_per_bucket)
        self._groups = ProcessGroups(group, max_process_groups)
        self._propagation = Propagation(state, self._compute_dtype, self._groups.propagation)
        self._arena = Arena(state.masters.device)
        self._totals = torch.zeros(4, dtype=torch.float64, device=collective_device(group))
        self._is_closed = False
        self._terms = {
            "model": str(state.config),
            "num_elements": state.table.num_elements,
            "dtype": str(state.masters.dtype),
            "compute_dtype": str(self._compute_dtype),
            "max_norm": max_norm,
            "max_process_groups": max_process_groups,
            "layers_per_bucket": layers_per_bucket,
            "rank_of_source": ranks,
            "return_sequence_losses": return_sequence_losses,
        }
        self._ahead = PreparationAhead(self._preparer, self._terms, self._groups.preparation)

    @property
    def sources(self) -> tuple[str, ...]:
        """The sources whose sequences this rank holds."""
        return self._preparer.sources

    @property
    def state(self) -> ShardedState:
        """The training state that iterations change."""
        return self._state

    @property
    def process_groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of the process groups of stages held now, the least recently used first."""
        return self._groups.held

    def prepare(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor],
        *,
        groups: HeldGroups | Groups | None = None,
    ) -> None:
        """Begin to compare and exchange an iteration to come, in the background; `run` then needs its plan alone.

        Every rank of the group calls it, for the same plans in the same order. A fault is `run`'s to raise. Where plans
        are equal, `run` takes what was prepared first.

        Parameters
        ----------
        plan, sequences, groups
            As for `run`. None may be changed any more.

        Raises
        ------
        RunnerClosed
            If the runner was closed.
        RankLost
            If a rank died or did not arrive within the group's timeout when the first preparation began.
        """
        self._check_open()
        self._ahead.begin(plan, sequences, groups)

    @torch.inference_mode(mode=False)
    def run(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor] | None = None,
        *,
        groups: HeldGroups | Groups | None = None,
    ) -> IterationResult:
        """Run one iteration; a collective that every rank of the group calls.

        Parameters
        ----------
        plan
            The plan, the same on every rank (see `share_plan`).
        sequences
            Token ids of the sequences this rank holds, in the order whose lengths were sent to the planner: a list of
            flat integer tensors, or such lists by source where this rank holds several sources. Not looked at where
            `prepare` was called for the plan.
        groups
            Atomic groups of those sequences, as indices, in the same form: those that the request's ``atomic_groups``
            were made of (`planner_client.groups.atomic_groups_of`). None if there are none.

        Raises
        ------
        PlanDisagreement
            On every rank, if plans or the runners' arguments differ.
        IterationFailed
            On every rank, if any rank cannot do its part: its sequences are not those of the plan, the plan's layout
            does not run here, or its computation raised. The optimizer has not stepped on any rank.
        NotFinite
            On every rank, if the loss or a gradient is NaN or infinite. The optimizer has not stepped on any rank.
        RunnerClosed
            If the runner was closed.
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        self._check_open()
        whole, watch = self._stopwatch(), self._stopwatch()
        ahead = self._ahead.take(plan)
        ready = self._agree(plan, ahead, lambda: self._prepared_now(plan, sequences, groups), trains=True)
        prepared, ms = ready.prepared, {"exchange": watch.lap()[0]}
        computed = self._execute(ready, watch, ms, trains=True)
        by_source = None
        if ready.results is not None:
            by_source = prepared.exchange.to_sources(computed.by_sequence, ready.results, ready.carried)
        square = ready.carried.attempt("summing the squares of gradients", self._square, float)
        loss, grad_norm = self._sum(plan, computed, square, ready.carried)
        ms["reduce"], _ = watch.lap()
        if plan.num_targets:
            self._step(plan, grad_norm)
        ms["step"], _ = watch.lap()
        return IterationResult(
            loss=loss,
            num_targets=plan.num_targets,
            grad_norm=grad_norm,
            wall_ms=whole.lap()[0],
            exchange_ms=ms["exchange"],
            assemble_ms=ms["assemble"],
            compute_ms=ms["compute"],
            cpu_ms=ms["cpu"],
            return_ms=ms["return"],
            reduce_ms=ms["reduce"],
            step_ms=ms["step"],
            micro_batch_ms=computed.micro_batch_ms,
            timing=_timing(prepared.role, ms, computed.micro_batch_ms),
            sequence_losses=by_source,
            micro_batch_cpu_ms=computed.micro_batch_cpu_ms,
        )

    @torch.inference_mode(mode=False)
    def evaluate(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor],
        *,
        groups: HeldGroups | Groups | None = None,
    ) -> float:
        """Return the mean token loss (nats) of a batch without a step; a collective that every rank of the group calls.

        Parameters and faults are those of `run`. 0 if the batch has no token to predict.
        """
        self._check_open()
        watch = self._stopwatch()
        ready = self._agree(plan, None, lambda: self._prepared_now(plan, sequences, groups), trains=False)
        computed = self._execute(ready, watch, {"exchange": 0.0}, trains=False)
        return self._sum(plan, computed, 0.0, ready.carried)[0]

    def close(self) -> None:
        """Give up the process groups that the runner made; every rank calls it, after its last iteration.

        A closed runner runs nothing any more. To close it again does nothing.
        """
        if self._is_closed:
            return
        self._is_closed = True
        self._ahead.close()
        self._groups.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise RunnerClosed("the runner is closed; build another one on every rank")

    def _stopwatch(self) -> Stopwatch:
        return Stopwatch(self._state.masters.device)

    def _agree(
        self, plan: Plan, ahead: Preparation | None, prepare: Callable[[], PreparedIteration], *, trains: bool
    ) -> _Ready:
        """Do all that this rank can do alone, then find out whether every rank could."""
        ready: _Ready | None = None
        fault: Exception | None = None
        try:
            prepared, tokens = ahead or (prepare(), None)
            self._groups.check(prepared.groups)
            ready = self._reserve(prepared, tokens, trains=trains)
        except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
            fault = caught
        terms = self._terms | {"trains": trains, "prepared_ahead": ahead is not None}
        agree_on_plan(plan, terms, fault, self._group)
        if ready is None:
            raise IterationFailed("this rank could not prepare the iteration", {}) from fault
        return ready

    def _reserve(self, prepared: PreparedIteration, tokens: Tensor | None, *, trains: bool) -> _Ready:
        """Take all memory without which this rank could not take part in what the others will wait for."""
        device = self._state.masters.device
        carried = CarriedFault(device)
        buffer = self._propagation.reserve(prepared.routes, prepared.part, carried, with_gradients=trains)
        work, pipeline = prepared.work(trains=trains), None
        if work is not None and buffer is not None:
            num_bytes = num_scratch_bytes(buffer.stage.part, work.packed, self._compute_dtype)
            scratch = Scratch(self._arena.take("scratch", num_bytes, torch.uint8))
            with_losses = self._return_sequence_losses and trains
            pipeline = StagePipeline(work, buffer, prepared.role, scratch, carried, with_sequence_losses=with_losses)
        exchange = prepared.exchange
        return _Ready(
            prepared,
            pipeline,
            exchange.reserve_tokens(self._group) if tokens is None else tokens,
            exchange.reserve_results(self._group) if self._return_sequence_losses and trains else None,
            carried,
        )

    def _prepared_now(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor] | None,
        groups: HeldGroups | Groups | None,
    ) -> PreparedIteration:
        if sequences is None and isinstance(plan, Plan):
            raise ValueError("the plan came without sequences and was not prepared; give run(plan, sequences)")
        return self._preparer.prepare(plan, () if sequences is None else sequences, groups)

    def _execute(self, ready: _Ready, watch: Stopwatch, ms: dict[str, float], *, trains: bool) -> Computed:
        """Bring parameters and sequences to where they are computed, compute, and bring gradients back."""
        prepared, tokens = ready.prepared, ready.tokens
        self._groups.ensure(prepared.groups, ready.carried, pipeline=prepared.has_pipeline)
        ms["exchange"] += watch.lap()[0]
        self._propagation.assemble()
        ms["assemble"] = watch.lap()[0]
        received = tokens if isinstance(tokens, Tensor) else tokens.run("exchanging sequences")
        ms["exchange"] += watch.lap()[0]
        computed = self._compute(ready, received)
        compute_ms, ms["cpu"] = watch.lap()
        waited_ms = self._propagation.waited_ms
        self._propagation.finish(with_gradients=trains)
        ms["compute"], ms["assemble"] = max(0.0, compute_ms - waited_ms), ms["assemble"] + waited_ms
        ms["return"] = watch.lap()[0]
        return computed

    def _compute(self, ready: _Ready, received: Tensor) -> Computed:
        """Compute this rank's micro-batches; a fault is carried along, so that no rank waits for this one."""
        pipeline, role = ready.pipeline, ready.prepared.role
        if pipeline is None:
            return Computed()
        device = self._state.masters.device
        pipeline.connect(self._groups.pipeline if role.pp > 1 else None, self._groups.tensor_group(role.tensor_ranks))
        micro_batches: tuple[MicroBatchTokens, ...] = ready.carried.attempt(
            "cutting sequences into micro-batches",
            lambda: ready.prepared.exchange.micro_batches(received, device),
            tuple,
        )
        return pipeline.run(micro_batches, OperationClock(device, lambda: self._propagation.waited_ms))

    def _square(self) -> float:
        """Return the square of the norm of the shard's gradients; in fp64, since squares overflow first."""
        # Widened piece by piece in memory that is kept: a tensor at a time would take twice its size, and pieces of
        # their own, allocated anew each time, leave the heap in fragments.
        num_elements = _NORM_ELEMENTS[self._state.gradients.device.type]
        pieces = torch.split(self._state.gradients, num_elements)
        room = self._arena.take("widened", min(num_elements, self._state.gradients.numel()), torch.float64)
        squares = self._arena.take("squares", len(pieces), torch.float64)
        for number, piece in enumerate(pieces):
            widened = room[: piece.numel()].copy_(piece)
            torch.dot(widened, widened, out=squares[number])
        return float(squares.sum())

    def _sum(self, plan: Plan, computed: Computed, square: float, carried: CarriedFault) -> tuple[float, float]:
        """Sum losses and squares of gradients, return loss and norm; all ranks judge by the same sums."""
        doing = f"computing {_iteration(plan)}"
        own = [computed.loss_sum, computed.num_targets, carried.fault is not None, square]
        self._totals.copy_(torch.tensor(own, dtype=torch.float64))
        sum_in_place(self._totals, self._group, doing)
        loss_sum, num_targets, num_faults, square_sum = self._totals.tolist()
        if num_faults:
            settle(carried.fault, doing, self._group)
        if num_targets != plan.num_targets:
            raise IterationFailed(
                f"the ranks predicted {int(num_targets)} tokens while {doing} but the plan has {plan.num_targets} "
                "targets; the optimizer did not step",
                {},
            )
        if not math.isfinite(loss_sum):
            raise NotFinite(f"the loss is {loss_sum} after {doing}; the optimizer did not step: {_REMEDY}")
        if not math.isfinite(square_sum):
            raise NotFinite(f"a gradient is not finite after {doing}; the optimizer did not step: {_REMEDY}")
        if plan.num_targets == 0:
            return 0.0, 0.0
        return loss_sum / plan.num_targets, math.sqrt(square_sum)

    def _step(self, plan: Plan, grad_norm: float) -> None:
        """Clip and step; if the optimizer raises on one rank, every rank hears of it, for some shards have moved on."""
        fault: Exception | None = None
        try:
            if self._max_norm is not None and grad_norm > self._max_norm:
                self._state.gradients.mul_(self._max_norm / (grad_norm + _CLIP_MARGIN))
            self._state.optimizer.step()
        except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
            fault = caught
        settle(fault, f"stepping the optimizer after {_iteration(plan)}, so that weights may differ now", self._group)


def _iteration(plan: Plan) -> str:
    return "an iteration without a number" if plan.iteration is None else f"iteration {plan.iteration}"


def _timing(role: RankRole, ms: Mapping[str, float], micro_batch_ms: tuple[float, ...]) -> ReplicaTiming | None:
    if role.replica is None:
        return None
    return ReplicaTiming(
        replica=role.replica, wall_ms=ms["compute"], cpu_ms=ms["cpu"], micro_batch_ms=list(micro_batch_ms)
    )
