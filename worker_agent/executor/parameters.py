"""Every trained parameter of a decoder in one flat order, and the shard of it that each rank keeps: pure, no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, Self

from worker_agent.executor.shape import DecoderConfig

Split = Literal["vocabulary", "heads", "kv_heads", "ffn"]
"""What the rows of a matrix are cut along by tensor parallelism."""

Interval = tuple[int, int]
"""First element and the one after the last."""


@dataclass(frozen=True)
class Parameter:
    """One trained parameter of a decoder.

    Attributes
    ----------
    name
        Its name among ``Decoder.named_parameters()``.
    shape
        Matrices have rows first, and tensor parallelism cuts rows alone, so that every slice is one interval.
    begin
        Its first element in the flat order.
    split
        What its rows are cut along; None for a parameter that every tensor-parallel rank holds whole.
    layer
        The layer it belongs to; None outside the layers.
    """

    name: str
    shape: tuple[int, ...]
    begin: int
    split: Split | None = None
    layer: int | None = None

    @property
    def num_elements(self) -> int:
        """Number of its elements."""
        return prod(self.shape)

    @property
    def end(self) -> int:
        """The element after its last in the flat order."""
        return self.begin + self.num_elements

    @property
    def row_elements(self) -> int:
        """Elements of one row; 1 for a vector."""
        return prod(self.shape[1:])

    @property
    def is_matrix(self) -> bool:
        """Whether it is a matrix, which weight decay shrinks, and no norm's weight, which it leaves alone."""
        return len(self.shape) > 1


@dataclass(frozen=True)
class ParameterTable:
    """All trained parameters of a decoder, each once, in the order a forward pass uses them.

    Attributes
    ----------
    config
        The decoder's shape.
    entries
        Embedding, layers, final norm, head; a tied head is the embedding and has no entry of its own.
    """

    config: DecoderConfig
    entries: tuple[Parameter, ...]

    @classmethod
    def of(cls, config: DecoderConfig) -> Self:
        """Return the table of a decoder."""
        entries: list[Parameter] = []
        begin = 0
        for name, shape, split, layer in _rows(config):
            entries.append(Parameter(name, shape, begin, split, layer))
            begin = entries[-1].end
        return cls(config, tuple(entries))

    @property
    def num_elements(self) -> int:
        """Number of trained weights, shared ones counted once."""
        return self.entries[-1].end

    def entry(self, name: str) -> Parameter:
        """Return a parameter by name.

        Raises
        ------
        KeyError
            If the decoder has no such parameter.
        """
        if name not in self._by_name:
            raise KeyError(f"no parameter {name!r}; the decoder has {', '.join(list(self._by_name)[:4])}, ...")
        return self._by_name[name]

    def shard(self, rank: int, world_size: int) -> Interval:
        """Return the elements that one rank keeps.

        Shards have ceil(elements / ranks) elements, as ``torch.chunk`` and DTensor's ``Shard(0)`` cut; the last ones
        may be shorter or empty.
        """
        size = -(-self.num_elements // world_size)
        begin = min(rank * size, self.num_elements)
        return begin, min(begin + size, self.num_elements)

    @cached_property
    def _by_name(self) -> dict[str, Parameter]:
        return {entry.name: entry for entry in self.entries}


_Row = tuple[str, tuple[int, ...], Split | None, int | None]


def _rows(config: DecoderConfig) -> Iterator[_Row]:
    hidden = config.hidden_size
    yield "embedding", (config.vocab_size, hidden), "vocabulary", None
    for layer in range(config.num_layers):
        yield from _layer_rows(config, layer)
    yield "final_norm.weight", (hidden,), None, None
    if not config.tied_embeddings:
        yield "head", (config.vocab_size, hidden), "vocabulary", None


def _layer_rows(config: DecoderConfig, layer: int) -> Iterator[_Row]:
    hidden, kv_size = config.hidden_size, config.kv_heads * config.head_size
    named: tuple[tuple[str, tuple[int, ...], Split | None], ...] = (
        ("attention_norm.weight", (hidden,), None),
        ("query", (hidden, hidden), "heads"),
        ("key", (kv_size, hidden), "kv_heads"),
        ("value", (kv_size, hidden), "kv_heads"),
        ("attention_out", (hidden, hidden), "heads"),
        ("ffn_norm.weight", (hidden,), None),
        ("gate", (config.ffn, hidden), "ffn"),
        ("up", (config.ffn, hidden), "ffn"),
        ("down", (config.ffn, hidden), "ffn"),
    )
    for name, shape, split in named:
        yield f"layers.{layer}.{name}", shape, split, layer
