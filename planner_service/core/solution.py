"""Solutions: what the core returns, and how item assignments become rows by source."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planner_service.core.cost import micro_batch_ms, replica_ms
from planner_service.core.dispatch import Dispatched
from planner_service.core.items import Items
from planner_service.core.order import best_order
from planner_service.core.place import place
from planner_service.core.problem import Batch, Problem, ReplicaKind, SourceRow, Strategy
from planner_service.core.screen import Screened
from planner_service.core.simulate import simulate_1f1b


@dataclass(frozen=True, slots=True)
class PlannedMicroBatch:
    """Sequences that run together; ``num_tokens`` are their own, padding comes on top."""

    rows: tuple[SourceRow, ...]
    num_tokens: int
    num_padding_tokens: int
    time_ms: float


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
    """Sequences not yet handed out, by occupied length, in row order."""

    def __init__(self, batch: Batch) -> None:
        self._rows: list[list[list[int]]] = [[] for _ in batch.lengths]
        self._batch = batch
        for index, (row, length) in enumerate(zip(batch.rows, batch.length_of_row, strict=True)):
            self._rows[int(length)].append([index, row.count])

    def take(self, length_index: int, count: int) -> list[tuple[int, int]]:
        """Hand out sequences of one occupied length as (row, count)."""
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


def _micro_batch(
    kind: ReplicaKind, batch: Batch, stock: _Stock, items: Items, held: Sequence[int]
) -> PlannedMicroBatch:
    by_row: dict[int, int] = {}
    occupied: dict[int, int] = {}
    for item in held:
        for length_index, count in items.contents[item]:
            occupied[length_index] = occupied.get(length_index, 0) + count
    for length_index, count in sorted(occupied.items()):
        for row, part in stock.take(length_index, count):
            by_row[row] = by_row.get(row, 0) + part
    rows = tuple(
        SourceRow(batch.rows[row].source, batch.rows[row].length, count) for row, count in sorted(by_row.items())
    )
    num_tokens = sum(row.length * row.count for row in rows)
    lengths = [(int(batch.lengths[index]), count) for index, count in sorted(occupied.items())]
    num_occupied = sum(length * count for length, count in lengths)
    return PlannedMicroBatch(rows, num_tokens, num_occupied - num_tokens, micro_batch_ms(kind, lengths))


def _replica(  # noqa: PLR0913, PLR0917 - one replica of `assemble`
    kind: ReplicaKind,
    ranks: tuple[int, ...],
    batch: Batch,
    stock: _Stock,
    items: Items,
    micro_batches: Sequence[Sequence[int]],
    times_ms: Sequence[float],
    *,
    keep_order: bool,
) -> PlannedReplica:
    if keep_order:
        order, simulated = list(range(len(micro_batches))), simulate_1f1b(kind.pp, times_ms)
    else:
        order, simulated = best_order(kind.pp, times_ms)
    planned = tuple(_micro_batch(kind, batch, stock, items, micro_batches[index]) for index in order)
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
) -> Solution:
    """Turn an assignment of items into a solution: order each replica's micro-batches and name sequences by source.

    Which source's sequence of a length goes where does not change any time; they are handed out in row order, replica
    by replica and micro-batch by micro-batch.
    """
    stock = _Stock(batch)
    replicas = tuple(
        _replica(kind, ranks[j], batch, stock, items, packing.micro_batches, packing.times_ms, keep_order=keep_order)
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
    ranks = place(strategy.replicas, problem.num_gpus, problem.gpus_per_node)
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
    )
