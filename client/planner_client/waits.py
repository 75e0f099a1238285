"""Times that callers give: what can be waited for, and what cannot. Pure."""

import math

MAX_TRY_S = 86_400.0
"""Longest time of one try: operating systems bound the waits of sockets and threads, some to a few weeks."""


def with_an_end(name: str, seconds: float) -> float:
    """Return a time (s) if it has an end; one that is over already is the caller's to find out.

    Raises
    ------
    ValueError
        If it is infinite or no number.
    """
    if not math.isfinite(seconds):
        raise ValueError(f"{name} is {seconds}; give a number of seconds, so that waiting has an end")
    return seconds


def positive(name: str, seconds: float) -> float:
    """Return a time (s) if something can happen within it.

    Raises
    ------
    ValueError
        If it is 0 or less, infinite or no number.
    """
    if not 0 < seconds < math.inf:
        raise ValueError(f"{name} is {seconds}; give more than 0 seconds, and an end")
    return seconds
