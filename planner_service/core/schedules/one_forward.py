"""1F1B: one forward, one backward in turns (PipeDream-Flush; Narayanan et al., arXiv 2006.09503)."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner_service.core.schedules.schedule import Operation, OperationKind
from planner_service.core.simulate import FORWARD_SHARE, one_forward_one_backward


@dataclass(frozen=True, slots=True)
class OneForwardOneBackward:
    """1F1B for any numbers of stages and micro-batches; stage s holds at most ``num_stages - s`` micro-batches.

    Equal micro-batches of t ms take ``(num_micro_batches + num_stages - 1) t``. `core.simulate.simulate_1f1b` gives
    the same time faster.
    """

    @property
    def num_chunks(self) -> int:
        """One chunk for each stage."""
        return 1

    def operations(self, num_stages: int, num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
        """List each stage's operations in the order they run."""
        return tuple(
            tuple(
                Operation(OperationKind.FORWARD if is_forward else OperationKind.BACKWARD, index)
                for is_forward, index in one_forward_one_backward(num_stages, stage, num_micro_batches)
            )
            for stage in range(num_stages)
        )

    def parts_ms(self, micro_batch_ms: float) -> Mapping[OperationKind, float]:
        """Divide a micro-batch's time into its forward and backward pass."""
        forward_ms = micro_batch_ms * FORWARD_SHARE
        return {OperationKind.FORWARD: forward_ms, OperationKind.BACKWARD: micro_batch_ms - forward_ms}
