"""One sequence at a time, dense masks, complex rotations: shares no code with the executor but the weights."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from worker_agent.executor.model import Decoder
from worker_agent.executor.parameters import ParameterTable
from worker_agent.executor.shape import DecoderConfig


def reference_logits(model: Decoder, sequence: Tensor) -> Tensor:
    """Logits of one sequence, shape (tokens, vocab size)."""
    config = model.config
    weights = dict(model.named_parameters())
    hidden = weights["embedding"][sequence]
    for number in range(config.num_layers):
        layer = {name: weights[f"layers.{number}.{name}"] for name in _LAYER_WEIGHTS}
        normed = _norm(hidden, layer["attention_norm.weight"], config)
        query = _rotated(normed @ layer["query"].T, config)
        key = _rotated(normed @ layer["key"].T, config)
        value = _heads(normed @ layer["value"].T, config)
        mixed = []
        for head in range(config.num_heads):
            shared = head // (config.num_heads // config.kv_heads)
            scores = query[:, head] @ key[:, shared].T / config.head_size**0.5
            future = torch.ones_like(scores, dtype=torch.bool).triu(1)
            mixed.append(torch.softmax(scores.masked_fill(future, float("-inf")), dim=-1) @ value[:, shared])
        hidden = hidden + torch.cat(mixed, dim=1) @ layer["attention_out"]
        normed = _norm(hidden, layer["ffn_norm.weight"], config)
        gate = normed @ layer["gate"].T
        hidden = hidden + (gate * torch.sigmoid(gate) * (normed @ layer["up"].T)) @ layer["down"]
    return _norm(hidden, weights["final_norm.weight"], config) @ model.head.T


def reference_loss(model: Decoder, sequence: Tensor) -> Tensor:
    """Summed token loss of one sequence; 0 for a sequence of one token."""
    log_probabilities = torch.log_softmax(reference_logits(model, sequence), dim=-1)
    return -log_probabilities[torch.arange(len(sequence) - 1), sequence[1:]].sum()


def reference_step(model: Decoder, sequences: Iterable[Tensor]) -> tuple[float, Tensor, list[float]]:
    """Mean token loss of a batch, its flat gradient in the order of `ParameterTable`, each sequence's summed loss."""
    model.zero_grad()
    sequences = list(sequences)
    num_targets = sum(len(sequence) - 1 for sequence in sequences)
    losses = [reference_loss(model, sequence) for sequence in sequences]
    total = torch.stack(losses).sum() / num_targets
    total.backward()
    gradient = flat({name: parameter.grad for name, parameter in model.named_parameters()}, model.config)
    return total.item(), gradient, [loss.item() for loss in losses]


def flat(named: Mapping[str, Tensor], config: DecoderConfig) -> Tensor:
    """Lay a decoder's parameters, or their gradients, out in the order of `ParameterTable`."""
    return torch.cat([named[entry.name].detach().flatten() for entry in ParameterTable.of(config).entries])


def flat_weights(model: Decoder) -> Tensor:
    return flat(dict(model.named_parameters()), model.config)


def optimizer_groups(model: Decoder) -> list[dict[str, Any]]:
    """Matrices, and norms without decay."""
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return [{"params": matrices}, {"params": norms, "weight_decay": 0.0}]


_LAYER_WEIGHTS = (
    "attention_norm.weight",
    "query",
    "key",
    "value",
    "attention_out",
    "ffn_norm.weight",
    "gate",
    "up",
    "down",
)


def _norm(hidden: Tensor, weight: Tensor, config: DecoderConfig) -> Tensor:
    return hidden / (hidden.pow(2).mean(dim=-1, keepdim=True) + config.norm_eps).sqrt() * weight


def _heads(flat: Tensor, config: DecoderConfig) -> Tensor:
    return flat.reshape(len(flat), -1, config.head_size)


def _rotated(flat: Tensor, config: DecoderConfig) -> Tensor:
    heads = _heads(flat, config)
    half = config.head_size // 2
    angles = torch.tensor(
        [
            [position * config.rope_base ** (-2 * i / config.head_size) for i in range(half)]
            for position in range(len(flat))
        ],
        dtype=torch.float64,
    )
    turned = torch.complex(heads[..., :half], heads[..., half:]) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)
