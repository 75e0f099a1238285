"""Phase 1: items to replicas, longest first, and every replica packed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from planner_service.core.dispatch_rules import first_by_rules, pack_all_by_rules
from planner_service.core.items import Workload
from planner_service.core.local_search import Improver
from planner_service.core.longest_first import Dispatched, Preference, longest_first
from planner_service.core.pack import EMPTY, Packing, pack
from planner_service.core.pack_rules import is_packable
from planner_service.core.problem import ReplicaKind, Strategy

LEVEL = 1.25
LEVEL_STEPS = 12
"""A first assignment under rules takes so many steps at most while its slowest replica is so far over the mean."""

__all__ = [
    "Dispatched",
    "LongPart",
    "Preference",
    "first_assignment",
    "keeps_rules",
    "long_parts",
    "longest_first",
    "pack_all",
]


@dataclass(frozen=True)
class LongPart:
    """The longest items of a dispatched batch, with the only replicas that can hold them.

    A bound on the makespan of this part is one on the whole, since the shorter items can only add to it.

    Attributes
    ----------
    replicas
        The replicas, as indices into the whole.
    num_items
        How many items, from the longest on.
    dispatched
        Those items on those replicas; times are those of the whole.
    work
        Those items and their costs.
    """

    replicas: tuple[int, ...]
    num_items: int
    dispatched: Dispatched
    work: Workload


def long_parts(dispatched: Dispatched, work: Workload) -> Iterator[LongPart]:
    """Yield parts from the largest to the smallest: for each limit, the items over it and the replicas over it."""
    for limit in sorted({kind.max_tokens for kind in dispatched.kinds}):
        num_items = sum(longest > limit for longest in work.items.longest)
        replicas = tuple(j for j, kind in enumerate(dispatched.kinds) if kind.max_tokens > limit)
        if num_items and replicas:
            kinds = tuple(dispatched.kinds[j] for j in replicas)
            packings = tuple(
                replace(
                    dispatched.packings[j],
                    micro_batches=tuple(
                        tuple(item for item in items if item < num_items)
                        for items in dispatched.packings[j].micro_batches
                    ),
                )
                for j in replicas
            )
            part = Workload.of(work.items.longest_ones(num_items), tuple(dict.fromkeys(kinds)))
            yield LongPart(replicas, num_items, Dispatched(kinds, packings), part)


def pack_all(strategy: Strategy, work: Workload, assigned: Sequence[Sequence[int]]) -> Dispatched:
    """Pack every replica's items; one that cannot be packed by the workload's rules comes out as infinitely slow."""
    if not work.rules.is_free:
        return pack_all_by_rules(strategy, work, assigned)
    packings = tuple(_packed(kind, items, work) for kind, items in zip(strategy.replicas, assigned, strict=True))
    return Dispatched(strategy.replicas, packings)


def _packed(kind: ReplicaKind, items: Sequence[int], work: Workload) -> Packing:
    return pack(kind, items, work.costs_ms[kind], work.items.tokens) if items else EMPTY


def first_assignment(
    strategy: Strategy, work: Workload, may_go_on: Callable[[], bool] = lambda: True
) -> Dispatched | None:
    """Dispatch longest first and pack; None if the strategy cannot run the batch under the rules it is packed by.

    ``may_go_on`` is asked before each replica is packed, which in very large batches takes seconds for all; None too if
    it says no.
    """
    if not work.rules.is_free:
        found = first_by_rules(strategy, work)
        return None if found is None else _levelled(found, work)
    if work.items.most_tokens > strategy.max_tokens:
        return None
    packings: list[Packing] = []
    for kind, items in zip(strategy.replicas, longest_first(strategy, work), strict=True):
        if not may_go_on():
            return None
        packings.append(_packed(kind, items, work))
    return Dispatched(strategy.replicas, tuple(packings))


def _levelled(dispatched: Dispatched, work: Workload) -> Dispatched:
    """Relieve replicas that keeping the rules has left far over the others, so that strategies compare fairly."""
    busy = [packing.makespan_ms for packing in dispatched.packings if packing.micro_batches]
    if not busy:
        return dispatched
    return Improver(work, dispatched, lambda: True).run(LEVEL * sum(busy) / len(busy), LEVEL_STEPS)


def keeps_rules(dispatched: Dispatched, work: Workload) -> bool:
    """Whether every replica is packed within its limit, into a permitted number of micro-batches, none empty."""
    rules, items = work.rules, work.items
    counts = [len(packing.micro_batches) for packing in dispatched.packings]
    if rules.equal_counts and len(set(counts)) > 1:
        return False
    for kind, packing in zip(dispatched.kinds, dispatched.packings, strict=True):
        if any(counts) and not rules.permits(kind.pp, len(packing.micro_batches)):
            return False
        if not is_packable(packing) or not all(packing.micro_batches):
            return False
        for held in packing.micro_batches:
            taken = sum(items.tokens[item] for item in held)
            if rules.is_padded:
                taken = max(items.longest[item] for item in held) * sum(items.num_sequences[item] for item in held)
            if taken > kind.max_tokens:
                return False
    return True
