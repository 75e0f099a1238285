"""The learning rate's rise and fall as a share of its highest value: pure, no torch."""

import math

from worker_agent.trainer.settings import ScheduleSettings


def decay_end(schedule: ScheduleSettings, num_iterations: int | None) -> int | None:
    """Return the number of iterations after which the fall has ended; None for a constant rate.

    Raises
    ------
    ValueError
        If nothing says where the fall ends.
    """
    if schedule.decay == "constant":
        return None
    end = schedule.decay_iterations or num_iterations
    if end is None:
        raise ValueError(
            f"the learning rate's {schedule.decay} fall has no end; give num_iterations, or decay_iterations"
        )
    return end


def learning_rate_share(iteration: int, schedule: ScheduleSettings, end: int | None) -> float:
    """Return the share of the highest learning rate with which an iteration steps.

    Linear rise over the warm-up, so that its first iteration already trains; then constant, or a fall that reaches
    ``final_share`` in the last iteration and stays there: linear, or half a cosine (Loshchilov and Hutter,
    arXiv 1608.03983, equation 5, without restarts).

    Parameters
    ----------
    iteration
        Counted from 0.
    schedule
        Shape of the rise and fall.
    end
        Number of iterations after which the fall has ended, from `decay_end`; None for a constant rate.

    Returns
    -------
    float
        From 0 to 1.
    """
    warmup = schedule.warmup_iterations
    if iteration < warmup:
        return (iteration + 1) / warmup
    if end is None:
        return 1.0
    # The last iteration is number end - 1, and the fall begins with the last one of the rise.
    begin = max(0, warmup - 1)
    done = 1.0 if iteration >= end - 1 else (iteration - begin) / (end - 1 - begin)
    left = 1 - done if schedule.decay == "linear" else (1 + math.cos(math.pi * done)) / 2
    return schedule.final_share + (1 - schedule.final_share) * left
