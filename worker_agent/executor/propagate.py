"""Acts on the routes of parameters: masters to compute buffers ahead of use, gradients back as they are done.

All rounds go through one process group of all ranks, in one order: first every assembling round, posted before any
stage computes, then the returning ones, each posted by a rank when its bucket is done. Posting waits for nobody, so
that stages, which wait for one another, never stand in the way of a round.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from planner_client.packing import Int64Array
from worker_agent.executor.carried import CarriedFault, nothing
from worker_agent.executor.collectives import rank_loss_named
from worker_agent.executor.compute_buffer import Arena, ComputeBuffer
from worker_agent.executor.parameter_routes import Leg, ParameterRoutes
from worker_agent.executor.parts import ModelPart
from worker_agent.executor.shards import ShardedState

_ALIGNED_BYTES = 8
"""Of the widest dtype: staging memory is a multiple of it, so that it can be seen as elements of any."""

_ASSEMBLING, _RETURNING = "assembling parameters", "returning gradients"


class RankRoutes:
    """One rank's legs of a strategy's propagation, each worked out once.

    Attributes
    ----------
    routes
        Those of all ranks.
    rank
        The rank.
    """

    def __init__(self, routes: ParameterRoutes, rank: int) -> None:
        self.routes = routes
        self.rank = rank

    @property
    def num_buckets(self) -> int:
        """Buckets that this rank computes with."""
        return len(self.routes.buckets[self.rank])

    @property
    def num_elements(self) -> int:
        """Elements of the rank's compute buffer."""
        return self.routes.num_buffer_elements[self.rank]

    @cached_property
    def parameter_legs(self) -> tuple[Leg, ...]:
        """The assembling rounds."""
        return tuple(self.routes.parameter_leg(number, self.rank) for number in range(self.routes.outward.num_rounds))

    @cached_property
    def gradient_legs(self) -> tuple[Leg, ...]:
        """The returning rounds."""
        return tuple(self.routes.gradient_leg(number, self.rank) for number in range(self.routes.counted.num_rounds))


@dataclass(frozen=True, eq=False)
class _Round:
    """A posted round; its tensors live until it is over."""

    work: dist.Work
    sent: Tensor
    received: Tensor


class Propagation:
    """Moves parameters and gradients between a rank's shard and its compute buffer.

    `reserve` takes the memory and involves no other rank. `assemble` and `finish` are collectives that every rank of
    the group calls, whether it computes anything or not, and whatever became of its computation.

    Parameters
    ----------
    state
        The rank's shard.
    compute_dtype
        Parameters travel in it; gradients travel and are summed in the dtype of the masters.
    group
        A process group of all ranks that nothing else uses.

    Attributes
    ----------
    waited_ms
        Time that computation waited for parameters since `assemble`.
    """

    def __init__(self, state: ShardedState, compute_dtype: torch.dtype, group: dist.ProcessGroup) -> None:
        self._state = state
        self._compute_dtype = compute_dtype
        self._group = group
        self._arena = Arena(state.masters.device)
        self._buffer: ComputeBuffer | None = None
        self._part: ModelPart | None = None
        self._num_arrived = 0
        self._staging = torch.empty(0, dtype=torch.uint8)
        self._assembling: list[_Round] = []
        self._returning: list[_Round] = []
        self._done_buckets: set[int] = set()
        self._carried = CarriedFault(state.masters.device)
        self.waited_ms = 0.0

    def reserve(
        self, routes: RankRoutes, part: ModelPart | None, carried: CarriedFault, *, with_gradients: bool
    ) -> ComputeBuffer | None:
        """Take the memory that an iteration needs; return what this rank computes in, if it computes.

        Parameters
        ----------
        routes
            What travels in the iteration.
        part
            What this rank computes.
        carried
            Keeps what goes wrong on this rank from then on.
        with_gradients
            Whether gradients will be returned.
        """
        if part != self._part:
            # What holds the old memory is let go before more is asked for.
            self._buffer, self._part = None, None
        self._routes, self._carried = routes, carried
        parameters, gradients = self._parameters(), self._gradients()
        self._stage(with_gradients=with_gradients)
        if part is not None and self._buffer is None:
            self._buffer = ComputeBuffer(part, routes.routes.buckets[routes.rank], parameters, gradients)
            self._part = part
        return self._buffer

    def assemble(self) -> None:
        """Post all rounds that bring parameters to where they are used."""
        self.waited_ms = 0.0
        self._num_arrived, self._assembling, self._returning = 0, [], []
        self._done_buckets = set()
        parameters, at = self._parameters(), 0
        staging = self._staging.view(self._compute_dtype)
        for number, leg in enumerate(self._routes.parameter_legs):
            with record_function(f"post bucket {number}"):
                num_staged = self._num_staged([leg], returning=False)
                # A bucket is one interval of the buffer and arrives in its order, so nothing has to be unpacked.
                begin = int(leg.received[0, 0]) if len(leg.received) else 0
                received = parameters[begin : begin + leg.num_received]
                room = staging[at : at + num_staged]
                self._assembling.append(self._posted(leg, self._state.masters, room, received, _ASSEMBLING))
            at += num_staged
        if self._buffer is not None:
            begin_buffer = partial(self._buffer.begin, self.wait_for, self.give_back)
            self._carried.attempt("beginning with gradients of zero", begin_buffer, nothing)

    def wait_for(self, bucket: int) -> None:
        """Wait until a bucket's parameters are there; earlier buckets are waited for before."""
        began_ns = time.perf_counter_ns()
        while self._num_arrived <= bucket:
            with record_function(f"assemble bucket {self._num_arrived}"), rank_loss_named(_ASSEMBLING):
                self._assembling[self._num_arrived].work.wait()
            self._num_arrived += 1
        self.waited_ms += (time.perf_counter_ns() - began_ns) / 1e6

    def give_back(self, bucket: int) -> None:
        """Post the rounds that return the gradients of the buckets done so far, last buckets first."""
        self._done_buckets.add(bucket)
        num_buckets = self._routes.num_buckets
        while len(self._returning) < num_buckets and num_buckets - 1 - len(self._returning) in self._done_buckets:
            self._post_return()

    def finish(self, *, with_gradients: bool) -> None:
        """End all rounds; afterwards the shard's gradients are the sum of what all ranks returned."""
        self.wait_for(len(self._assembling) - 1)
        if with_gradients:
            while len(self._returning) < len(self._routes.gradient_legs):
                self._post_return()
            self._carried.attempt(_RETURNING, self._state.zero_gradients, nothing)
            for number, (leg, posted) in enumerate(zip(self._routes.gradient_legs, self._returning, strict=True)):
                with record_function(f"sum returned round {number}"):
                    with rank_loss_named(_RETURNING):
                        posted.work.wait()
                    add = partial(_add_pieces, self._state.gradients, leg, posted.received)
                    self._carried.attempt("summing returned gradients", add, nothing)
            self._returning = []
        self._assembling = []
        if self._buffer is not None:
            self._buffer.end()

    def _post_return(self) -> None:
        # What was sent lies where gradients will arrive. All ranks posted those rounds before they computed anything,
        # so that to wait for them here is to wait for no computation.
        self.wait_for(len(self._assembling) - 1)
        number = len(self._returning)
        legs = self._routes.gradient_legs
        leg = legs[number]
        bucket = self._routes.num_buckets - 1 - number
        with record_function(f"return bucket {bucket}" if bucket >= 0 else "return no bucket"):
            staging = self._staging.view(self._state.masters.dtype)
            at = self._num_staged(legs[:number], returning=True)
            room = staging[at : at + self._num_staged([leg], returning=True)]
            at = self._num_staged(legs, returning=True) + _num_received(legs[:number])
            received = staging[at : at + leg.num_received]
            self._returning.append(self._posted(leg, self._gradients(), room, received, _RETURNING))

    def _parameters(self) -> Tensor:
        return self._arena.take("parameters", self._routes.num_elements, self._compute_dtype)

    def _gradients(self) -> Tensor:
        return self._arena.take("gradients", self._routes.num_elements, self._state.masters.dtype)

    def _stage(self, *, with_gradients: bool) -> None:
        """Take one piece of memory for what is sent out and, when that is gone, for what comes back."""
        outward = self._num_staged(self._routes.parameter_legs, returning=False) * self._compute_dtype.itemsize
        legs, dtype = self._routes.gradient_legs, self._state.masters.dtype
        inward = (self._num_staged(legs, returning=True) + _num_received(legs)) * dtype.itemsize
        num_bytes = max(outward, inward if with_gradients else 0)
        # What is held is let go before more is asked for.
        self._staging = torch.empty(0, dtype=torch.uint8)
        self._staging = self._arena.take("staging", -(-num_bytes // _ALIGNED_BYTES) * _ALIGNED_BYTES, torch.uint8)

    def _num_staged(self, legs: Sequence[Leg], *, returning: bool) -> int:
        """Count the elements that have to be copied together; a single interval is sent from where it lies."""
        keeps_dtype = returning or self._compute_dtype == self._state.masters.dtype
        return sum(leg.num_sent for leg in legs if not (keeps_dtype and len(leg.sent) == 1))

    def _posted(self, leg: Leg, flat: Tensor, room: Tensor, received: Tensor, doing: str) -> _Round:
        """Post a round; where its content cannot be packed, with whatever lies in the room."""
        return self._carried.attempt(
            doing,
            lambda: self._post(leg, _packed(flat, leg.sent, room), received, doing),
            lambda: self._post(leg, room if room.numel() else _packed(flat, leg.sent, room), received, doing),
        )

    def _post(self, leg: Leg, sent: Tensor, received: Tensor, doing: str) -> _Round:
        with rank_loss_named(doing):
            work = dist.all_to_all_single(
                received, sent, leg.receive_splits.tolist(), leg.send_splits.tolist(), group=self._group, async_op=True
            )
        return _Round(work, sent, received)


def _num_received(legs: Sequence[Leg]) -> int:
    return sum(leg.num_received for leg in legs)


def _packed(flat: Tensor, pieces: Int64Array, room: Tensor) -> Tensor:
    """Return pieces of a flat tensor back to back in the room; a single one as it lies where there is no room."""
    if len(pieces) == 1 and not room.numel():
        begin, end = pieces[0].tolist()
        return flat[begin:end]
    at = 0
    for begin, end in pieces.tolist():
        room[at : at + end - begin].copy_(flat[begin:end])
        at += end - begin
    return room


def _add_pieces(flat: Tensor, leg: Leg, received: Tensor) -> None:
    at = 0
    for begin, end in leg.received.tolist():
        flat[begin:end].add_(received[at : at + end - begin])
        at += end - begin
