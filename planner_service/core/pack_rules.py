"""Packing under rules: numbers of micro-batches that are prescribed, and padded cost."""

import math
from collections.abc import Sequence

from planner_service.core.cost import replica_ms
from planner_service.core.items import Workload
from planner_service.core.pack import EMPTY, Packing, balanced, even_out, fewest_micro_batches, packing_of
from planner_service.core.padded import fewest_padded, pack_padded
from planner_service.core.problem import ReplicaKind

MAX_COUNTS_TRIED = 6
"""Most permitted numbers of micro-batches tried for one replica."""

FEW_ITEMS_TO_EVEN = 96
EVEN_STEPS = 60


def unpackable(items: Sequence[int]) -> Packing:
    """Hold items that break the rules as they are: infinitely slow, so that no search keeps them so."""
    return Packing((tuple(items),), (math.inf,), math.inf)


def is_packable(packing: Packing) -> bool:
    """Whether a packing is one that can run."""
    return packing.makespan_ms < math.inf


def fewest_by_rules(kind: ReplicaKind, items: Sequence[int], work: Workload) -> int:
    """Fewest micro-batches found that hold a replica's items, whatever number is permitted."""
    if work.rules.is_padded:
        return fewest_padded(kind, items, work.items)
    return len(fewest_micro_batches(items, work.items.tokens, kind.max_tokens))


def pack_by_rules(
    kind: ReplicaKind, items: Sequence[int], work: Workload, exactly: int | None = None
) -> Packing | None:
    """Pack a replica's items into a permitted number of micro-batches, none empty, with the least makespan found.

    Parameters
    ----------
    kind
        Replica kind.
    items
        The replica's items, ascending.
    work
        The batch's items, their costs and the rules.
    exactly
        The number of micro-batches, where all replicas have to agree on it; 0 for an idle replica.

    Returns
    -------
    Packing or None
        None if the rules cannot be kept with these items.
    """
    if not items or exactly == 0:
        return EMPTY if not items and (exactly == 0 or work.rules.may_idle) else None
    if max(work.items.tokens[item] for item in items) > kind.max_tokens:
        return None
    if exactly is not None and len(items) < exactly:
        return None
    if work.rules.is_padded:
        bins = pack_padded(kind, items, work.items, work.rules, exactly)
        return None if bins is None else padded_packing_of(kind, work, bins)
    costs, tokens = work.costs_ms[kind], work.items.tokens
    tightest = fewest_micro_batches(items, tokens, kind.max_tokens)
    best: Packing | None = None
    for count in _counts_to_try(kind, items, work, len(tightest), exactly):
        bins = _divided(kind, items, work, count, tightest)
        if bins is None:
            continue
        packing = packing_of(kind, costs, bins)
        if best is None or packing.makespan_ms < best.makespan_ms:
            best = packing
    return best


def padded_packing_of(kind: ReplicaKind, work: Workload, micro_batches: Sequence[Sequence[int]]) -> Packing:
    """Time a division into micro-batches whose sequences are padded to their longest."""
    times = []
    for items in micro_batches:
        longest = max(work.items.longest[item] for item in items)
        count = sum(work.items.num_sequences[item] for item in items)
        times.append(kind.c + count * (kind.a * longest * longest + kind.b * longest))
    return Packing(tuple(tuple(items) for items in micro_batches), tuple(times), replica_ms(kind.pp, times))


def _counts_to_try(
    kind: ReplicaKind, items: Sequence[int], work: Workload, tightest: int, exactly: int | None
) -> list[int]:
    """Permitted numbers by ascending optimistic makespan; the one first-fit can reach is always among them."""
    if exactly is not None:
        return [exactly]
    rules, costs = work.rules, work.costs_ms[kind]
    total = math.fsum(costs[item] for item in items)
    largest = max(costs[item] for item in items)
    fewest = rules.permitted(kind.pp, -(-sum(work.items.tokens[item] for item in items) // kind.max_tokens))
    sure = rules.permitted(kind.pp, tightest)

    def optimistic(count: int) -> tuple[float, int]:
        return kind.c * (count + kind.pp - 1) + (kind.pp - 1) * max(total / count, largest), count

    peak = math.sqrt((kind.pp - 1) * total / kind.c) if kind.c > 0 and kind.pp > 1 else float(len(items))
    useful = math.ceil(total / largest) if largest > 0 else 1
    centre = rules.permitted(kind.pp, max(fewest, min(len(items), round(peak), useful))) if kind.pp > 1 else sure
    reach = MAX_COUNTS_TRIED * rules.count_multiple
    near = range(max(fewest, centre - reach), min(len(items), centre + reach) + 1, rules.count_multiple)
    counts = sorted(near, key=optimistic)[:MAX_COUNTS_TRIED]
    if sure <= len(items) and sure not in counts:
        counts.append(sure)
    return counts


def _divided(
    kind: ReplicaKind, items: Sequence[int], work: Workload, count: int, tightest: list[list[int]]
) -> list[list[int]] | None:
    """Divide items into exactly so many micro-batches, none empty; None if that was not to be had."""
    costs, tokens = work.costs_ms[kind], work.items.tokens
    if len(items) < count:
        return None
    bins = balanced(sorted(items, key=lambda item: -costs[item]), costs, tokens, kind.max_tokens, count)
    if bins is None or not all(bins):
        if len(tightest) > count:
            return None
        bins = _split([list(held) for held in tightest], costs, count)
    if len(items) <= FEW_ITEMS_TO_EVEN:
        even_out(bins, costs, tokens, kind.max_tokens, EVEN_STEPS)
    return bins


def _split(bins: list[list[int]], costs_ms: Sequence[float], count: int) -> list[list[int]]:
    """Divide the costliest micro-batches in two until there are so many."""
    while len(bins) < count:
        divisible = [index for index, held in enumerate(bins) if len(held) > 1]
        index = max(divisible, key=lambda at: math.fsum(costs_ms[item] for item in bins[at]))
        halves: tuple[list[int], list[int]] = ([], [])
        loads = [0.0, 0.0]
        for item in sorted(bins[index], key=lambda one: -costs_ms[one]):
            side = int(loads[1] < loads[0] or (bool(halves[0]) and not halves[1]))
            halves[side].append(item)
            loads[side] += costs_ms[item]
        bins[index] = halves[0]
        bins.append(halves[1])
    return bins
