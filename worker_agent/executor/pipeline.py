"""Runs one rank's part of a plan: its stage, micro-batch by micro-batch, in the order of its schedule.

A fault of one rank must not leave its neighbours waiting. A rank that fails computes nothing more, but goes on to take
part in what the others wait for, with values of the shapes that the plan foresees (see `CarriedFault`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from planner_client.packing import PackedMicroBatch
from worker_agent.executor.carried import CarriedFault, lacks_memory
from worker_agent.executor.compute_buffer import ComputeBuffer
from worker_agent.executor.exchange import MicroBatchTokens
from worker_agent.executor.faults import MicroBatchFailed, text_of
from worker_agent.executor.layout import RankRole
from worker_agent.executor.links import StageLinks
from worker_agent.executor.loss import next_token_targets, scaled_loss, sequence_losses
from worker_agent.executor.measure import OperationClock
from worker_agent.executor.parts import TensorCall, backward_calls, forward_calls
from worker_agent.executor.schedule import Operation, Step
from worker_agent.executor.scratch import Scratch
from worker_agent.executor.tensor_parallel import TensorGroup


@dataclass(frozen=True, eq=False)
class StageWork:
    """What one rank computes in an iteration.

    Attributes
    ----------
    replica
        Index of its replica in the plan.
    steps
        Its schedule.
    packed
        Geometry of the replica's micro-batches.
    predicted_ms, max_tokens
        What the plan expects of each micro-batch, and its limit.
    num_targets
        Tokens predicted in the whole iteration, over all replicas.
    reports_losses
        Whether the losses of the replica are counted on this rank: of all that know them, on one.
    """

    replica: int
    steps: tuple[Step, ...]
    packed: tuple[PackedMicroBatch, ...]
    predicted_ms: tuple[float, ...]
    max_tokens: int
    num_targets: int
    reports_losses: bool


@dataclass(frozen=True, eq=False)
class Computed:
    """One rank's part of the computation; that of a rank that computes nothing, or failed, by default.

    Attributes
    ----------
    loss_sum, num_targets
        Token losses (nats) summed, and how many; 0 but on the rank of a replica that reports.
    micro_batch_ms
        Time that this rank spent on each micro-batch, waiting for others left out where it is seen.
    micro_batch_cpu_ms
        CPU time of the process meanwhile; empty on CUDA.
    by_sequence
        Summed loss of each of the replica's sequences, in run order, shape (sequences,), fp64; empty unless asked for.
    """

    loss_sum: float = 0.0
    num_targets: int = 0
    micro_batch_ms: tuple[float, ...] = ()
    micro_batch_cpu_ms: tuple[float, ...] = ()
    by_sequence: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))


class StagePipeline:
    """Runs one iteration's steps on one rank.

    Parameters
    ----------
    work
        What to compute.
    buffer
        What to compute with.
    role
        The rank's role.
    scratch
        Room for the largest message or collective.
    carried
        Keeps what goes wrong on this rank.
    with_sequence_losses
        Whether the losses of single sequences are kept.
    """

    def __init__(  # noqa: PLR0913 - what to compute with what, and what there is if that fails
        self,
        work: StageWork,
        buffer: ComputeBuffer,
        role: RankRole,
        scratch: Scratch,
        carried: CarriedFault,
        *,
        with_sequence_losses: bool,
    ) -> None:
        self._work = work
        self._buffer = buffer
        self._stage, self._part = buffer.stage, buffer.stage.part
        self._scratch = scratch
        self._carried = carried
        self._with_sequence_losses = with_sequence_losses
        self._dtype, self._device = buffer.parameters.dtype, buffer.parameters.device
        self._links = StageLinks(role, self._part.config.hidden_size, self._dtype, self._device, scratch, carried)
        self._tensor_group: TensorGroup | None = None
        self._trains = any(step.operation and step.operation.kind == "backward" for step in work.steps)
        self._micro_batches: Sequence[MicroBatchTokens] = ()
        self._kept: dict[int, tuple[Tensor, Tensor]] = {}
        self._loss_sums: list[Tensor] = []
        self._by_sequence: list[Tensor] = []

    def connect(self, stages: dist.ProcessGroup | None, tensor_group: TensorGroup | None) -> None:
        """Name whom the stage meets.

        Parameters
        ----------
        stages
            The process group in which stages send to one another; None where the replica has one stage.
        tensor_group
            The ranks that share the stage; None if this one has it alone.
        """
        self._links.connect(stages)
        self._tensor_group = tensor_group
        self._stage.connect(tensor_group)

    def run(self, micro_batches: Sequence[MicroBatchTokens], clock: OperationClock) -> Computed:
        """Run all steps; after a fault, only take part in what other ranks wait for.

        Parameters
        ----------
        micro_batches
            The replica's micro-batches; not looked at where a fault is carried already.
        clock
            Measures the operations.

        Raises
        ------
        RankLost
            If another rank died or did not arrive in time; every other fault is carried along.
        """
        self._micro_batches = micro_batches
        num_tokens = [packed.num_physical_tokens for packed in self._work.packed]
        result: Tensor | None = None
        for step in self._work.steps:
            received = self._links.exchange(step, result, num_tokens)
            if step.operation is not None:
                with record_function(str(step.operation)), clock.operation(step.operation.micro_batch):
                    result = self._attempt(step.operation, received)
        self._links.flush()
        return self._carried.attempt("adding up losses", lambda: self._computed(clock), Computed)

    def _attempt(self, operation: Operation, received: list[Tensor]) -> Tensor | None:
        """Compute one operation; after a fault, only answer its collectives. None stands for no result."""
        calls = forward_calls if operation.kind == "forward" else backward_calls
        expected = calls(self._part, self._work.packed[operation.micro_batch].num_physical_tokens)
        if self._tensor_group is not None:
            self._tensor_group.begin()
        return self._carried.attempt(
            str(operation),
            lambda: self._checked(operation, received, expected),
            lambda: self._answered(expected),
            lambda caught: self._named(caught, operation),
        )

    def _checked(self, operation: Operation, received: list[Tensor], expected: Sequence[TensorCall]) -> Tensor | None:
        result = self._compute(operation, received)
        if self._tensor_group is not None and self._tensor_group.num_calls != len(expected):
            raise RuntimeError(
                f"the stage made {self._tensor_group.num_calls} collectives where {len(expected)} were foreseen"
            )
        return result

    def _answered(self, expected: Sequence[TensorCall]) -> None:
        self._kept.clear()
        if self._tensor_group is not None:
            self._tensor_group.answer(expected, self._dtype, self._scratch)

    def _compute(self, operation: Operation, received: list[Tensor]) -> Tensor | None:
        if operation.kind == "forward":
            with torch.set_grad_enabled(self._trains):
                return self._forward(operation.micro_batch, received)
        return self._backward(operation.micro_batch, received)

    def _forward(self, number: int, received: list[Tensor]) -> Tensor:
        micro_batch = self._micro_batches[number]
        taken = micro_batch.tokens if self._part.is_first else received[0].requires_grad_(self._trains)
        out: Tensor = self._stage(taken, micro_batch.cu_seqlens, micro_batch.max_seqlen)
        if self._part.is_last:
            out = self._loss(out, micro_batch)
        if self._trains:
            self._kept[number] = (taken, out)
        return out.detach()

    def _loss(self, logits: Tensor, micro_batch: MicroBatchTokens) -> Tensor:
        targets = next_token_targets(micro_batch.tokens, micro_batch.cu_seqlens, micro_batch.lengths)
        losses = self._stage.losses(logits, targets)
        counted = losses.detach().double()
        self._loss_sums.append(counted.sum())
        if self._with_sequence_losses:
            self._by_sequence.append(sequence_losses(counted, micro_batch.cu_seqlens))
        return scaled_loss(losses, self._work.num_targets)

    def _backward(self, number: int, received: list[Tensor]) -> Tensor | None:
        taken, out = self._kept.pop(number)
        if number == len(self._work.packed) - 1:
            self._buffer.expect_last()
        torch.autograd.backward(out, received[0] if received else None)
        return None if self._part.is_first else taken.grad

    def _named(self, fault: Exception, operation: Operation) -> MicroBatchFailed:
        """Say which micro-batch failed and what the plan expected of it."""
        number = operation.micro_batch
        packed = self._work.packed[number]
        buffer = self._buffer
        held = buffer.parameters.nbytes + buffer.gradients.nbytes
        return MicroBatchFailed(
            f"{operation} of replica {self._work.replica}, stage {self._part.stage}, raised {type(fault).__name__}: "
            f"{text_of(fault)}; the micro-batch has {packed.num_physical_tokens} tokens in {packed.num_sequences} "
            f"sequences (longest {packed.physical_max_seqlen}, limit {self._work.max_tokens}) and was predicted to "
            f"take {self._work.predicted_ms[number]:.1f} ms; parameters and gradients of the stage take {held} bytes"
            f"{_device_memory(self._device)}" + _remedy(fault)
        )

    def _computed(self, clock: OperationClock) -> Computed:
        num_micro_batches = len(self._work.packed)
        times_ms, cpu_times_ms = clock.times_ms(num_micro_batches), clock.cpu_times_ms(num_micro_batches)
        if not (self._part.is_last and self._work.reports_losses):
            return Computed(micro_batch_ms=times_ms, micro_batch_cpu_ms=cpu_times_ms)
        return Computed(
            loss_sum=float(torch.stack(self._loss_sums).sum()) if self._loss_sums else 0.0,
            num_targets=sum(packed.num_targets for packed in self._work.packed),
            micro_batch_ms=times_ms,
            micro_batch_cpu_ms=cpu_times_ms,
            by_sequence=torch.cat(self._by_sequence) if self._by_sequence else Computed().by_sequence,
        )


def _device_memory(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    return f"; {torch.cuda.memory_allocated(device)} bytes were allocated, {free} of {total} were free on the device"


def _remedy(fault: Exception) -> str:
    if not lacks_memory(fault):
        return ""
    return "; measure this layout's limit anew, or ask for plans with smaller max_tokens_per_micro_batch"
