"""Acts on routes: tokens from the ranks that hold them to the ranks that compute, results back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from planner_client.groups import Groups
from planner_client.packing import Int64Array, PackedMicroBatch
from planner_client.run_order import row_indices
from planner_client.sequences import check_held
from worker_agent.executor.carried import CarriedFault, nothing
from worker_agent.executor.collectives import Group, RowExchange
from worker_agent.executor.layout import RankRole
from worker_agent.executor.routes import SequenceRoutes

PADDING_TOKEN = 0
"""Id that fills the padding of aligned sequences; nothing attends to it but padding, and it has no target."""

HeldSequences = Mapping[str, Sequence[Tensor]]
"""Token ids of each sequence that a rank holds, by source, in the order held."""

HeldGroups = Mapping[str, Groups]
"""Atomic groups of the sequences that a rank holds, by source: those that were sent to the planner, as indices."""

_TOKEN_DTYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True, eq=False)
class MicroBatchTokens:
    """One micro-batch as the model takes it.

    Attributes
    ----------
    packed
        Its geometry.
    tokens
        Token ids with padding, shape (num_physical_tokens,), int64; empty on a stage that neither embeds them nor
        computes losses.
    cu_seqlens
        Bounds with padding, shape (sequences + 1,), int32.
    lengths
        Each sequence's own tokens, shape (sequences,), int64.
    """

    packed: PackedMicroBatch
    tokens: Tensor
    cu_seqlens: Tensor
    lengths: Tensor

    @property
    def max_seqlen(self) -> int:
        """Longest sequence (tokens), padding included."""
        return self.packed.physical_max_seqlen


class SequenceExchange:
    """One rank's part of the sequence exchange of one iteration.

    Building it checks what the rank holds against the plan and involves no other rank, and neither do the methods that
    reserve memory; `to_sources` is a collective that every rank of the group calls.

    Parameters
    ----------
    routes
        The routes of the plan.
    role
        This rank's role.
    held
        Token ids of the sequences this rank holds.
    groups
        Atomic groups of the sequences this rank holds.
    vocab_size
        Token ids must be below this, if given.

    Raises
    ------
    planner_client.sequences.PlanMismatch
        If the sequences held are not those of the plan.
    planner_client.groups.GroupMismatch
        If the groups are not those of the plan.
    ValueError
        If a sequence is not a flat tensor of integers, is empty, or has a token id outside the vocabulary.
    """

    def __init__(
        self,
        routes: SequenceRoutes,
        role: RankRole,
        held: HeldSequences,
        groups: HeldGroups | None = None,
        *,
        vocab_size: int | None = None,
    ) -> None:
        self._sources = {source: len(sequences) for source, sequences in held.items()}
        self._source_names = routes.table.sources
        self._source_ids = routes.table.source_ids
        self._lengths = routes.table.lengths
        self._outward = routes.outward.leg(role.rank)
        self._inward = routes.inward.leg(role.rank)
        lengths = {source: _lengths(source, sequences) for source, sequences in held.items()}
        check_held(routes.table, lengths)
        self._indices = row_indices(routes.table, lengths, groups)
        self._send_buffer = self._fill_send_buffer(held)
        _check_token_ids(self._send_buffer, vocab_size)
        self._micro_batches = () if role.replica is None else routes.table.packed(role.replica, routes.alignment)

    @property
    def packed(self) -> tuple[PackedMicroBatch, ...]:
        """Geometry of the micro-batches of this rank's replica, in order; none without a replica."""
        return self._micro_batches

    def reserve_tokens(self, group: Group = None) -> RowExchange:
        """Return the exchange that sends this rank's sequences to where they are computed, not yet run.

        Its result are the tokens received, in order of arrival.
        """
        leg = self._outward
        return RowExchange.reserve(self._send_buffer, leg.send_tokens.tolist(), leg.receive_tokens.tolist(), group)

    def reserve_results(self, group: Group = None) -> RowExchange:
        """Return the exchange that `to_sources` runs."""
        leg = self._inward
        results = torch.zeros(int(leg.send_sequences.sum()), dtype=torch.float64)
        return RowExchange.reserve(results, leg.send_sequences.tolist(), leg.receive_sequences.tolist(), group)

    def micro_batches(self, received: Tensor, device: torch.device | str = "cpu") -> tuple[MicroBatchTokens, ...]:
        """Cut received tokens into this rank's micro-batches, in order, on a device; involves no other rank."""
        leg = self._outward
        if leg.received_rows.size == 0:
            return tuple(self._geometry(packed, received.to(device)) for packed in self._micro_batches)
        by_arrival = torch.split(received, self._lengths[leg.received_rows].tolist())
        run = torch.cat([by_arrival[place] for place in np.argsort(leg.received_rows).tolist()])
        return self._cut(run.to(device))

    def to_sources(
        self, values: Tensor, rows: RowExchange, carried: CarriedFault
    ) -> dict[str, npt.NDArray[np.float64]]:
        """Bring one value per sequence back to the sources, in the order they hold their sequences.

        Parameters
        ----------
        values
            One for each sequence this rank reports, in the order it ran them, shape (n,); empty on a rank that reports
            none.
        rows
            From `reserve_results`.
        carried
            Keeps what goes wrong on this rank.

        Returns
        -------
        dict
            For each source this rank holds, shape (sequences held,), fp64; NaN for a dropped sequence. Empty where
            something went wrong.
        """
        doing = "returning results to their sources"
        carried.attempt(doing, lambda: self._fill(rows.sent, values), nothing)
        received = rows.run(doing)
        return carried.attempt(doing, lambda: self._results(received), dict)

    def _fill(self, sent: Tensor, values: Tensor) -> None:
        rows = self._inward.sent_rows
        places = np.searchsorted(np.sort(rows), rows)
        sent.copy_(values.detach().double()[torch.from_numpy(places).to(values.device)])

    def _results(self, received: Tensor) -> dict[str, npt.NDArray[np.float64]]:
        rows, results = self._inward.received_rows, received.cpu().numpy()
        returned: dict[str, npt.NDArray[np.float64]] = {}
        for source, num_held in self._sources.items():
            returned[source] = np.full(num_held, np.nan)
            if source in self._source_names:
                own = self._source_ids[rows] == self._source_names.index(source)
                returned[source][self._indices[rows[own]]] = results[own]
        return returned

    def _fill_send_buffer(self, held: HeldSequences) -> Tensor:
        rows = self._outward.sent_rows
        parts = [
            held[self._source_names[source_id]][index]
            for source_id, index in zip(self._source_ids[rows].tolist(), self._indices[rows].tolist(), strict=True)
        ]
        return torch.cat(parts).long() if parts else torch.zeros(0, dtype=torch.int64)

    def _cut(self, run: Tensor) -> tuple[MicroBatchTokens, ...]:
        """Cut the tokens of a replica, in run order, into its micro-batches."""
        micro_batches = []
        parts = torch.split(run, [packed.num_tokens for packed in self._micro_batches])
        for packed, tokens in zip(self._micro_batches, parts, strict=True):
            physical = tokens
            if packed.num_padding_tokens:
                physical = torch.full((packed.num_physical_tokens,), PADDING_TOKEN, device=run.device)
                physical[torch.tensor(packed.physical_slots, device=run.device)] = tokens
            micro_batches.append(self._geometry(packed, physical))
        return tuple(micro_batches)

    def _geometry(self, packed: PackedMicroBatch, tokens: Tensor) -> MicroBatchTokens:
        return MicroBatchTokens(
            packed,
            tokens,
            torch.tensor(packed.physical_cu_seqlens, device=tokens.device),
            torch.tensor(packed.lengths, device=tokens.device),
        )


def _lengths(source: str, sequences: Sequence[Tensor]) -> Int64Array:
    lengths = np.zeros(len(sequences), dtype=np.int64)
    for index, tokens in enumerate(sequences):
        given = f"a {type(tokens).__name__}"
        if isinstance(tokens, Tensor):
            given = f"a {tokens.dtype} tensor of shape {tuple(tokens.shape)}"
            if tokens.dim() == 1 and tokens.numel() and tokens.dtype in _TOKEN_DTYPES:
                lengths[index] = tokens.numel()
                continue
        raise ValueError(
            f"sequence {index} of source {source!r} is {given}; give each sequence as a flat tensor of at least one "
            f"token id, of one of {', '.join(map(str, _TOKEN_DTYPES))}"
        )
    return lengths


def _check_token_ids(tokens: Tensor, vocab_size: int | None) -> None:
    if vocab_size is None or tokens.numel() == 0:
        return
    lowest, highest = (int(bound) for bound in torch.aminmax(tokens))
    if lowest < 0 or highest >= vocab_size:
        raise ValueError(
            f"token ids run from {lowest} to {highest} but the model's vocabulary is 0 to {vocab_size - 1}; "
            "tokenize for this model, or give it a larger vocab_size"
        )
