"""The shape of a decoder: pure, no torch, so that layouts and routes can be decided without it."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderConfig:
    """The shape of a decoder.

    Attributes
    ----------
    num_kv_heads
        Key-value heads; ``num_heads`` if not given, otherwise a divisor of it.
    ffn_size
        Width of the feed-forward part; 8/3 of ``hidden_size`` rounded up to a multiple of 64 if not given.
    rope_base
        Base of the rotary position embedding (Su et al., arXiv 2104.09864).
    tied_embeddings
        Whether the output head is the embedding matrix.

    Raises
    ------
    ValueError
        If a size is below 1 or the sizes do not divide as they must.
    """

    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int | None = None
    ffn_size: int | None = None
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5
    tied_embeddings: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "num_layers", "num_heads", "kv_heads", "ffn"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1")
        if self.hidden_size % (2 * self.num_heads):
            raise ValueError(
                f"hidden_size {self.hidden_size} does not divide into {self.num_heads} heads of even size, which "
                "rotary embeddings need; make it a multiple of twice the heads"
            )
        if self.num_heads % self.kv_heads:
            raise ValueError(f"{self.num_heads} heads cannot share {self.kv_heads} key-value heads evenly")

    @property
    def head_size(self) -> int:
        """Width of one attention head."""
        return self.hidden_size // self.num_heads

    @property
    def kv_heads(self) -> int:
        """Key-value heads."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def ffn(self) -> int:
        """Width of the feed-forward part."""
        return math.ceil(self.hidden_size * 8 / 3 / 64) * 64 if self.ffn_size is None else self.ffn_size
