"""A Llama-style decoder over packed sequences."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker_agent.executor.attention import varlen_attention
from worker_agent.executor.shape import DecoderConfig

__all__ = ["Decoder", "DecoderConfig", "DecoderLayer", "RMSNorm", "rotary_table"]


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        """Return the normed input, same shape."""
        return functional.rms_norm(hidden, self.weight.shape, self.weight, self.eps)


class DecoderLayer(nn.Module):
    """Attention and SwiGLU feed-forward, each after a norm and added to its input.

    Matrices whose output is split over tensor-parallel ranks are stored [out, in], those whose input is split
    [in, out], so that each rank's slice is one interval of memory.
    """

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        hidden, kv_size = config.hidden_size, config.kv_heads * config.head_size
        self.head_size = config.head_size
        self.attention_norm = RMSNorm(hidden, config.norm_eps)
        self.query = nn.Parameter(torch.empty(hidden, hidden))
        self.key = nn.Parameter(torch.empty(kv_size, hidden))
        self.value = nn.Parameter(torch.empty(kv_size, hidden))
        self.attention_out = nn.Parameter(torch.empty(hidden, hidden))
        self.ffn_norm = RMSNorm(hidden, config.norm_eps)
        self.gate = nn.Parameter(torch.empty(config.ffn, hidden))
        self.up = nn.Parameter(torch.empty(config.ffn, hidden))
        self.down = nn.Parameter(torch.empty(config.ffn, hidden))

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """Return the layer's output, shape (tokens, hidden size)."""
        normed = self.attention_norm(hidden)
        query = _rotate(self._heads(normed, self.query), rotation)
        key = _rotate(self._heads(normed, self.key), rotation)
        attended = varlen_attention(query, key, self._heads(normed, self.value), cu_seqlens, max_seqlen)
        hidden = hidden + attended.flatten(1) @ self.attention_out
        normed = self.ffn_norm(hidden)
        gated = functional.silu(functional.linear(normed, self.gate)) * functional.linear(normed, self.up)
        return hidden + gated @ self.down

    def _heads(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(hidden, weight).view(hidden.shape[0], -1, self.head_size)


class Decoder(nn.Module):
    """A decoder-only language model over packed sequences.

    Attributes
    ----------
    config
        Its shape.

    Notes
    -----
    The weights depend on the seed alone, not on rank, device or the order of construction; they are drawn in fp32
    with standard deviation 0.02, matrices that add to the residual stream divided by sqrt(2 * layers)
    (Radford et al., 2019, section 2.3).
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.num_layers))
        self.final_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.head = (
            self.embedding
            if config.tied_embeddings
            else nn.Parameter(torch.empty(config.vocab_size, config.hidden_size))
        )
        self._draw_weights(seed)
        self.to(dtype=dtype, device=device)

    @property
    def vocab_size(self) -> int:
        """Number of token ids; they run from 0 to one less."""
        return self.config.vocab_size

    @property
    def num_parameters(self) -> int:
        """Number of weights, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, tokens: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """Predict each token's successor.

        Parameters
        ----------
        tokens
            Token ids of the packed sequences, shape (tokens,), int64.
        cu_seqlens
            Bounds of the sequences, shape (sequences + 1,), int32.
        max_seqlen
            Longest sequence (tokens).

        Returns
        -------
        Tensor
            Logits, shape (tokens, vocab size).
        """
        hidden = functional.embedding(tokens, self.embedding)
        rotation = rotary_table(cu_seqlens, tokens.numel(), self.config, hidden.dtype)
        for layer in self.layers:
            hidden = layer(hidden, rotation, cu_seqlens, max_seqlen)
        return functional.linear(self.final_norm(hidden), self.head)

    @torch.no_grad()
    def _draw_weights(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        residual = 1 / math.sqrt(2 * self.config.num_layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 1:
                continue
            adds_to_residual = name.endswith((".attention_out", ".down"))
            deviation = 0.02 * (residual if adds_to_residual else 1.0)
            parameter.copy_(
                torch.empty(parameter.shape, dtype=torch.float32).normal_(0.0, deviation, generator=generator)
            )


def rotary_table(
    cu_seqlens: Tensor, num_tokens: int, config: DecoderConfig, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each token's rotary angles; positions restart at 0 in every sequence.

    Angle i of position p is ``p * rope_base ** (-2 i / head size)`` (arXiv 2104.09864, equation 15), computed in
    fp64 so that long sequences lose nothing.

    Returns
    -------
    tuple of Tensor
        Two of shape (num_tokens, 1, head size / 2).
    """
    device = cu_seqlens.device
    begins = torch.repeat_interleave(cu_seqlens[:-1], cu_seqlens.diff(), output_size=num_tokens)
    positions = torch.arange(num_tokens, device=device) - begins
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.float64, device=device) / config.head_size
    angles = torch.outer(positions.double(), config.rope_base**-exponents).unsqueeze(1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def _rotate(heads: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    cosine, sine = rotation
    first, second = heads.chunk(2, dim=-1)
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
