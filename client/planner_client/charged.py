"""At how many tokens sequences are charged: pure."""

from planner_client.contract import MicroBatch


def aligned(length: int, alignment: int) -> int:
    """Return a length rounded up to a multiple of the alignment (tokens)."""
    return -(-length // alignment) * alignment


def charged_lengths(micro_batch: MicroBatch, alignment: int, *, is_padded: bool) -> list[tuple[int, int]]:
    """Return (tokens charged, count) of a micro-batch's sequences; under padded cost each is as long as the longest."""
    taken = [(aligned(entry.length, alignment), entry.count) for entry in micro_batch.sequences]
    if not is_padded:
        return taken
    longest = max((length for length, _ in taken), default=0)
    return [(longest, sum(count for _, count in taken))]
