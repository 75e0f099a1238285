"""Which elements of the parameters travel between the ranks that keep them and those that compute: pure, no torch.

Parameters and optimizer states lie in flat shards, one interval to each rank, fixed for the whole run. An iteration
computes on slices that its plan decides. `ParameterRoutes` says, round by round, which elements go from which shard to
which compute buffer; gradients take the same way back.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from planner_client.contract import Plan
from planner_client.packing import Int64Array
from worker_agent.executor.layout import RankRole
from worker_agent.executor.parameters import Interval, ParameterTable
from worker_agent.executor.parts import ModelPart, Slice


@dataclass(frozen=True, eq=False)
class Leg:
    """What one rank sends and receives in one round: pieces of a flat buffer, as rows of begin and end.

    Attributes
    ----------
    sent, received
        Pieces in the order of the ranks that they go to or come from, shape (n, 2), int64.
    send_splits, receive_splits
        Elements to and from each rank, shape (world size,), int64.
    """

    sent: Int64Array
    received: Int64Array
    send_splits: Int64Array
    receive_splits: Int64Array

    @property
    def num_sent(self) -> int:
        """Elements sent, those to the rank itself included."""
        return int(self.send_splits.sum())

    @property
    def num_received(self) -> int:
        """Elements received, those from the rank itself included."""
        return int(self.receive_splits.sum())

    def inverse(self) -> "Leg":
        """Return the way back: what was received is sent, and what was sent is received."""
        return Leg(self.received, self.sent, self.receive_splits, self.send_splits)


@dataclass(frozen=True, eq=False)
class Haul:
    """Elements that travel from shards to compute buffers, in rounds.

    Attributes
    ----------
    shards
        Elements that each rank keeps, shape (world size, 2), int64; together all elements, each once.
    pieces
        By round and by rank, the elements that go to the rank, ascending, shape (n, 2), int64.
    buffers
        By rank, the elements that its compute buffer holds, in the order they lie there, shape (n, 2), int64.

    Raises
    ------
    ValueError
        If the shards do not tile the elements, or an element would reach a rank twice, or without a place in its
        buffer.
    """

    num_elements: int
    shards: Int64Array
    pieces: tuple[tuple[Int64Array, ...], ...]
    buffers: tuple[Int64Array, ...]

    def __post_init__(self) -> None:
        bounds = self.shards.flatten()
        if bounds[0] != 0 or bounds[-1] != self.num_elements or (bounds[1:-1:2] != bounds[2::2]).any():
            raise ValueError(f"shards {self.shards.tolist()} do not tile {self.num_elements} elements")
        if (np.diff(bounds) < 0).any():
            raise ValueError(f"shards {self.shards.tolist()} overlap")
        for rank, buffer in enumerate(self.buffers):
            taken = np.concatenate([of_round[rank] for of_round in self.pieces] or [buffer[:0]])
            held = covered(buffer)
            if count(taken) != count(covered(taken)) or count(buffer) != count(held):
                raise ValueError(f"an element is routed to rank {rank} twice")
            if count(held) != count(covered(np.concatenate([held, taken]))):
                raise ValueError(f"an element is routed to rank {rank}, whose buffer has no place for it")
            if taken.size and (taken.min() < 0 or taken.max() > self.num_elements):
                raise ValueError(f"rank {rank} would take elements outside 0 to {self.num_elements - 1}")

    @property
    def num_rounds(self) -> int:
        """Number of rounds; every rank takes part in all of them."""
        return len(self.pieces)

    def leg(self, number: int, rank: int) -> Leg:
        """Return what one rank sends and receives in one round."""
        begin, end = self.shards[rank]
        sent = [_within(pieces, begin, end) for pieces in self.pieces[number]]
        received = [_within(self.pieces[number][rank], *shard) for shard in self.shards]
        return Leg(
            sent=joined(np.concatenate(sent) - begin),
            received=joined(self._places(rank, np.concatenate(received))),
            send_splits=np.array([count(pieces) for pieces in sent], dtype=np.int64),
            receive_splits=np.array([count(pieces) for pieces in received], dtype=np.int64),
        )

    def _places(self, rank: int, pieces: Int64Array) -> Int64Array:
        """Turn elements into where they lie in a rank's buffer; no piece may run over the end of a buffer's piece."""
        buffer = self.buffers[rank]
        sizes = buffer[:, 1] - buffer[:, 0]
        begins = np.cumsum(sizes) - sizes
        order = np.argsort(buffer[:, 0], kind="stable")
        row = order[np.searchsorted(buffer[order, 0], pieces[:, 0], side="right") - 1]
        placed: Int64Array = pieces + (begins[row] - buffer[row, 0])[:, None]
        return placed


@dataclass(frozen=True, eq=False)
class ParameterRoutes:
    """The propagation of one strategy.

    Attributes
    ----------
    outward
        Parameters from the shards to the compute buffers, a bucket in each round, first buckets first.
    counted
        The elements of `outward` whose gradient counts, a bucket in each round, last buckets first, still written
        from the shards to the buffers: gradients take its legs inversely.
    buckets
        By rank, the slices of each bucket; none for a rank that computes nothing.

    Raises
    ------
    ValueError
        If a replica would not get every parameter, or would not return every gradient.
    """

    outward: Haul
    counted: Haul
    buckets: tuple[tuple[tuple[Slice, ...], ...], ...]

    def parameter_leg(self, number: int, rank: int) -> Leg:
        """Return what one rank does in a round of assembling parameters: from shards to its buffer."""
        return self.outward.leg(number, rank)

    def gradient_leg(self, number: int, rank: int) -> Leg:
        """Return what one rank does in a round of returning gradients: from its buffer to shards, which sum."""
        return self.counted.leg(number, rank).inverse()

    @cached_property
    def num_buffer_elements(self) -> tuple[int, ...]:
        """Elements of each rank's compute buffer."""
        return tuple(count(buffer) for buffer in self.outward.buffers)


def parameter_routes(
    plan: Plan, roles: Sequence[RankRole], table: ParameterTable, layers_per_bucket: int
) -> ParameterRoutes:
    """Derive the propagation of a plan's strategy.

    Parameters
    ----------
    plan
        The plan; a replica without micro-batches gets no parameters.
    roles
        Every rank's role under it.
    table
        The decoder's parameters.
    layers_per_bucket
        Layers that are moved together.
    """
    made: dict[ModelPart, tuple[tuple[Slice, ...], ...]] = {}
    buckets: list[tuple[tuple[Slice, ...], ...]] = []
    for role in roles:
        if role.replica is None or not plan.replicas[role.replica].micro_batches:
            buckets.append(())
            continue
        part = ModelPart.of(table.config, role)
        if part not in made:
            made[part] = part.buckets(table, layers_per_bucket)
        buckets.append(made[part])
    num_rounds = max((len(of_rank) for of_rank in buckets), default=0)
    world_size = len(roles)
    shards = np.array([table.shard(rank, world_size) for rank in range(world_size)], dtype=np.int64)
    buffers = tuple(_intervals([one for bucket in of_rank for one in bucket]) for of_rank in buckets)
    outward = tuple(
        tuple(_intervals(of_rank[number]) if number < len(of_rank) else _NONE for of_rank in buckets)
        for number in range(num_rounds)
    )
    counted = tuple(
        tuple(
            _intervals([one for one in of_rank[-1 - number] if one.returns_gradient])
            if number < len(of_rank)
            else _NONE
            for of_rank in buckets
        )
        for number in range(num_rounds)
    )
    routes = ParameterRoutes(
        Haul(table.num_elements, shards, outward, buffers),
        Haul(table.num_elements, shards, counted, buffers),
        tuple(buckets),
    )
    _check_replicas(roles, routes)
    return routes


def count(pieces: Int64Array) -> int:
    """Return the number of elements in pieces."""
    return int((pieces[:, 1] - pieces[:, 0]).sum())


def joined(pieces: Int64Array) -> Int64Array:
    """Join pieces that follow one another without a gap; their order stays."""
    pieces = pieces[pieces[:, 1] > pieces[:, 0]]
    if len(pieces) < 2:
        return pieces
    begins = np.concatenate([[True], pieces[1:, 0] != pieces[:-1, 1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([pieces[begins, 0], pieces[ends, 1]], axis=1)


def covered(pieces: Int64Array) -> Int64Array:
    """Return the elements that are in any piece, each once, ascending."""
    pieces = pieces[np.argsort(pieces[:, 0], kind="stable")]
    if len(pieces) == 0:
        return pieces
    reached = np.maximum.accumulate(pieces[:, 1])
    begins = np.concatenate([[True], pieces[1:, 0] > reached[:-1]])
    ends = np.concatenate([begins[1:], [True]])
    return np.stack([pieces[begins, 0], reached[ends]], axis=1)


_NONE = np.zeros((0, 2), dtype=np.int64)


def _intervals(slices: Sequence[Slice]) -> Int64Array:
    return joined(np.array([(one.begin, one.end) for one in slices], dtype=np.int64).reshape(-1, 2))


def _within(pieces: Int64Array, begin: int, end: int) -> Int64Array:
    cut = np.clip(pieces, begin, end)
    return cut[cut[:, 1] > cut[:, 0]]


def _check_replicas(roles: Sequence[RankRole], routes: ParameterRoutes) -> None:
    whole: Interval = (0, routes.outward.num_elements)
    members: dict[int, list[int]] = {}
    for role in roles:
        if role.replica is not None and routes.buckets[role.rank]:
            members.setdefault(role.replica, []).append(role.rank)
    for what, haul in (("get every parameter", routes.outward), ("return every gradient", routes.counted)):
        for replica, missing in _gaps(members, haul, whole).items():
            raise ValueError(f"replica {replica} would not {what}: {missing} elements are missing")


def _gaps(members: Mapping[int, Sequence[int]], haul: Haul, whole: Interval) -> dict[int, int]:
    """Return, for each replica that does not cover all elements, how many are missing."""
    gaps = {}
    for replica, ranks in members.items():
        taken = [of_round[rank] for of_round in haul.pieces for rank in ranks]
        missing = whole[1] - whole[0] - count(covered(np.concatenate(taken)))
        if missing:
            gaps[replica] = missing
    return gaps
