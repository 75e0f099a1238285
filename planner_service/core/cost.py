"""The cost model: time of a sequence, a micro-batch and a replica (DESIGN: closed form).

``t(M) = c + sum (a s^2 + b s)`` is the time of one micro-batch on the slowest pipeline stage, forward and backward;
a replica of ``pp`` stages that runs micro-batches ``M_1..M_v`` takes ``sum t(M_i) + (pp - 1) max t(M_i)``, the
makespan of a proportionate flow shop.
"""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from planner_service.core.problem import Floats, Ints, ReplicaKind


def sequence_ms(kind: ReplicaKind, lengths: Ints) -> Floats:
    """Time that each sequence adds to its micro-batch on one stage.

    Parameters
    ----------
    kind
        Replica kind.
    lengths
        Occupied lengths in tokens. Shape (D,).

    Returns
    -------
    Floats
        ``a s^2 + b s`` in ms. Shape (D,).
    """
    s = lengths.astype(float)
    return np.asarray(kind.a * s * s + kind.b * s)


def micro_batch_ms(kind: ReplicaKind, lengths_and_counts: Iterable[tuple[int, int]]) -> float:
    """Time of one micro-batch on one stage, in ms, from (occupied length, count) pairs."""
    return kind.c + sum(count * (kind.a * length * length + kind.b * length) for length, count in lengths_and_counts)


def replica_ms(pp: int, micro_batches_ms: Sequence[float]) -> float:
    """Closed-form makespan of one replica in ms; 0 without micro-batches."""
    if not micro_batches_ms:
        return 0.0
    return math.fsum(micro_batches_ms) + (pp - 1) * max(micro_batches_ms)


def least_replica_ms(kind: ReplicaKind, work_ms: float, num_tokens: int, largest_ms: float) -> float:
    """Lower estimate of the makespan of a replica from what it holds, without packing it.

    Over the number of micro-batches v: ``S + c (v + pp - 1) + (pp - 1) max(S / v, largest)``, with v at least
    ``ceil(tokens / max_tokens)``, since the largest micro-batch is at least the average and holds the costliest
    sequence.

    Parameters
    ----------
    kind
        Replica kind.
    work_ms
        Cost of all its sequences, without the c of each micro-batch.
    num_tokens
        Tokens of all its sequences.
    largest_ms
        Cost of its costliest sequence.
    """
    if num_tokens == 0:
        return 0.0
    fewest = -(-num_tokens // kind.max_tokens)
    stages_more = kind.pp - 1
    if stages_more == 0:
        return work_ms + kind.c * fewest

    def with_count(v: int) -> float:
        return work_ms + kind.c * (v + stages_more) + stages_more * max(work_ms / v, largest_ms)

    # The sum falls until the average is no larger than the costliest sequence or c outweighs the gain.
    useful = work_ms / largest_ms if largest_ms > 0 else 1.0
    best = math.sqrt(stages_more * work_ms / kind.c) if kind.c > 0 else useful
    v = max(fewest, int(min(best, useful)))
    return min(with_count(v), with_count(v + 1))
