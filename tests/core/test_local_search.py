"""The local search against every exchange there is."""

from core_cases import DEEP, PIPED, SMALL, WIDE, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.dispatch import Dispatched, pack_all
from planner_service.core.items import Workload, items_of
from planner_service.core.local_search import Improver
from planner_service.core.problem import ReplicaKind, Strategy

KINDS = st.sampled_from([SMALL, PIPED, DEEP, WIDE])


def exchanges(held: tuple[list[int], list[int]]) -> list[tuple[list[int], list[int]]]:
    """Every way of moving one item from the first replica to the second, perhaps for one of its items."""
    mine, theirs = held
    return [
        ([i for i in mine if i != given] + list(back), [i for i in theirs if i not in back] + [given])
        for given in mine
        for back in [(), *((taken,) for taken in theirs)]
    ]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 600), min_size=1, max_size=6), KINDS, KINDS)
def test_where_the_search_ends_no_exchange_with_the_slowest_replica_helps(
    lengths: list[int], first: ReplicaKind, second: ReplicaKind
) -> None:
    """Invariants:

    1. The search never makes the makespan longer.
    2. Every item is held once, and what a replica is said to take is what its items take packed.
    3. At its end no move from the slower replica, and no swap for a cheaper item, brings both below its makespan.
    """
    strategy = Strategy.of([(first, 1), (second, 1)])
    work = Workload.of(items_of(batch_of(lengths), 0), tuple(kind for kind, _ in strategy.groups))
    everything = list(range(len(work.items)))
    largest = max(range(2), key=lambda j: strategy.replicas[j].max_tokens)
    start = pack_all(strategy, work, [everything if j == largest else [] for j in range(2)])
    found = Improver(work, start, lambda: True).run(0.0, 100)
    assert found.makespan_ms <= start.makespan_ms * (1 + 1e-12)
    held = [sorted(item for items in packing.micro_batches for item in items) for packing in found.packings]
    assert sorted(held[0] + held[1]) == everything
    assert pack_all(strategy, work, held).makespan_ms <= found.makespan_ms * (1 + 1e-12)
    worst = max(range(2), key=lambda j: found.packings[j].makespan_ms)
    assert not any(improves(strategy, work, found, worst, after) for after in exchanges((held[worst], held[1 - worst])))


def improves(
    strategy: Strategy, work: Workload, found: Dispatched, worst: int, after: tuple[list[int], list[int]]
) -> bool:
    mine, theirs = after
    kinds = strategy.replicas
    costs = work.costs_ms[kinds[worst]]
    taken = set(mine) - {item for items in found.packings[worst].micro_batches for item in items}
    given = set(theirs) - {item for items in found.packings[1 - worst].micro_batches for item in items}
    if any(costs[item] >= costs[gift] for item in taken for gift in given):
        return False
    for held, kind in ((mine, kinds[worst]), (theirs, kinds[1 - worst])):
        if any(work.items.tokens[item] > kind.max_tokens for item in held):
            return False
    assigned = [mine, theirs] if worst == 0 else [theirs, mine]
    return pack_all(strategy, work, assigned).makespan_ms < found.makespan_ms * (1 - 1e-6)
