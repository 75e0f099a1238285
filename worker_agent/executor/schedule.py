"""In which order a stage runs its micro-batches, and what it sends and receives in between: pure, no torch."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["forward", "backward"]


@dataclass(frozen=True)
class Operation:
    """The forward or backward pass of one micro-batch."""

    kind: Kind
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind} {self.micro_batch}"


@dataclass(frozen=True)
class Message:
    """An activation to the next stage, or its gradient to the previous one.

    Attributes
    ----------
    micro_batch
        Whose it is.
    to_next
        Whether the other side is the next stage; otherwise the previous one.
    """

    micro_batch: int
    to_next: bool


@dataclass(frozen=True)
class Step:
    """What a stage does at once: hand over and take in, then compute.

    Attributes
    ----------
    sends
        Results of the operation before this step.
    receives
        What this step's operation needs.
    operation
        What to compute; None at the end, where only messages are left to send.
    """

    sends: tuple[Message, ...]
    receives: tuple[Message, ...]
    operation: Operation | None


def one_forward_one_backward(num_stages: int, stage: int, num_micro_batches: int) -> tuple[Operation, ...]:
    """Return the order of a stage under 1F1B (Narayanan et al., arXiv 2104.04473, section 2.2).

    As many forward passes as there are stages after this one, then forward and backward in turn, then the backward
    passes left over. Fewer micro-batches than stages are no special case.
    """
    warm_up = min(num_stages - 1 - stage, num_micro_batches)
    order = [Operation("forward", number) for number in range(warm_up)]
    for number in range(warm_up, num_micro_batches):
        order += [Operation("forward", number), Operation("backward", number - warm_up)]
    order += [Operation("backward", number) for number in range(num_micro_batches - warm_up, num_micro_batches)]
    return tuple(order)


def forward_only(num_micro_batches: int) -> tuple[Operation, ...]:
    """Return the order of a stage that evaluates."""
    return tuple(Operation("forward", number) for number in range(num_micro_batches))


def with_messages(order: tuple[Operation, ...], num_stages: int, stage: int) -> tuple[Step, ...]:
    """Add to a stage's operations what it sends and receives.

    The results of one operation travel together with what the next one needs. A send and the receive that faces it
    are therefore never posted one behind the other, which would lock two stages up where a send waits for its receiver.
    """
    steps: list[Step] = []
    unsent: tuple[Message, ...] = ()
    for operation in order:
        from_previous = operation.kind == "forward"
        has_source = stage > 0 if from_previous else stage < num_stages - 1
        needed = (Message(operation.micro_batch, to_next=not from_previous),) if has_source else ()
        steps.append(Step(unsent, needed, operation))
        has_target = stage < num_stages - 1 if from_previous else stage > 0
        unsent = (Message(operation.micro_batch, to_next=from_previous),) if has_target else ()
    if unsent:
        steps.append(Step(unsent, (), None))
    return tuple(steps)
