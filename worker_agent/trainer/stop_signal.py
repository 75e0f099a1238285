"""SIGTERM and SIGINT as a wish: whoever wants the machine back lets the run write a checkpoint first."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType


@dataclass
class StopWish:
    """Whether somebody has asked this process to stop.

    Attributes
    ----------
    is_there
        Whether somebody has.
    """

    is_there: bool = False


@contextmanager
def stop_wish() -> Iterator[StopWish]:
    """Take SIGTERM, and SIGINT once, as a wish while the block runs; outside the main thread signals stay as they are.

    A second SIGINT interrupts at once: somebody at a keyboard does not wait for a long iteration.
    """
    wish = StopWish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def take(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and wish.is_there:
            signal.default_int_handler(number, frame)
        wish.is_there = True

    before = {number: signal.signal(number, take) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield wish
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
