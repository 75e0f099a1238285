"""The batch as items to assign: single sequences, or bundles of them where there are very many.

An item's cost on a kind is ``a * (sum of s^2) + b * (sum of s)`` and it takes ``sum of s`` tokens, both exact, so
bundling coarsens the choice but never the figures. It keeps the number of items, and with it planning time, bounded
however many sequences a histogram counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from planner_service.core.problem import Batch, ReplicaKind, Strategy

MAX_ITEMS = 4096
"""Up to this many sequences each is an item by itself."""

MAX_BUNDLES = 8192
"""About the most bundles made of a batch."""


def bundle_tokens(num_tokens: int, strategy: Strategy) -> int:
    """Choose how many tokens a bundle of short sequences may have: no more than needed to keep bundles few.

    Parameters
    ----------
    num_tokens
        Occupied tokens of the batch.
    strategy
        What the bundles are for: they are at most an eighth of its smallest limit, which packs well, or where that
        were too many up to a whole limit.
    """
    needed = -(-num_tokens // MAX_BUNDLES)
    smallest = min(kind.max_tokens for kind, _ in strategy.groups)
    if needed <= smallest // 8:
        return max(1, needed)
    for part in (8, 4, 2, 1):
        if num_tokens * part <= 4 * MAX_BUNDLES * smallest:
            return smallest // part
    return min(needed, strategy.max_tokens)


@dataclass(frozen=True)
class Items:
    """Items in descending order of their longest sequence.

    Attributes
    ----------
    tokens
        Occupied tokens of each item.
    squares
        Sum of the squared occupied lengths of each item.
    longest
        Longest occupied length in each item, in tokens.
    contents
        (index into the batch's lengths, count) of each item.
    """

    tokens: tuple[int, ...]
    squares: tuple[int, ...]
    longest: tuple[int, ...]
    contents: tuple[tuple[tuple[int, int], ...], ...]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def are_single(self) -> bool:
        """Whether every item is one sequence, so that what is proven for items holds for sequences."""
        return all(len(content) == 1 and content[0][1] == 1 for content in self.contents)

    def longest_ones(self, count: int) -> "Items":
        """Take the first ``count`` items, which are the longest; their numbers stay the same."""
        return Items(self.tokens[:count], self.squares[:count], self.longest[:count], self.contents[:count])

    def costs_ms(self, kind: ReplicaKind) -> list[float]:
        """Cost of each item on a kind, in ms."""
        return [kind.a * squares + kind.b * tokens for squares, tokens in zip(self.squares, self.tokens, strict=True)]

    @cached_property
    def alike(self) -> tuple[tuple[int, int], ...]:
        """Runs of equal items as (first item, number of items)."""
        runs: list[tuple[int, int]] = []
        for index in range(len(self)):
            if runs:
                first, count = runs[-1]
                if self.tokens[first] == self.tokens[index] and self.squares[first] == self.squares[index]:
                    runs[-1] = (first, count + 1)
                    continue
            runs.append((index, 1))
        return tuple(runs)


def items_of(batch: Batch, most_tokens: int, max_items: int = MAX_ITEMS) -> Items:
    """Make items of a batch.

    Parameters
    ----------
    batch
        The batch, over-long sequences already left out.
    most_tokens
        Most tokens of a bundle of several sequences (see `bundle_tokens`).
    max_items
        Up to this many sequences each is an item by itself.
    """
    lengths = [int(length) for length in batch.lengths]
    counts = [int(count) for count in batch.counts]
    room_of_bundle = most_tokens if sum(counts) > max_items else 0
    contents: list[tuple[tuple[int, int], ...]] = []
    open_bundle: list[tuple[int, int]] = []
    room = room_of_bundle
    for index in range(len(lengths) - 1, -1, -1):
        length, left = lengths[index], counts[index]
        if 2 * length > room_of_bundle:
            contents += [((index, 1),)] * left
            continue
        while left:
            if length > room:
                contents.append(tuple(open_bundle))
                open_bundle, room = [], room_of_bundle
            taken = min(left, room // length)
            open_bundle.append((index, taken))
            room -= taken * length
            left -= taken
    if open_bundle:
        contents.append(tuple(open_bundle))
    return Items(
        tokens=tuple(sum(lengths[index] * count for index, count in content) for content in contents),
        squares=tuple(sum(lengths[index] ** 2 * count for index, count in content) for content in contents),
        longest=tuple(lengths[content[0][0]] for content in contents),
        contents=tuple(contents),
    )


@dataclass(frozen=True)
class Workload:
    """Items with their costs on each kind of interest, in ms."""

    items: Items
    costs_ms: Mapping[ReplicaKind, list[float]]

    @classmethod
    def of(cls, items: Items, kinds: tuple[ReplicaKind, ...]) -> "Workload":
        """Cost the items on some kinds."""
        return cls(items, {kind: items.costs_ms(kind) for kind in kinds})
