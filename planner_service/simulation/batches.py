"""Consecutive batches of a stream."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Batches:
    """Lengths of each iteration's sequences in arrival order, and how many over-long ones were left out on the way."""

    lengths: tuple[tuple[int, ...], ...]
    num_left_out: int


def consecutive_batches(
    stream: Sequence[int], num_tokens: int, num_iterations: int, max_length: int, *, drops_over_long: bool
) -> Batches:
    """Cut a stream into batches of about ``num_tokens`` tokens; the sequence that reaches it ends a batch.

    Every planner of a replay gets the same sequences, so over-long ones are settled here.

    Parameters
    ----------
    stream
        Lengths in tokens.
    num_tokens
        Tokens of each batch.
    num_iterations
        Batches to cut.
    max_length
        Longest sequence to train on, in tokens.
    drops_over_long
        Leave longer ones out instead of refusing the stream.

    Raises
    ------
    ValueError
        If the stream is too short, or has an over-long sequence and they are not left out.
    """
    left_out: list[int] = []

    def within() -> Iterator[int]:
        for position, length in enumerate(stream, 1):
            if length <= max_length:
                yield length
            elif drops_over_long:
                left_out.append(length)
            else:
                raise ValueError(
                    f"sequence {position} of the stream has {length} tokens but the limit is {max_length}; "
                    "leave such sequences out with --over-long drop"
                )

    found = tuple(_cut(within(), num_tokens, num_iterations))
    if len(found) < num_iterations:
        raise ValueError(
            f"the stream holds {len(found)} whole batches of {num_tokens} tokens (sequences of at most {max_length}) "
            f"but {num_iterations} iterations are asked for; ask for fewer or for smaller batches"
        )
    return Batches(found, len(left_out))


def _cut(lengths: Iterable[int], num_tokens: int, num_iterations: int) -> Iterator[tuple[int, ...]]:
    held: list[int] = []
    reached = 0
    for length in lengths:
        held.append(length)
        reached += length
        if reached >= num_tokens:
            yield tuple(held)
            num_iterations -= 1
            if not num_iterations:
                return
            held, reached = [], 0
