"""A Llama-style decoder over packed sequences."""

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from worker_agent.executor.attention import varlen_attention
from worker_agent.executor.loss import token_losses
from worker_agent.executor.parameters import Parameter, ParameterTable
from worker_agent.executor.parts import ModelPart
from worker_agent.executor.shape import DecoderConfig
from worker_agent.executor.tensor_parallel import (
    TensorGroup,
    embedded,
    joined_output,
    split_input,
    vocabulary_parallel_losses,
)

__all__ = ["Decoder", "DecoderConfig", "DecoderLayer", "DecoderStage", "RMSNorm", "drawn_weights", "rotary_table"]


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

    def __init__(self, part: ModelPart) -> None:
        super().__init__()
        config = part.config
        hidden, self.head_size = config.hidden_size, config.head_size
        query_size, kv_size = (self.head_size * len(part.rows(split)) for split in ("heads", "kv_heads"))
        ffn_size = len(part.rows("ffn"))
        self.attention_norm = RMSNorm(hidden, config.norm_eps)
        self.query = nn.Parameter(torch.empty(query_size, hidden))
        self.key = nn.Parameter(torch.empty(kv_size, hidden))
        self.value = nn.Parameter(torch.empty(kv_size, hidden))
        self.attention_out = nn.Parameter(torch.empty(query_size, hidden))
        self.ffn_norm = RMSNorm(hidden, config.norm_eps)
        self.gate = nn.Parameter(torch.empty(ffn_size, hidden))
        self.up = nn.Parameter(torch.empty(ffn_size, hidden))
        self.down = nn.Parameter(torch.empty(ffn_size, hidden))
        self.tensor_group: TensorGroup | None = None
        self._kv_head_of_head = None if part.kv_heads_serve_evenly else list(part.kv_head_of_head)

    def forward(self, hidden: Tensor, rotation: tuple[Tensor, Tensor], cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """Return the layer's output, shape (tokens, hidden size)."""
        normed = split_input(self.attention_norm(hidden), self.tensor_group)
        query = _rotate(self._heads(normed, self.query), rotation)
        key = _rotate(self._heads(normed, self.key), rotation)
        value = self._heads(normed, self.value)
        if self._kv_head_of_head is not None:
            key, value = key[:, self._kv_head_of_head], value[:, self._kv_head_of_head]
        attended = varlen_attention(query, key, value, cu_seqlens, max_seqlen)
        hidden = hidden + joined_output(attended.flatten(1) @ self.attention_out, self.tensor_group)
        normed = split_input(self.ffn_norm(hidden), self.tensor_group)
        gated = functional.silu(functional.linear(normed, self.gate)) * functional.linear(normed, self.up)
        return hidden + joined_output(gated @ self.down, self.tensor_group)

    def _heads(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return functional.linear(hidden, weight).view(hidden.shape[0], -1, self.head_size)


class DecoderStage(nn.Module):
    """The part of a decoder that one rank computes; the weights are what memory holds until they are replaced.

    Parameters are named as in the whole decoder; a tied head on a stage without the embedding is called ``head``.

    Attributes
    ----------
    part
        Which part it is.
    """

    def __init__(self, part: ModelPart) -> None:
        super().__init__()
        self.part = part
        config = part.config
        self._tensor_group: TensorGroup | None = None
        vocabulary_shape = (len(part.rows("vocabulary")), config.hidden_size)
        if part.is_first:
            self.embedding = nn.Parameter(torch.empty(vocabulary_shape))
        self._own_layers = [DecoderLayer(part) for _ in part.layers]
        self.layers = nn.ModuleDict(
            {str(number): layer for number, layer in zip(part.layers, self._own_layers, strict=True)}
        )
        if part.is_last:
            self.final_norm = RMSNorm(config.hidden_size, config.norm_eps)
            self.head = self.embedding if self._head_is_embedding else nn.Parameter(torch.empty(vocabulary_shape))

    def forward(self, received: Tensor, cu_seqlens: Tensor, max_seqlen: int) -> Tensor:
        """Run the stage on packed sequences.

        Parameters
        ----------
        received
            On the first stage token ids, shape (tokens,), int64; on later ones the output of the stage before, shape
            (tokens, hidden size).
        cu_seqlens
            Bounds of the sequences, shape (sequences + 1,), int32.
        max_seqlen
            Longest sequence (tokens).

        Returns
        -------
        Tensor
            On the last stage logits of this rank's vocabulary entries, shape (tokens, entries); on earlier ones the
            input of the next, shape (tokens, hidden size).
        """
        hidden = received
        if self.part.is_first:
            first = self.part.rows("vocabulary").start
            hidden = embedded(received, self.embedding, first, self._tensor_group)
        rotation = rotary_table(cu_seqlens, hidden.shape[0], self.part.config, hidden.dtype)
        for layer in self._own_layers:
            hidden = layer(hidden, rotation, cu_seqlens, max_seqlen)
        if not self.part.is_last:
            return hidden
        return functional.linear(split_input(self.final_norm(hidden), self._tensor_group), self.head)

    def losses(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy (nats) of each token from the last stage's logits, shape (tokens,)."""
        if self._tensor_group is None:
            return token_losses(logits, targets)
        return vocabulary_parallel_losses(logits, targets, self.part.rows("vocabulary").start, self._tensor_group)

    def connect(self, tensor_group: TensorGroup | None) -> None:
        """Name the ranks that share the stage; None if this one has it alone."""
        self._tensor_group = tensor_group
        for layer in self._own_layers:
            layer.tensor_group = tensor_group

    def replace_parameter(self, name: str, parameter: nn.Parameter) -> None:
        """Let a parameter be another tensor of the same shape."""
        owner, _, leaf = name.rpartition(".")
        setattr(self.get_submodule(owner), leaf, parameter)
        if name == "embedding" and self._head_is_embedding:
            self.head = parameter

    @property
    def _head_is_embedding(self) -> bool:
        return self.part.config.tied_embeddings and self.part.is_first and self.part.is_last


class Decoder(DecoderStage):
    """A decoder-only language model over packed sequences: one stage that one rank has alone.

    Attributes
    ----------
    config
        Its shape.

    Notes
    -----
    The weights depend on the seed alone; see `drawn_weights`.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(ModelPart(config))
        self.config = config
        named = dict(self.named_parameters())
        with torch.no_grad():
            for name, weights in drawn_weights(config, seed):
                named[name].copy_(weights)
        self.to(dtype=dtype, device=device)

    @property
    def vocab_size(self) -> int:
        """Number of token ids; they run from 0 to one less."""
        return self.config.vocab_size

    @property
    def num_parameters(self) -> int:
        """Number of weights, shared ones counted once."""
        return sum(parameter.numel() for parameter in self.parameters())


def drawn_weights(config: DecoderConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Draw a decoder's first weights one parameter after the other, so that no more than one is held at a time.

    They depend on the seed alone, not on rank, device or layout. Matrices are drawn in fp32 with standard deviation
    0.02, those that add to the residual stream divided by sqrt(2 * layers) (Radford et al., 2019, section 2.3);
    norms begin as 1.
    """
    generator = torch.Generator().manual_seed(seed)
    residual = 1 / math.sqrt(2 * config.num_layers)
    for entry in sorted(ParameterTable.of(config).entries, key=_drawing_order):
        if not entry.is_matrix:
            yield entry.name, torch.ones(entry.shape)
            continue
        adds_to_residual = entry.name.endswith((".attention_out", ".down"))
        deviation = 0.02 * (residual if adds_to_residual else 1.0)
        yield entry.name, torch.empty(entry.shape, dtype=torch.float32).normal_(0.0, deviation, generator=generator)


def _drawing_order(entry: Parameter) -> tuple[bool, int]:
    """Draw embedding and head first, then the layers: the order that a seed's weights have always been drawn in."""
    return entry.layer is not None, entry.layer or 0


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
