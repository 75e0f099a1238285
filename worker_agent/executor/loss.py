"""Token losses of packed sequences: each token predicts its successor in its own sequence."""

import torch
from torch import Tensor
from torch.nn import functional

IGNORED = -100
"""Target of a token that predicts nothing: the last of its sequence, and padding."""


def next_token_targets(tokens: Tensor, cu_seqlens: Tensor, lengths: Tensor | None = None) -> Tensor:
    """Return what each token is to predict.

    Parameters
    ----------
    tokens
        Token ids of the packed sequences, shape (tokens,), int64.
    cu_seqlens
        Bounds of the sequences, padding included, shape (sequences + 1,).
    lengths
        Each sequence's own tokens, without the padding that follows them, shape (sequences,); by default there is
        no padding.

    Returns
    -------
    Tensor
        Shape (tokens,), int64; `IGNORED` for the last token of each sequence and for padding. A sequence of length
        1 has no target.
    """
    targets = torch.full_like(tokens, IGNORED)
    targets[:-1] = tokens[1:]
    begins = cu_seqlens[:-1].long()
    if lengths is None:
        targets[cu_seqlens[1:].long() - 1] = IGNORED
        return targets
    own = torch.repeat_interleave(begins + lengths, cu_seqlens.diff(), output_size=tokens.numel())
    targets[torch.arange(tokens.numel(), device=tokens.device) >= own - 1] = IGNORED
    return targets


def token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy (nats) of each token, 0 where the target is `IGNORED`.

    Parameters
    ----------
    logits
        Shape (tokens, vocab size); half-precision logits are widened to fp32 first.
    targets
        Shape (tokens,), int64.

    Returns
    -------
    Tensor
        Shape (tokens,), fp32 or fp64.
    """
    return functional.cross_entropy(widened(logits), targets, ignore_index=IGNORED, reduction="none")


def widened(logits: Tensor) -> Tensor:
    """Return logits in the dtype that losses are computed in: fp64 stays, all else becomes fp32."""
    return logits if logits.dtype == torch.float64 else logits.float()


def sequence_losses(losses: Tensor, cu_seqlens: Tensor) -> Tensor:
    """Sum token losses over each sequence.

    Parameters
    ----------
    losses
        Shape (tokens,).
    cu_seqlens
        Bounds of the sequences, shape (sequences + 1,).

    Returns
    -------
    Tensor
        Shape (sequences,), fp64.
    """
    num_sequences = cu_seqlens.numel() - 1
    owners = torch.repeat_interleave(
        torch.arange(num_sequences, device=losses.device), cu_seqlens.diff(), output_size=losses.numel()
    )
    sums = torch.zeros(num_sequences, dtype=torch.float64, device=losses.device)
    return sums.index_add(0, owners, losses.double())


def scaled_loss(losses: Tensor, num_targets: int) -> Tensor:
    """Return a micro-batch's share of the iteration's loss: the sum of its token losses over the global targets.

    The shares of all micro-batches of all replicas add up to the mean token loss of the global batch, whatever the
    plan. Without any target in the whole iteration the share is 0.
    """
    return losses.sum() * (1.0 / num_targets if num_targets else 0.0)
