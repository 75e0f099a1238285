"""Time of one replica's pipeline under 1F1B, event by event, in the fewest steps.

This is the special case on the planning path; ``core.schedules`` runs any schedule and says when each operation runs.
"""

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

    Round r of the loop runs the forward of micro-batch ``r + w`` on the stage with w stages after it, then the
    backward of micro-batch r on every stage from the last to the first; that is an order in which everything an
    operation waits for is known, so only the ends of each stage's last forward and last operation are kept.

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
    clock = [0.0] * num_stages
    forward_end = [0.0] * num_stages
    downwards = range(num_stages - 1, -1, -1)
    for finishing in range(1 - num_stages, count):
        arrived = 0.0
        index = finishing + num_stages
        for stage in range(num_stages):
            index -= 1
            sent = forward_end[stage]
            # A conditional where max() would do, here and below: the call would double the time of the whole function.
            if 0 <= index < count:
                free = clock[stage]
                clock[stage] = forward_end[stage] = (free if free > arrived else arrived) + forward[index]
            arrived = sent
        if finishing >= 0:
            lasts = backward[finishing]
            arrived = 0.0
            for stage in downwards:
                free = clock[stage]
                arrived = (free if free > arrived else arrived) + lasts
                clock[stage] = arrived
    return clock[0]
