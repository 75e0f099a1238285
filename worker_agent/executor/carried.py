"""A fault of one rank, carried along until all ranks settle it.

Ranks wait for one another at every step of an iteration. One that fails must not leave the others waiting: it keeps its
fault, does nothing more that it need not do, and goes on to take part in what the others wait for, from memory that
was reserved before the ranks agreed to begin. What it sends is of the right shape and else without meaning: all ranks
settle the fault before any optimizer steps.
"""

import traceback
from collections.abc import Callable
from typing import TypeVar

import torch

from worker_agent.executor.faults import PartFailed, RankLost, text_of

T = TypeVar("T")

_NO_MEMORY_SIGNS = ("not enough memory", "can't allocate memory", "out of memory")
"""What torch's allocators say in plain runtime errors."""


class CarriedFault:
    """One rank's first fault in an iteration.

    Parameters
    ----------
    device
        Where the rank computes; what its allocator holds back is given up after a fault.

    Attributes
    ----------
    fault
        The fault, without the frames that would keep tensors alive; None while there is none.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.fault: PartFailed | None = None

    def attempt(
        self,
        doing: str,
        act: Callable[[], T],
        otherwise: Callable[[], T],
        named: Callable[[Exception], PartFailed] | None = None,
    ) -> T:
        """Act; where that raises, or a fault is carried already, do what can be done otherwise.

        Parameters
        ----------
        doing
            What is done, for the fault's text.
        act
            May raise, but must not wait for other ranks before it does.
        otherwise
            Takes part in what the other ranks wait for, without needing memory.
        named
            Tells what happened of what was raised; by default that it was raised while ``doing``.

        Raises
        ------
        RankLost
            Passed on: then nobody waits any more.
        """
        if self.fault is None:
            try:
                return act()
            except RankLost:
                raise
            except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
                self.fault = _named(caught, doing) if named is None else named(caught)
                self.fault.add_note("".join(traceback.format_exception(caught)))
            # Outside the handler, so that the tensors its traceback held are free again.
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
        return otherwise()


def lacks_memory(fault: Exception) -> bool:
    """Tell whether a fault is one of too little memory, whatever its type."""
    if isinstance(fault, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(fault, RuntimeError) and any(sign in text_of(fault) for sign in _NO_MEMORY_SIGNS)


def nothing() -> None:
    """Do nothing: the rest of an iteration needs nothing in place of what failed."""


def _named(fault: Exception, doing: str) -> PartFailed:
    return PartFailed(f"{doing} raised {type(fault).__name__}: {text_of(fault)}")
