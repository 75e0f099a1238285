"""A plan over nodes rewritten as the same plan over ranks: pure.

An executor moves sequences from rank to rank, while the planner knows only which node holds them. Every rank knows the
lengths of all, so that each can rewrite the plan by itself and all come to the same one.
"""

from collections.abc import Iterable, Mapping, Sequence

from planner_client.contract import MicroBatch, Plan, SequenceCount
from planner_client.sequences import PlanMismatch

LengthsByRank = Mapping[str, Sequence[int]]
"""Lengths (tokens) of one node's ranks, by the ranks' names as sources, in the node's order of ranks."""


def plan_of_ranks(plan: Plan, held: Mapping[str, LengthsByRank]) -> Plan:
    """Return a plan that names ranks where the given one names nodes; its digest is another for that.

    The sequences of every micro-batch stay the same, and so does the order in which equal ones are taken.

    Parameters
    ----------
    plan
        A plan whose sources are nodes.
    held
        What the ranks of each node hold.

    Raises
    ------
    PlanMismatch
        If the ranks do not hold the sequences that the plan names.
    ValueError
        If the plan keeps atomic groups together, whose sequences cannot be told apart by length alone.
    """
    if any(micro_batch.groups for replica in plan.replicas for micro_batch in replica.micro_batches):
        raise ValueError("a plan with atomic groups cannot be rewritten by rank; take each rank's part from its agent")
    left = {node: _Left(node, ranks) for node, ranks in held.items()}

    def taken(entries: Iterable[SequenceCount]) -> list[SequenceCount]:
        return [
            own
            for entry in entries
            for own in (left.get(entry.source) or _Left(entry.source, {})).take(entry.length, entry.count)
        ]

    def rewritten(micro_batch: MicroBatch) -> MicroBatch:
        return micro_batch.model_copy(update={"sequences": taken(micro_batch.sequences)})

    replicas = [
        replica.model_copy(update={"micro_batches": list(map(rewritten, replica.micro_batches))})
        for replica in plan.replicas
    ]
    dropped = taken(plan.dropped)
    for node in left.values():
        node.refuse_rest()
    content = {name: getattr(plan, name) for name in Plan.model_fields if name != "digest"}
    return Plan.seal(**{**content, "replicas": replicas, "dropped": dropped})


class _Left:
    """Sequences of one node that the plan has not named yet: per length, how many each rank has, in order."""

    def __init__(self, node: str, ranks: LengthsByRank) -> None:
        self._node = node
        self._runs: dict[int, list[list[str | int]]] = {}
        self._num_held: dict[int, int] = {}
        for rank, lengths in ranks.items():
            for length in lengths:
                runs = self._runs.setdefault(int(length), [])
                if not runs or runs[-1][0] != rank:
                    runs.append([rank, 0])
                runs[-1][1] = int(runs[-1][1]) + 1
                self._num_held[int(length)] = self._num_held.get(int(length), 0) + 1
        for runs in self._runs.values():
            runs.reverse()

    def take(self, length: int, count: int) -> list[SequenceCount]:
        """Take the next sequences of a length."""
        runs, taken = self._runs.get(length, []), []
        while count:
            if not runs:
                num_held = self._num_held.get(length, 0)
                raise PlanMismatch(self._node, length, num_held + count, num_held)
            rank, num_left = str(runs[-1][0]), int(runs[-1][1])
            own = min(count, num_left)
            taken.append(SequenceCount(source=rank, length=length, count=own))
            count -= own
            if own == num_left:
                runs.pop()
            else:
                runs[-1][1] = num_left - own
        return taken

    def refuse_rest(self) -> None:
        """Refuse a plan that does not name all."""
        for length, runs in sorted(self._runs.items()):
            num_left = sum(int(run[1]) for run in runs)
            if num_left:
                raise PlanMismatch(self._node, length, self._num_held[length] - num_left, self._num_held[length])
