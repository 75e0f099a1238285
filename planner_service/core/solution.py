"""Solutions: what the core returns, and how item assignments become rows by source."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planner_service.core.cost import micro_batch_ms, replica_ms
from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.order import best_order
from planner_service.core.place import place
from planner_service.core.problem import Batch, GroupRow, Problem, ReplicaKind, SourceRow, Strategy
from planner_service.core.screen import Screened
from planner_service.core.simulate import simulate_1f1b


@dataclass(frozen=True, slots=True)
class PlannedMicroBatch:
    """Sequences that run together; ``num_tokens`` are their own, padding comes on top.

    ``rows`` are all sequences; ``groups`` says which of them are atomic groups.
    """

    rows: tuple[SourceRow, ...]
    num_tokens: int
    num_padding_tokens: int
    time_ms: float
    groups: tuple[GroupRow, ...] = ()


@dataclass(frozen=True, slots=True)
class PlannedReplica:
    """One replica: its kind, ranks and micro-batches in the order they run."""

    kind: ReplicaKind
    ranks: tuple[int, ...]
    micro_batches: tuple[PlannedMicroBatch, ...]
    makespan_ms: float
    simulated_ms: float


@dataclass(frozen=True)
class Solution:
    """A plan in the core's terms.

    ``lower_bound_ms`` is proven for ``bound_scope``; ``all_strategies_bound_ms`` for every strategy of the cluster.
    ``passed_over`` are candidates that could not be used, with the reason.
    """

    strategy: Strategy
    replicas: tuple[PlannedReplica, ...]
    dropped: tuple[SourceRow, ...]
    makespan_ms: float
    simulated_ms: float
    lower_bound_ms: float
    bound_scope: Literal["strategy", "all-strategies"]
    all_strategies_bound_ms: float
    solved_by: Literal["heuristic", "cp-sat"]
    optimal: bool
    cut_by_wall_clock: bool
    passed_over: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Bounds:
    """Bounds and provenance that go with a solution."""

    lower_ms: float
    scope: Literal["strategy", "all-strategies"]
    all_strategies_ms: float
    solved_by: Literal["heuristic", "cp-sat"]
    cut_by_wall_clock: bool


OPTIMAL_GAP = 1e-6
"""Gap up to which a makespan counts as equal to its bound."""


class _Stock:
    """Sequences not yet handed out: single ones by occupied length, in row order, and those of groups by group."""

    def __init__(self, batch: Batch, groups: Sequence[GroupRow]) -> None:
        self.batch = batch
        self._rows: list[list[list[int]]] = [[] for _ in batch.lengths]
        self._row_of = {(row.source, row.length): index for index, row in enumerate(batch.rows)}
        self._length_of_row = [int(length) for length in batch.length_of_row]
        single = [row.count for row in batch.rows]
        for group in groups:
            for length in group.lengths:
                single[self._row_of[group.source, length]] -= group.count
        for index, length in enumerate(self._length_of_row):
            if single[index]:
                self._rows[length].append([index, single[index]])

    def take(self, length_index: int, count: int) -> list[tuple[int, int]]:
        """Hand out single sequences of one occupied length as (row, count)."""
        taken: list[tuple[int, int]] = []
        rows = self._rows[length_index]
        while count:
            entry = rows[0]
            part = min(count, entry[1])
            taken.append((entry[0], part))
            entry[1] -= part
            count -= part
            if not entry[1]:
                rows.pop(0)
        return taken

    def rows_of(self, group: GroupRow) -> list[int]:
        """Name the row of each sequence of a group."""
        return [self._row_of[group.source, length] for length in group.lengths]

    def length_of(self, row: int) -> int:
        """Index of a row's occupied length."""
        return self._length_of_row[row]


def _micro_batch(
    kind: ReplicaKind, stock: _Stock, items: Items, held: Sequence[int], *, is_padded: bool
) -> PlannedMicroBatch:
    batch = stock.batch
    by_row: dict[int, int] = {}
    occupied: dict[int, int] = {}
    copies: dict[int, int] = {}
    for item in held:
        for length_index, count in items.contents[item]:
            occupied[length_index] = occupied.get(length_index, 0) + count
        for group, count in items.groups[item] if items.groups else ():
            copies[group] = copies.get(group, 0) + count
    single = dict(occupied)
    groups = tuple(replace(items.group_rows[group], count=count) for group, count in sorted(copies.items()))
    for group_row in groups:
        for row in stock.rows_of(group_row):
            by_row[row] = by_row.get(row, 0) + group_row.count
            single[stock.length_of(row)] -= group_row.count
    for length_index, count in sorted(single.items()):
        for row, part in stock.take(length_index, count):
            by_row[row] = by_row.get(row, 0) + part
    rows = tuple(
        SourceRow(batch.rows[row].source, batch.rows[row].length, count) for row, count in sorted(by_row.items())
    )
    num_tokens = sum(row.length * row.count for row in rows)
    lengths = [(int(batch.lengths[index]), count) for index, count in sorted(occupied.items())]
    if is_padded:
        lengths = [(lengths[-1][0], sum(count for _, count in lengths))]
    num_occupied = sum(length * count for length, count in lengths)
    return PlannedMicroBatch(rows, num_tokens, num_occupied - num_tokens, micro_batch_ms(kind, lengths), groups)


def _replica(  # noqa: PLR0913, PLR0917 - one replica of `assemble`
    kind: ReplicaKind,
    ranks: tuple[int, ...],
    stock: _Stock,
    items: Items,
    micro_batches: Sequence[Sequence[int]],
    times_ms: Sequence[float],
    *,
    keep_order: bool,
    is_padded: bool,
) -> PlannedReplica:
    if keep_order:
        order, simulated = list(range(len(micro_batches))), simulate_1f1b(kind.pp, times_ms)
    else:
        order, simulated = best_order(kind.pp, times_ms)
    planned = tuple(_micro_batch(kind, stock, items, micro_batches[index], is_padded=is_padded) for index in order)
    times = [micro_batch.time_ms for micro_batch in planned]
    return PlannedReplica(kind, ranks, planned, replica_ms(kind.pp, times), simulated)


def _met(bound_ms: float, makespan_ms: float) -> float:
    """Take off what rounding puts on a bound that is met; one that exceeds the makespan by more is a defect."""
    return makespan_ms if makespan_ms < bound_ms <= makespan_ms * (1 + 1e-9) else bound_ms


def assemble(  # noqa: PLR0913, PLR0917 - a solution's parts
    strategy: Strategy,
    dispatched: Dispatched,
    ranks: Sequence[tuple[int, ...]],
    batch: Batch,
    items: Items,
    bounds: Bounds,
    *,
    dropped: tuple[SourceRow, ...] = (),
    passed_over: tuple[tuple[str, str], ...] = (),
    keep_order: bool = False,
    is_padded: bool = False,
) -> Solution:
    """Turn an assignment of items into a solution: order each replica's micro-batches and name sequences by source.

    Which source's sequence of a length goes where does not change any time; they are handed out in row order, replica
    by replica and micro-batch by micro-batch; those of an atomic group go together. Under padded cost each sequence
    takes as much as the longest of its micro-batch.
    """
    stock = _Stock(batch, items.group_rows)
    replicas = tuple(
        _replica(
            kind,
            ranks[j],
            stock,
            items,
            packing.micro_batches,
            packing.times_ms,
            keep_order=keep_order,
            is_padded=is_padded,
        )
        for j, (kind, packing) in enumerate(zip(dispatched.kinds, dispatched.packings, strict=True))
    )
    makespan = max((replica.makespan_ms for replica in replicas), default=0.0)
    lower = _met(bounds.lower_ms, makespan)
    return Solution(
        strategy=strategy,
        replicas=replicas,
        dropped=dropped,
        makespan_ms=makespan,
        simulated_ms=max((replica.simulated_ms for replica in replicas), default=0.0),
        lower_bound_ms=lower,
        bound_scope=bounds.scope,
        all_strategies_bound_ms=_met(bounds.all_strategies_ms, makespan),
        solved_by=bounds.solved_by,
        optimal=makespan <= lower * (1 + OPTIMAL_GAP),
        cut_by_wall_clock=bounds.cut_by_wall_clock,
        passed_over=passed_over,
    )


def finish(  # noqa: PLR0913, PLR0917 - a solution's parts
    problem: Problem,
    screened: Screened,
    strategy: Strategy,
    dispatched: Dispatched,
    items: Items,
    bounds: Bounds,
    *,
    keep_order: bool = False,
) -> Solution:
    """Place a dispatched strategy and assemble the solution."""
    ranks = place(strategy.replicas, problem.pools)
    assert ranks is not None  # noqa: S101 - candidates that cannot be placed were screened out
    return assemble(
        strategy,
        dispatched,
        ranks,
        screened.batch,
        items,
        bounds,
        dropped=screened.dropped,
        passed_over=screened.passed_over,
        keep_order=keep_order,
        is_padded=problem.options.is_padded,
    )
