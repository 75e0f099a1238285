"""What a pipeline schedule is: each stage's list of operations, and how a micro-batch's time divides among them."""

from collections.abc import Mapping
from enum import Enum
from typing import NamedTuple, Protocol


class OperationKind(Enum):
    """What an operation computes; a whole backward pass, or its two parts on their own."""

    FORWARD = "forward"
    BACKWARD = "backward"
    INPUT_GRADIENT = "input-gradient"
    WEIGHT_GRADIENT = "weight-gradient"


class Operation(NamedTuple):
    """One piece of work of a stage.

    Attributes
    ----------
    kind
        What is computed.
    micro_batch
        Position of the micro-batch in the order they run.
    chunk
        Which of the stage's model chunks (virtual stages); 0 where a stage has one.
    """

    kind: OperationKind
    micro_batch: int
    chunk: int = 0


class Schedule(Protocol):
    """The order in which every stage of a pipeline runs its operations: a frozen value.

    The model is cut into ``num_chunks * num_stages`` chunks; chunk c of stage s is number ``c * num_stages + s`` of
    them. Forwards run through the chunks in that order, backwards (or input gradients) in the opposite one, and a
    weight gradient follows the input gradient of its own chunk.
    """

    @property
    def num_chunks(self) -> int:
        """Model chunks of each stage."""
        ...

    def operations(self, num_stages: int, num_micro_batches: int) -> tuple[tuple[Operation, ...], ...]:
        """List each stage's operations in the order they run.

        Raises
        ------
        ValueError
            If the schedule is not defined for these numbers, naming them and what it needs.
        """
        ...

    def parts_ms(self, micro_batch_ms: float) -> Mapping[OperationKind, float]:
        """Divide a micro-batch's time on a stage (ms, all chunks, forward and backward) into one chunk's operations."""
        ...
