"""Memory for what a rank that failed sends and receives in place of what it could not compute."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from planner_client.packing import PackedMicroBatch
from worker_agent.executor.parts import ModelPart


class Scratch:
    """One flat piece of memory, handed out again and again: what lies in it has no meaning.

    Parameters
    ----------
    memory
        Shape (bytes,), uint8.
    """

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor of a shape; all that were taken before share its memory."""
        return self._memory[: prod(shape) * dtype.itemsize].view(dtype).view(tuple(shape))


def num_scratch_bytes(part: ModelPart, packed: Sequence[PackedMicroBatch], dtype: torch.dtype) -> int:
    """Return the bytes of the largest message or collective of a part's micro-batches; 0 for a part without any."""
    if part.tp == 1 and part.pp == 1:
        return 0
    longest = max((one.num_physical_tokens for one in packed), default=0)
    losses = 2 * losses_dtype(dtype).itemsize
    return longest * max(part.config.hidden_size * dtype.itemsize, losses)


def losses_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that losses have where a part computes in another: fp64 stays, all else becomes fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32
