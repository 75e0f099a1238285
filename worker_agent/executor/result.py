"""What one rank knows after an iteration."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner_client.contract import ReplicaTiming


@dataclass(frozen=True)
class IterationResult:
    """What one rank knows after an iteration.

    The times do not overlap; what remains of ``wall_ms`` is bookkeeping.

    Attributes
    ----------
    loss
        Mean token loss (nats) of the global batch; the same on every rank, whatever the plan. 0 without targets.
    num_targets
        Tokens predicted in the whole iteration; without any, the optimizer did not step.
    grad_norm
        Norm of the whole gradient before clipping; the same on every rank. 0 without targets.
    wall_ms
        The whole iteration on this rank, waiting for other ranks included.
    exchange_ms
        Comparing plans, making process groups and exchanging sequences, waiting for other ranks included.
    assemble_ms
        Sending parameters out and waiting for those that computation had to wait for.
    compute_ms
        Forward and backward of this rank's micro-batches, waiting for other stages included.
    cpu_ms
        CPU time of this process while it computed.
    return_ms
        Returning gradients, as far as computation did not hide it, waiting for slower ranks included.
    reduce_ms
        Returning sequence losses to their sources; summing losses and the gradient's norm over the ranks.
    step_ms
        Clipping and the optimizer's step.
    micro_batch_ms
        Forward and backward of each micro-batch on this rank, in order.
    timing
        What the planner learns from; None on an idle rank.
    sequence_losses
        Summed token loss of each sequence this rank holds, by source, in the order held; NaN for a dropped sequence.
        None unless the runner was built to return them.
    micro_batch_cpu_ms
        CPU time of this process during each micro-batch's operations, in order; empty on CUDA.
    """

    loss: float
    num_targets: int
    grad_norm: float
    wall_ms: float
    exchange_ms: float
    assemble_ms: float
    compute_ms: float
    cpu_ms: float
    return_ms: float
    reduce_ms: float
    step_ms: float
    micro_batch_ms: tuple[float, ...]
    timing: ReplicaTiming | None
    sequence_losses: Mapping[str, npt.NDArray[np.float64]] | None = None
    micro_batch_cpu_ms: tuple[float, ...] = ()

    @property
    def propagate_ms(self) -> float:
        """Time that moving parameters and gradients added to the iteration."""
        return self.assemble_ms + self.return_ms
