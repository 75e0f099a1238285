"""Interleaved 1F1B: each stage holds several chunks of the model (Narayanan et al., arXiv 2104.04473, section 2.2)."""

from collections.abc import Mapping
from dataclasses import dataclass

from planner_service.core.schedules.schedule import Operation, OperationKind
from planner_service.core.simulate import FORWARD_SHARE


@dataclass(frozen=True, slots=True)
class Interleaved:
    """Interleaved 1F1B; the number of micro-batches must be a multiple of the number of stages.

    Micro-batches go in groups of ``num_stages``: a group passes one chunk, then the next. A stage warms up with two
    forwards for each stage after it and one group for each of its chunks but one, then runs one forward and one
    backward in turns. Equal micro-batches of t ms take ``(num_micro_batches + (num_stages - 1) / num_chunks) t``.

    Attributes
    ----------
    num_chunks
        Model chunks of each stage, at least 2 (with 1 it would hold more activations than plain 1F1B for nothing).
    """

    num_chunks: int = 2

    def __post_init__(self) -> None:
        if self.num_chunks < 2:
            raise ValueError(
                f"an interleaved schedule needs at least 2 chunks for each stage, not {self.num_chunks}; "
                "use OneForwardOneBackward for 1"
            )

    def operations(self, num_stages: int, num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
        """List each stage's operations in the order they run.

        Raises
        ------
        ValueError
            If the number of micro-batches is not a multiple of the number of stages.
        """
        if num_micro_batches % num_stages:
            raise ValueError(
                f"{num_micro_batches} micro-batches are not a multiple of {num_stages} stages, which an interleaved "
                "schedule needs; plan with count_multiple equal to the stages, or use 1F1B"
            )
        return tuple(self._of_stage(num_stages, stage, num_micro_batches) for stage in range(num_stages))

    def parts_ms(self, micro_batch_ms: float) -> Mapping[OperationKind, float]:
        """Divide a micro-batch's time into the forward and backward pass of one chunk."""
        forward_ms = micro_batch_ms * FORWARD_SHARE
        return {
            OperationKind.FORWARD: forward_ms / self.num_chunks,
            OperationKind.BACKWARD: (micro_batch_ms - forward_ms) / self.num_chunks,
        }

    def _of_stage(self, num_stages: int, stage: int, num_micro_batches: int) -> tuple[Operation, ...]:
        total = num_micro_batches * self.num_chunks
        warm_up = min(2 * (num_stages - stage - 1) + (self.num_chunks - 1) * num_stages, total)
        operations = [self._nth(OperationKind.FORWARD, n, num_stages) for n in range(warm_up)]
        for n in range(total - warm_up):
            operations.append(self._nth(OperationKind.FORWARD, warm_up + n, num_stages))
            operations.append(self._nth(OperationKind.BACKWARD, n, num_stages))
        operations += [self._nth(OperationKind.BACKWARD, n, num_stages) for n in range(total - warm_up, total)]
        return tuple(operations)

    def _nth(self, kind: OperationKind, n: int, num_stages: int) -> Operation:
        """Name the n-th forward or backward of any stage."""
        group, within = divmod(n, num_stages * self.num_chunks)
        chunk, position = divmod(within, num_stages)
        return Operation(
            kind,
            group * num_stages + position,
            chunk if kind is OperationKind.FORWARD else self.num_chunks - 1 - chunk,
        )
