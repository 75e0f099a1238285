"""Event-by-event time of one replica's pipeline under 1F1B."""

from collections.abc import Sequence

FORWARD_SHARE = 1.0 / 3.0
"""Share of a micro-batch's time that is forward; the backward pass does twice the arithmetic."""


def one_forward_one_backward(num_stages: int, stage: int, num_micro_batches: int) -> list[tuple[bool, int]]:
    """Operations of one stage as (is forward, micro-batch), in the order they run.

    A stage warms up with one forward for each stage after it, alternates, then drains its backwards.
    """
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    operations = [(True, index) for index in range(warm_up)]
    for index in range(num_micro_batches - warm_up):
        operations += [(True, warm_up + index), (False, index)]
    operations += [(False, index) for index in range(num_micro_batches - warm_up, num_micro_batches)]
    return operations


def simulate_1f1b(num_stages: int, micro_batches_ms: Sequence[float]) -> float:
    """Time until the last backward of the first stage ends.

    Parameters
    ----------
    num_stages
        Pipeline stages, each of which takes ``micro_batches_ms[i]`` for micro-batch i, forward and backward.
    micro_batches_ms
        Micro-batch times in the order they run.

    Returns
    -------
    float
        Simulated time in ms; communication between stages is taken as hidden.
    """
    count = len(micro_batches_ms)
    if num_stages == 1:
        return float(sum(micro_batches_ms))
    forward = [time * FORWARD_SHARE for time in micro_batches_ms]
    backward = [time - share for time, share in zip(micro_batches_ms, forward, strict=True)]
    schedules = [one_forward_one_backward(num_stages, stage, count) for stage in range(num_stages)]
    forward_end = [[-1.0] * count for _ in range(num_stages + 1)]
    backward_end = [[-1.0] * count for _ in range(num_stages + 1)]
    forward_end[0] = [0.0] * count  # of the stage before the first
    clock = [0.0] * num_stages
    position = [0] * num_stages
    remaining = 2 * count * num_stages
    while remaining:
        for stage in range(num_stages):
            operations = schedules[stage]
            while position[stage] < len(operations):
                is_forward, index = operations[position[stage]]
                if is_forward:
                    ready = forward_end[stage][index]
                elif stage == num_stages - 1:
                    ready = forward_end[num_stages][index]
                else:
                    ready = backward_end[stage + 1][index]
                if ready < 0:
                    break
                end = max(ready, clock[stage]) + (forward[index] if is_forward else backward[index])
                clock[stage] = end
                if is_forward:
                    forward_end[stage + 1][index] = end
                else:
                    backward_end[stage][index] = end
                position[stage] += 1
                remaining -= 1
    return max(clock)
