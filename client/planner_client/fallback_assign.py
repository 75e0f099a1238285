"""Which sequences a fallback runs, and on which replica: pure, greedy, deterministic."""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner_client.charged import aligned
from planner_client.contract import PlanOptions, PlanRequest, SequenceCount
from planner_client.errors import FallbackImpossible, SequenceTooLong
from planner_client.fallback_packing import Item, Stages


@dataclass(frozen=True)
class Admitted:
    """What of a batch is run.

    Attributes
    ----------
    items
        Sequences and groups, largest first.
    dropped
        What is left out, ascending by source and length.
    """

    items: list[Item]
    dropped: list[SequenceCount]


def admitted_items(request: PlanRequest, stages: Sequence[Stages], origin: str) -> Admitted:
    """Apply the over-long policy, as the planner does: a group goes whole or not at all.

    Raises
    ------
    FallbackImpossible
        If something does not fit and the request does not allow to drop it.
    """
    options = request.options
    policy = _Policy(options, max(own.max_tokens for own in stages), origin)
    single: Counter[tuple[str, int]] = Counter()
    dropped: Counter[tuple[str, int]] = Counter()
    for source, histogram in request.histograms_by_source().items():
        for length, count in zip(histogram.lengths, histogram.counts, strict=True):
            held = dropped if policy.drops_length(source, length) else single
            held[source, length] += count
    items: list[Item] = []
    for source, group, count in _groups(request):
        item = _item(source, group, options)
        is_dropped = policy.drops_group(item)
        members = Counter(length for length in group if (source, length) in single)
        for length, num_members in members.items():
            single[source, length] -= count * num_members
            dropped[source, length] += count * num_members if is_dropped else 0
        if not is_dropped:
            items += [item] * count
    for (source, length), count in single.items():
        items += [_item(source, (length,), options)] * count
    items.sort(key=_largest_first)
    lost = [
        SequenceCount(source=source, length=length, count=n) for (source, length), n in sorted(dropped.items()) if n
    ]
    return Admitted(items, lost)


def _groups(request: PlanRequest) -> Iterator[tuple[str, tuple[int, ...], int]]:
    for source, groups in sorted((request.atomic_groups or {}).items()):
        for group in groups:
            yield source, tuple(sorted(group.lengths)), group.count


def _largest_first(item: Item) -> tuple[int, int, str, tuple[int, ...]]:
    return -item.tokens, -item.longest, item.source, item.lengths


@dataclass(frozen=True)
class _Policy:
    """What becomes of sequences and groups that no replica holds.

    ``limit`` is the most tokens of a micro-batch of any replica, ``origin`` whose that is.
    """

    options: PlanOptions
    limit: int
    origin: str

    def drops_length(self, source: str, length: int) -> bool:
        if not self._is_over_long(length):
            return False
        if self.options.over_long != "drop":
            raise self._too_long(source, length)
        return True

    def drops_group(self, item: Item) -> bool:
        if item.tokens <= self.limit and not any(self._is_over_long(length) for length in item.lengths):
            return False
        if self.options.over_long != "drop":
            raise FallbackImpossible(
                f"an atomic group of {item.source} takes {item.tokens} tokens in one micro-batch but the limit is "
                f"{self.limit}, the largest of {self.origin}; split the group, or set over_long to drop"
            )
        return True

    def _is_over_long(self, length: int) -> bool:
        longest = self.options.max_length
        return (longest is not None and length > longest) or aligned(length, self.options.alignment) > self.limit

    def _too_long(self, source: str, length: int) -> FallbackImpossible:
        longest, alignment = self.options.max_length, self.options.alignment
        limit, whose = self.limit, f"the largest micro-batch of {self.origin}"
        if longest is not None and length > longest:
            limit, whose = longest, "the max_length of the request"
        once_aligned = f" ({aligned(length, alignment)} once aligned)" if alignment > 1 else ""
        return SequenceTooLong(
            f"source {source} has a sequence of {length} tokens{once_aligned} but without the planner the limit is "
            f"{limit}, {whose}; leave such sequences out, or set over_long to drop",
            limit,
        )


def _item(source: str, lengths: tuple[int, ...], options: PlanOptions) -> Item:
    charged = tuple(aligned(length, options.alignment) for length in lengths)
    longest = max(charged)
    tokens = longest * len(charged) if options.cost == "padded" else sum(charged)
    return Item(tokens, longest, source, lengths, charged)


@dataclass
class _Load:
    """What a replica has so far."""

    work_ms: float = 0.0
    num_tokens: int = 0
    largest_ms: float = 0.0


def assign(items: Sequence[Item], stages: Sequence[Stages], options: PlanOptions) -> list[list[Item]]:
    """Give each item, largest first, to the replica that would end first; largest first in each.

    Of replicas alike only the one that ends first is looked at.

    Parameters
    ----------
    items
        Largest first; each fits at least one replica.
    stages
        The replicas; those alike are equal.

    Raises
    ------
    FallbackImpossible
        If no replica may stay without sequences and there are too few that fit.
    """
    assigned: list[list[Item]] = [[] for _ in stages]
    loads = [_Load() for _ in stages]
    alike: dict[Stages, list[tuple[float, int]]] = {}
    for number, own in enumerate(stages):
        alike.setdefault(own, []).append((0.0, number))
    heaps = list(alike.items())
    costs: dict[Item, list[float]] = {}
    for item in items:
        each_ms = costs.get(item)
        if each_ms is None:
            each_ms = costs[item] = [own.item_ms(item) for own, _ in heaps]
        best: tuple[float, int] | None = None
        for at, (own, heap) in enumerate(heaps):
            if item.tokens <= own.max_tokens:
                load, cost_ms = loads[heap[0][1]], each_ms[at]
                end_ms = own.estimate_ms(
                    load.work_ms + cost_ms, load.num_tokens + item.tokens, max(load.largest_ms, cost_ms)
                )
                if best is None or end_ms < best[0]:
                    best = (end_ms, at)
        if best is None:
            raise FallbackImpossible(f"no replica holds {item.tokens} tokens in one micro-batch")
        end_ms, at = best
        number = heaps[at][1][0][1]
        load, cost_ms = loads[number], each_ms[at]
        load.work_ms += cost_ms
        load.num_tokens += item.tokens
        load.largest_ms = max(load.largest_ms, cost_ms)
        assigned[number].append(item)
        heapq.heapreplace(heaps[at][1], (end_ms, number))
    if options.constrains_counts or options.idle_replicas == "forbid":
        _top_up(assigned, stages, options)
    return assigned


def _top_up(assigned: list[list[Item]], stages: Sequence[Stages], options: PlanOptions) -> None:
    """Move the smallest items to replicas that have too few for the micro-batches they must run."""
    must_run = options.idle_replicas == "forbid" or (options.equal_micro_batch_counts and any(assigned))
    multiple = options.micro_batch_count_multiple
    needs = [-(-(own.pp if options.at_least_stages else 1) // multiple) * multiple for own in stages]
    for number, own in enumerate(stages):
        if not assigned[number] and not must_run:
            continue
        while len(assigned[number]) < needs[number]:
            moved = _spare(assigned, needs, number, own.max_tokens)
            if moved is None:
                raise FallbackImpossible(
                    f"replica {number} has {len(assigned[number])} sequences or groups but needs {needs[number]} to "
                    "run as many micro-batches as the options ask for; without the planner none are found for it"
                )
            assigned[number].append(moved)
        assigned[number].sort(key=_largest_first)


def _spare(assigned: list[list[Item]], needs: Sequence[int], taker: int, max_tokens: int) -> Item | None:
    """Take the smallest item of the replica with most to spare, if it fits."""
    givers = [number for number in range(len(assigned)) if number != taker and len(assigned[number]) > needs[number]]
    for number in sorted(givers, key=lambda number: (needs[number] - len(assigned[number]), number)):
        if assigned[number][-1].tokens <= max_tokens:
            return assigned[number].pop()
    return None
