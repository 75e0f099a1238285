"""Zero bubble: the backward pass in two parts, of which the second fills gaps (Qi et al., arXiv 2401.10241: ZB-H1)."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner_service.core.schedules.schedule import Operation, OperationKind
from planner_service.core.simulate import FORWARD_SHARE, one_forward_one_backward


@dataclass(frozen=True, slots=True)
class ZeroBubble:
    """ZB-H1, for any numbers of stages and micro-batches, in no more activation memory than 1F1B's first stage.

    1F1B in which the backward pass computes only the gradient of its input, which the stage before waits for. Weight
    gradients wait for nobody: stage s puts off each of its own by s micro-batches, so that the later stages, which
    drain first, have work left while the earlier ones drain. Equal micro-batches of t ms take
    ``(num_micro_batches + (num_stages - 1) / 3) t`` from ``num_stages`` micro-batches on, a third of 1F1B's bubble.
    """

    @property
    def num_chunks(self) -> int:
        """One chunk for each stage."""
        return 1

    def operations(self, num_stages: int, num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
        """List each stage's operations in the order they run."""
        return tuple(_of_stage(num_stages, stage, num_micro_batches) for stage in range(num_stages))

    def parts_ms(self, micro_batch_ms: float) -> Mapping[OperationKind, float]:
        """Divide a micro-batch's time into forward, input gradient and weight gradient, which take a third each."""
        third_ms = micro_batch_ms * FORWARD_SHARE
        return {
            OperationKind.FORWARD: third_ms,
            OperationKind.INPUT_GRADIENT: third_ms,
            OperationKind.WEIGHT_GRADIENT: micro_batch_ms - 2 * third_ms,
        }


def _of_stage(num_stages: int, stage: int, num_micro_batches: int) -> tuple[Operation, ...]:
    operations: list[Operation] = []
    for is_forward, index in one_forward_one_backward(num_stages, stage, num_micro_batches):
        if is_forward:
            operations.append(Operation(OperationKind.FORWARD, index))
            continue
        operations.append(Operation(OperationKind.INPUT_GRADIENT, index))
        if index >= stage:
            operations.append(Operation(OperationKind.WEIGHT_GRADIENT, index - stage))
    first_put_off = max(0, num_micro_batches - stage)
    operations += [Operation(OperationKind.WEIGHT_GRADIENT, index) for index in range(first_put_off, num_micro_batches)]
    return tuple(operations)
