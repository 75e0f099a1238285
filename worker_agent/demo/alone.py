"""The reference: the same decoder trained by one process alone."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from worker_agent.executor.loss import next_token_targets, scaled_loss, token_losses
from worker_agent.executor.model import Decoder
from worker_agent.executor.shape import DecoderConfig


class TrainingAlone:
    """Trains a whole decoder with AdamW in this process alone: no plan, shard, packing or collective.

    Parameters
    ----------
    config
        The decoder's shape.
    seed
        Of its first weights.
    learning_rate
        AdamW's; norms' weights do not decay, as in `worker_agent.executor.shards.ShardedState`.
    """

    def __init__(self, config: DecoderConfig, *, seed: int, learning_rate: float) -> None:
        self._model = Decoder(config, seed=seed)
        weights = list(self._model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [weight for weight in weights if weight.dim() > 1]},
            {"params": [weight for weight in weights if weight.dim() == 1], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(groups, lr=learning_rate)

    def step(self, sequences: Sequence[Tensor]) -> float:
        """Train on one global batch, one sequence at a time, and return its mean token loss (nats).

        Parameters
        ----------
        sequences
            Token ids of each sequence, shape (length,), int64. Without a token to predict nothing is trained and the
            loss is 0, as in an iteration by a plan.
        """
        num_targets = sum(len(sequence) - 1 for sequence in sequences)
        if num_targets == 0:
            return 0.0
        self._optimizer.zero_grad()
        loss_sum = 0.0
        for sequence in sequences:
            cu_seqlens = torch.tensor([0, len(sequence)], dtype=torch.int32)
            logits = self._model(sequence, cu_seqlens, len(sequence))
            losses = token_losses(logits, next_token_targets(sequence, cu_seqlens))
            scaled_loss(losses, num_targets).backward()  # type: ignore[no-untyped-call]
            loss_sum += losses.sum(dtype=torch.float64).item()
        self._optimizer.step()
        return loss_sum / num_targets
