"""Items one by one into the micro-batches of all replicas: to keep limits and counts where they are tight."""

from collections.abc import Sequence
from dataclasses import dataclass

from planner_service.core.items import Workload
from planner_service.core.longest_first import Dispatched
from planner_service.core.pack import EMPTY, Packing, packing_of
from planner_service.core.pack_rules import pack_by_rules, padded_packing_of
from planner_service.core.problem import ReplicaKind

MAX_RAISES = 64
"""How often the number of micro-batches is raised before the limits count as too tight."""

FEW_ITEMS = 16
MAX_PLACED = 4000
"""Up to so few items every way to fill the micro-batches is tried, until so many items were placed."""


@dataclass
class _Bin:
    """A micro-batch that is being filled: of which replica, with what, and the tokens it takes."""

    replica: int
    max_tokens: int
    held: list[int]
    taken: int = 0


def fill(kinds: tuple[ReplicaKind, ...], work: Workload, busy: Sequence[int], exactly: int | None) -> Dispatched | None:
    """Put every item where it leaves the least room, into as few micro-batches as that takes.

    Parameters
    ----------
    kinds
        Kind of each replica.
    work
        Items, their costs and rules.
    busy
        The replicas that may have items.
    exactly
        Micro-batches of each of them; if not prescribed, as few as the rules permit and more while the items need more.

    Returns
    -------
    Dispatched or None
        None if that leads to no assignment that keeps limits and counts.
    """
    rules = work.rules
    counts = {j: exactly or rules.permitted(kinds[j].pp) for j in busy}
    for _ in range(1 if exactly is not None else MAX_RAISES):
        if sum(counts.values()) > len(work.items):
            return None
        bins = [_Bin(j, kinds[j].max_tokens, []) for j in busy for _ in range(counts[j])]
        if _best_fit(bins, work) or (len(work.items) <= FEW_ITEMS and _search(bins, work)):
            return _dispatched(kinds, work, bins, exactly)
        raised = max(busy, key=lambda j: (kinds[j].max_tokens / counts[j], -j))
        counts[raised] += rules.count_multiple
    return None


def _taken(bin_: _Bin, item: int, work: Workload) -> int:
    """Tokens of a micro-batch with one more item; items come longest first."""
    items = work.items
    if not work.rules.is_padded:
        return bin_.taken + items.tokens[item]
    longest = max(items.longest[i] for i in (*bin_.held, item))
    return longest * sum(items.num_sequences[i] for i in (*bin_.held, item))


def _largest_first(work: Workload) -> list[int]:
    return sorted(range(len(work.items)), key=lambda item: (-work.items.tokens[item], item))


def _best_fit(bins: list[_Bin], work: Workload) -> bool:
    """Fill the micro-batches; False if an item finds no room or one of them stays empty."""
    for item in _largest_first(work):
        rooms = [
            (room, number)
            for number, bin_ in enumerate(bins)
            if (room := bin_.max_tokens - _taken(bin_, item, work)) >= 0
        ]
        if not rooms:
            return False
        chosen = bins[min(rooms)[1]]
        chosen.taken = _taken(chosen, item, work)
        chosen.held.append(item)
    return all(bin_.held or _seize(bin_, bins, work) for bin_ in bins)


def _seize(empty: _Bin, bins: Sequence[_Bin], work: Workload) -> bool:
    """Take the largest item that fits from a micro-batch of several."""
    tokens = work.items.tokens
    fitting = [
        (tokens[item], -item, bin_)
        for bin_ in bins
        if len(bin_.held) > 1
        for item in bin_.held
        if tokens[item] <= empty.max_tokens
    ]
    if not fitting:
        return False
    _, negative, giver = max(fitting, key=lambda entry: entry[:2])
    giver.held.remove(-negative)
    empty.held.append(-negative)
    return True


def _search(bins: list[_Bin], work: Workload) -> bool:
    """Try every way to fill the micro-batches, largest item first, until one leaves none empty."""
    order = _largest_first(work)
    for bin_ in bins:
        bin_.held, bin_.taken = [], 0
    num_placed = 0

    def place(position: int) -> bool:
        nonlocal num_placed
        num_empty = sum(not bin_.held for bin_ in bins)
        if position == len(order) or num_placed > MAX_PLACED or num_empty > len(order) - position:
            return position == len(order) and not num_empty
        item = order[position]
        tried: set[tuple[int, int, int]] = set()
        for bin_ in bins:
            before = bin_.taken
            after = _taken(bin_, item, work)
            alike = (bin_.replica, before, len(bin_.held))
            if alike in tried or after > bin_.max_tokens:
                continue
            tried.add(alike)
            num_placed += 1
            bin_.held.append(item)
            bin_.taken = after
            if place(position + 1):
                return True
            bin_.held.pop()
            bin_.taken = before
        return False

    return place(0)


def _dispatched(
    kinds: tuple[ReplicaKind, ...], work: Workload, bins: Sequence[_Bin], exactly: int | None
) -> Dispatched:
    """Turn filled micro-batches into packings, packed anew where that is faster."""
    packings: list[Packing] = []
    for j, kind in enumerate(kinds):
        own = [bin_.held for bin_ in bins if bin_.replica == j]
        if not own:
            packings.append(EMPTY)
            continue
        filled = (
            padded_packing_of(kind, work, own) if work.rules.is_padded else packing_of(kind, work.costs_ms[kind], own)
        )
        anew = pack_by_rules(kind, sorted(item for held in own for item in held), work, exactly)
        packings.append(anew if anew is not None and anew.makespan_ms < filled.makespan_ms else filled)
    return Dispatched(kinds, tuple(packings))
