"""A fallback's packed sequences written as a plan: pure."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from planner_client.contract import GroupCount, MicroBatch, Plan, PlanRequest, Replica, SequenceCount
from planner_client.fallback_packing import Bin, Stages


class _Placed(Protocol):
    """What a plan says of a replica besides its micro-batches."""

    @property
    def tp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def pp(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def ranks(self) -> tuple[int, ...]: ...
    @property
    def max_tokens(self) -> int: ...


@dataclass(frozen=True)
class PackedReplica:
    """A replica and what its micro-batches hold.

    Attributes
    ----------
    replica
        Its layout and ranks.
    stages
        What its micro-batches cost.
    bins
        Its micro-batches.
    is_timed
        Whether the costs are in ms, and not only good to compare.
    """

    replica: _Placed
    stages: Stages
    bins: Sequence[Bin]
    is_timed: bool

    def written(self) -> Replica:
        """Write the replica, its micro-batches from the longest to the shortest.

        In that order 1F1B takes no longer than the closed form, which therefore stands for the simulated time, too.
        """
        timed = [(self.stages.micro_batch_ms(held), held) for held in self.bins]
        timed.sort(key=lambda entry: -entry[0])
        shown_ms = [time_ms if self.is_timed else 0.0 for time_ms, _ in timed]
        makespan_ms = self.stages.makespan_ms(shown_ms)
        return Replica(
            tp=self.replica.tp,
            cp=self.replica.cp,
            pp=self.replica.pp,
            device=self.replica.device,
            ranks=list(self.replica.ranks),
            max_tokens=self.replica.max_tokens,
            makespan_ms=makespan_ms,
            simulated_ms=makespan_ms,
            micro_batches=[
                _micro_batch(held, time_ms, is_padded=self.stages.is_padded)
                for time_ms, (_, held) in zip(shown_ms, timed, strict=True)
            ],
        )


def plan_of(
    request: PlanRequest,
    replicas: Sequence[PackedReplica],
    *,
    dropped: list[SequenceCount],
    strategy: str,
    sync_ms: float,
) -> Plan:
    """Write a fallback as a plan, labelled as one: no bound, no gap, nothing proven."""
    written = [replica.written() for replica in replicas]
    micro_batches = [micro_batch for replica in written for micro_batch in replica.micro_batches]
    makespan_ms = max((replica.makespan_ms for replica in written), default=0.0)
    return Plan.seal(
        profile=request.profile_names,
        iteration=request.iteration,
        seed=request.options.seed,
        num_sequences=sum(entry.count for micro_batch in micro_batches for entry in micro_batch.sequences),
        num_tokens=sum(micro_batch.num_tokens for micro_batch in micro_batches),
        dropped=dropped,
        replicas=written,
        makespan_ms=makespan_ms,
        simulated_ms=makespan_ms,
        sync_ms=sync_ms,
        lower_bound_ms=None,
        gap=None,
        bound_scope=None,
        solved_by="fallback",
        status="feasible",
        planning_ms=0.0,
        method=request.options.method,
        cost=request.options.cost,
        num_gpus=request.total_gpus,
        alignment=request.options.alignment,
        strategy=strategy,
    )


def _micro_batch(held: Bin, time_ms: float, *, is_padded: bool) -> MicroBatch:
    sequences = Counter((length, item.source) for item in held for length in item.lengths)
    groups = Counter((item.source, item.lengths) for item in held if len(item.lengths) > 1)
    own = sum(sum(item.lengths) for item in held)
    occupied = sum(item.tokens for item in held)
    if is_padded:
        occupied = max(item.longest for item in held) * sum(len(item.lengths) for item in held)
    return MicroBatch(
        sequences=[
            SequenceCount(source=source, length=length, count=count)
            for (length, source), count in sorted(sequences.items(), key=lambda entry: (-entry[0][0], entry[0][1]))
        ],
        groups=[
            GroupCount(source=source, lengths=list(lengths), count=count)
            for (source, lengths), count in sorted(groups.items())
        ],
        num_tokens=own,
        num_padding_tokens=occupied - own,
        time_ms=time_ms,
    )
