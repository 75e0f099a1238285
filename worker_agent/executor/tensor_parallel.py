"""What the ranks that share a stage do together: sums inside layers, embedding and loss over a cut vocabulary."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx
from torch.nn import functional

from worker_agent.executor.collectives import rank_loss_named
from worker_agent.executor.loss import IGNORED, widened
from worker_agent.executor.parts import TensorCall
from worker_agent.executor.scratch import Scratch, losses_dtype


class TensorGroup:
    """The process group of the ranks that share a stage.

    It counts its collectives, so that a rank that fails between two of them can answer the rest with zeros and no
    other rank waits for it.

    Attributes
    ----------
    num_calls
        Collectives since the last `begin`.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.num_calls = 0

    def begin(self) -> None:
        """Begin to count anew."""
        self.num_calls = 0

    def combine(self, values: Tensor, operation: str) -> None:
        """Replace values on every rank by their ``"sum"`` or ``"max"`` over the ranks.

        Raises
        ------
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        reduction = dist.ReduceOp.MAX if operation == "max" else dist.ReduceOp.SUM
        with rank_loss_named("computing a stage together"):
            dist.all_reduce(values, reduction, group=self._group)
        self.num_calls += 1

    def answer(self, calls: Sequence[TensorCall], dtype: torch.dtype, scratch: Scratch) -> None:
        """Take part in those of an operation's calls that were not made yet, with values of no meaning."""
        for call in calls[self.num_calls :]:
            values = scratch.take(call.shape, losses_dtype(dtype) if call.of_losses else dtype)
            self.combine(values.zero_(), call.operation)


def split_input(hidden: Tensor, ranks: TensorGroup | None) -> Tensor:
    """Hand the same input to every rank's share of a matrix; its gradient is the sum over the ranks."""
    return hidden if ranks is None else _SplitInput.apply(hidden, ranks)  # type: ignore[no-untyped-call]


def joined_output(partial: Tensor, ranks: TensorGroup | None) -> Tensor:
    """Sum the ranks' parts of an output, in place; its gradient is the same on every rank."""
    return partial if ranks is None else _JoinedOutput.apply(partial, ranks)  # type: ignore[no-untyped-call]


def embedded(tokens: Tensor, embedding: Tensor, first: int, ranks: TensorGroup | None) -> Tensor:
    """Look tokens up in an embedding whose rows the ranks share.

    Parameters
    ----------
    tokens
        Shape (tokens,), int64.
    embedding
        This rank's rows, shape (rows, hidden size).
    first
        The token id of its first row.
    ranks
        The ranks that share the embedding; None if this one has it whole.

    Returns
    -------
    Tensor
        Shape (tokens, hidden size).
    """
    if ranks is None:
        return functional.embedding(tokens, embedding)
    row, is_here = _local_rows(tokens, first, embedding.shape[0])
    return joined_output(functional.embedding(row, embedding) * is_here.unsqueeze(1).to(embedding.dtype), ranks)


def vocabulary_parallel_losses(logits: Tensor, targets: Tensor, first: int, ranks: TensorGroup) -> Tensor:
    """Return the cross-entropy (nats) of each token from logits that the ranks share; 0 where the target is `IGNORED`.

    Parameters
    ----------
    logits
        This rank's columns, shape (tokens, columns); half-precision logits are widened to fp32 first.
    targets
        Shape (tokens,), int64, the same on every rank.
    first
        The token id of the rank's first column.
    ranks
        The ranks that share the vocabulary.

    Returns
    -------
    Tensor
        Shape (tokens,), fp32 or fp64, the same on every rank. Two collectives, whatever the vocabulary
        (Shoeybi et al., arXiv 1909.08053, section 3).
    """
    losses: Tensor = _VocabularyParallelLosses.apply(widened(logits), targets, first, ranks)  # type: ignore[no-untyped-call]
    return losses


def _local_rows(tokens: Tensor, first: int, num_rows: int) -> tuple[Tensor, Tensor]:
    row = tokens - first
    return row.clamp(0, num_rows - 1), (row >= 0) & (row < num_rows)


class _SplitInput(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, hidden: Tensor, ranks: TensorGroup) -> Tensor:
        ctx.ranks = ranks  # type: ignore[attr-defined]
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # Others may hold the incoming gradient too, so the sum gets memory of its own.
        summed = gradient.clone(memory_format=torch.contiguous_format)
        ctx.ranks.combine(summed, "sum")
        return summed, None


class _JoinedOutput(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, partial: Tensor, ranks: TensorGroup) -> Tensor:
        ranks.combine(partial, "sum")
        ctx.mark_dirty(partial)
        return partial

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _VocabularyParallelLosses(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, logits: Tensor, targets: Tensor, first: int, ranks: TensorGroup) -> Tensor:
        largest = logits.amax(dim=1)
        ranks.combine(largest, "max")
        shifted = logits - largest.unsqueeze(1)
        column, is_here = _local_rows(targets, first, logits.shape[1])
        of_target = shifted.gather(1, column.unsqueeze(1)).squeeze(1).where(is_here, 0.0)
        shares = shifted.exp_()
        both = torch.stack((shares.sum(dim=1), of_target))
        ranks.combine(both, "sum")
        has_target = targets != IGNORED
        ctx.save_for_backward(shares.div_(both[0].unsqueeze(1)), column, is_here, has_target)
        return (both[0].log() - both[1]).where(has_target, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        shares, column, is_here, has_target = ctx.saved_tensors
        of_logits = shares.scatter_add(1, column.unsqueeze(1), -is_here.unsqueeze(1).to(shares.dtype))
        return of_logits.mul_((gradient * has_target).unsqueeze(1)), None, None, None
