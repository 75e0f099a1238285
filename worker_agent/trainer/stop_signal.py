"""SIGTERM as a wish: a cluster that takes a machine back lets the run write a checkpoint first."""

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
    """Take SIGTERM as a wish while the block runs; outside the main thread signals stay as they are."""
    wish = StopWish()
    if threading.current_thread() is not threading.main_thread():
        yield wish
        return

    def take(_number: int, _frame: FrameType | None) -> None:
        wish.is_there = True

    before = signal.signal(signal.SIGTERM, take)
    try:
        yield wish
    finally:
        signal.signal(signal.SIGTERM, before)
