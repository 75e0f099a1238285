"""Which part of a decoder one rank computes, and which slices of the parameters that takes: pure, no torch."""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from worker_agent.executor.layout import RankRole, stage_layers
from worker_agent.executor.parameters import Parameter, ParameterTable, Split
from worker_agent.executor.shape import DecoderConfig


@dataclass(frozen=True)
class Slice:
    """An interval of rows of one parameter.

    Attributes
    ----------
    parameter
        The parameter.
    rows
        The rows held here.
    attribute
        What the module calls it: the parameter's name, but for a tied head on a stage without the embedding.
    returns_gradient
        Whether the gradient computed here counts. A parameter that all tensor-parallel ranks hold whole gets the same
        gradient on each of them, and the first one's is taken; all others are partial and add up.
    """

    parameter: Parameter
    rows: range
    attribute: str
    returns_gradient: bool = True

    @property
    def begin(self) -> int:
        """Its first element in the flat order of parameters."""
        return self.parameter.begin + self.rows.start * self.parameter.row_elements

    @property
    def end(self) -> int:
        """The element after its last in the flat order of parameters."""
        return self.parameter.begin + self.rows.stop * self.parameter.row_elements

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, rows first."""
        return (len(self.rows), *self.parameter.shape[1:])


@dataclass(frozen=True)
class ModelPart:
    """The part of a decoder that one rank computes: one stage of ``pp``, shared by ``tp`` ranks.

    The default is the whole decoder.
    """

    config: DecoderConfig
    tp: int = 1
    tp_rank: int = 0
    pp: int = 1
    stage: int = 0

    @classmethod
    def of(cls, config: DecoderConfig, role: RankRole) -> "ModelPart":
        """Return the part of a rank that has a replica."""
        return cls(config, role.tp, role.tp_rank, role.pp, role.stage)

    @property
    def layers(self) -> range:
        """Its layers, by their number in the decoder."""
        return stage_layers(self.config.num_layers, self.pp, self.stage)

    @property
    def is_first(self) -> bool:
        """Whether it begins with the embedding."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether it ends with the final norm, the head and the loss."""
        return self.stage == self.pp - 1

    def rows(self, split: Split) -> range:
        """Return the share of this rank: vocabulary entries, heads, key-value heads or feed-forward columns.

        Vocabulary and feed-forward are cut as evenly as possible. Key-value heads are those that the rank's heads
        use, so that several ranks hold the same one where there are more ranks than key-value heads.
        """
        if split == "kv_heads":
            served = self.config.num_heads // self.config.kv_heads
            heads = self.rows("heads")
            return range(heads.start // served, (heads.stop - 1) // served + 1)
        size = {"vocabulary": self.config.vocab_size, "heads": self.config.num_heads, "ffn": self.config.ffn}[split]
        return range(self.tp_rank * size // self.tp, (self.tp_rank + 1) * size // self.tp)

    @cached_property
    def kv_head_of_head(self) -> tuple[int, ...]:
        """For each of the rank's heads, which of the rank's key-value heads serves it."""
        served = self.config.num_heads // self.config.kv_heads
        first = self.rows("kv_heads").start
        return tuple(head // served - first for head in self.rows("heads"))

    @property
    def kv_heads_serve_evenly(self) -> bool:
        """Whether each key-value head serves as many neighbouring heads as any other, as attention kernels want it."""
        num_heads, num_kv_heads = len(self.rows("heads")), len(self.rows("kv_heads"))
        served, left_over = divmod(num_heads, num_kv_heads)
        return not left_over and self.kv_head_of_head == tuple(head // served for head in range(num_heads))

    def buckets(self, table: ParameterTable, layers_per_bucket: int) -> tuple[tuple[Slice, ...], ...]:
        """Return the slices of this part, in buckets that are moved together.

        Buckets follow the order of use, ``layers_per_bucket`` layers to each; the embedding goes with the first
        bucket, final norm and head with the last. Inside a bucket the slices ascend in the flat order.
        """
        first_layers = self.layers[::layers_per_bucket]
        buckets: list[list[Slice]] = [[] for _ in first_layers]
        for entry in table.entries:
            if entry.layer is not None and entry.layer in self.layers:
                buckets[(entry.layer - self.layers.start) // layers_per_bucket].append(self._slice(entry))
            elif entry.name == "embedding":
                if self.is_first:
                    buckets[0].append(self._slice(entry))
                elif self.is_last and self.config.tied_embeddings:
                    buckets[-1].append(self._slice(entry, attribute="head"))
            elif entry.layer is None and self.is_last:
                buckets[-1].append(self._slice(entry))
        return tuple(tuple(bucket) for bucket in buckets)

    def _slice(self, entry: Parameter, attribute: str | None = None) -> Slice:
        if entry.split is None:
            return Slice(entry, range(entry.shape[0]), attribute or entry.name, returns_gradient=self.tp_rank == 0)
        share = self.rows(entry.split)
        width = self.config.head_size if entry.split in {"heads", "kv_heads"} else 1
        return Slice(entry, range(share.start * width, share.stop * width), attribute or entry.name)


@dataclass(frozen=True)
class TensorCall:
    """One collective among the ranks that share a stage.

    Attributes
    ----------
    operation
        What it does with the ranks' values.
    shape
        Of the values.
    of_losses
        Whether they have the accuracy of losses, not that of the computation.
    """

    operation: Literal["sum", "max"]
    shape: tuple[int, ...]
    of_losses: bool = False


def forward_calls(part: ModelPart, num_tokens: int) -> tuple[TensorCall, ...]:
    """Return the collectives of a micro-batch's forward pass, in order; none where one rank has the stage alone.

    What is known beforehand can be answered for a rank that failed, so that no other rank waits for it.
    """
    if part.tp == 1:
        return ()
    hidden = TensorCall("sum", (num_tokens, part.config.hidden_size))
    calls = [hidden] * (part.is_first + 2 * len(part.layers))
    if part.is_last:
        calls += [
            TensorCall("max", (num_tokens,), of_losses=True),
            TensorCall("sum", (2, num_tokens), of_losses=True),
        ]
    return tuple(calls)


def backward_calls(part: ModelPart, num_tokens: int) -> tuple[TensorCall, ...]:
    """Return the collectives of a micro-batch's backward pass, in order; none where one rank has the stage alone."""
    if part.tp == 1:
        return ()
    return (TensorCall("sum", (num_tokens, part.config.hidden_size)),) * (part.is_last + 2 * len(part.layers))
