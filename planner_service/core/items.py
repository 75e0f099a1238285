"""The batch as items to assign: single sequences, or bundles of them where there are very many.

An item's cost on a kind is ``a * (sum of s^2) + b * (sum of s)`` and it takes ``sum of s`` tokens, both exact, so
bundling coarsens the choice but never the figures. It keeps the number of items, and with it planning time, bounded
however many sequences a histogram counts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from planner_service.core.problem import Batch, GroupRow, ReplicaKind, Strategy
from planner_service.core.rules import FREE, PackingRules

MAX_ITEMS = 8192
"""Up to this many sequences each is an item by itself."""

MAX_BUNDLES = 8192
"""About the most bundles made of a batch."""


LEAST_BUNDLES_A_MICRO_BATCH = 4
"""Bundles for each micro-batch that the rules ask for, so that none of them stays empty for want of bundles."""


def bundle_tokens(num_tokens: int, strategy: Strategy, rules: PackingRules = FREE) -> int:
    """Choose how many tokens a bundle of short sequences may have: no more than needed to keep bundles few.

    Parameters
    ----------
    num_tokens
        Occupied tokens of the batch.
    strategy
        What the bundles are for: they are at most an eighth of its smallest limit, which packs well, or where that
        were too many up to a whole limit.
    rules
        Where they ask for many micro-batches, bundles stay small enough for all of them.
    """
    most = _bundle_tokens(num_tokens, strategy)
    if rules.may_idle:
        return most
    asked = sum(rules.permitted(kind.pp) * num_replicas for kind, num_replicas in strategy.groups)
    return max(1, min(most, num_tokens // (LEAST_BUNDLES_A_MICRO_BATCH * asked)))


def _bundle_tokens(num_tokens: int, strategy: Strategy) -> int:
    needed = -(-num_tokens // MAX_BUNDLES)
    smallest = min(kind.max_tokens for kind, _ in strategy.groups)
    if needed <= smallest // 8:
        return max(1, needed)
    for part in (8, 4, 2, 1):
        if num_tokens * part <= 4 * MAX_BUNDLES * smallest:
            return smallest // part
    return min(needed, smallest)


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
        (index into the batch's lengths, count) of each item, sequences of atomic groups included.
    group_rows
        The atomic groups, if there are any.
    groups
        (index into ``group_rows``, copies) of each item that holds groups, else nothing; empty without groups.
    """

    tokens: tuple[int, ...]
    squares: tuple[int, ...]
    longest: tuple[int, ...]
    contents: tuple[tuple[tuple[int, int], ...], ...]
    group_rows: tuple[GroupRow, ...] = ()
    groups: tuple[tuple[tuple[int, int], ...], ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def are_single(self) -> bool:
        """Whether each item is one sequence or one group, so that what is proven for items holds for the batch."""
        if not self.groups:
            return all(len(content) == 1 and content[0][1] == 1 for content in self.contents)
        return all(
            (len(held) == 1 and held[0][1] == 1) if held else (len(content) == 1 and content[0][1] == 1)
            for content, held in zip(self.contents, self.groups, strict=True)
        )

    @cached_property
    def num_sequences(self) -> tuple[int, ...]:
        """Number of sequences of each item."""
        return tuple(sum(count for _, count in content) for content in self.contents)

    @cached_property
    def most_tokens(self) -> int:
        """Most tokens that an item takes, 0 without items."""
        return max(self.tokens, default=0)

    def longest_ones(self, count: int) -> "Items":
        """Take the first ``count`` items, which are the longest; their numbers stay the same."""
        return Items(
            self.tokens[:count],
            self.squares[:count],
            self.longest[:count],
            self.contents[:count],
            self.group_rows,
            self.groups[:count],
        )

    def padded(self) -> "Items":
        """Charge each item as if its sequences were all as long as its longest; single sequences stay as they are."""
        return replace(
            self,
            tokens=tuple(n * longest for n, longest in zip(self.num_sequences, self.longest, strict=True)),
            squares=tuple(n * longest * longest for n, longest in zip(self.num_sequences, self.longest, strict=True)),
        )

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


Content = tuple[tuple[int, int], ...]


def items_of(
    batch: Batch,
    most_tokens: int,
    max_items: int = MAX_ITEMS,
    *,
    groups: Sequence[GroupRow] = (),
    is_padded: bool = False,
) -> Items:
    """Make items of a batch.

    Parameters
    ----------
    batch
        The batch, over-long sequences already left out.
    most_tokens
        Most tokens of a bundle of several sequences (see `bundle_tokens`).
    max_items
        Up to this many sequences each is an item by itself.
    groups
        Sequences of the batch that must share a micro-batch: each is an item, or several copies of one are where there
        are very many, never with others.
    is_padded
        Count a bundle's sequences as long as its longest, as padded micro-batches charge them.
    """
    lengths = [int(length) for length in batch.lengths]
    counts = [int(count) for count in batch.counts]
    grouped = _group_contents(batch, groups)
    num_units = sum(counts)
    for group, content in zip(groups, grouped, strict=True):
        num_units -= group.count * (len(group.lengths) - 1)
        for index, count in content:
            counts[index] -= count * group.count
    room = most_tokens if num_units > max_items else 0
    contents = (_padded_bundles if is_padded else _bundles)(lengths, counts, room)
    held: list[tuple[Content, Content]] = [(content, ()) for content in contents]
    for number, (group, content) in enumerate(zip(groups, grouped, strict=True)):
        held += _group_items(number, group, content, lengths, room)
    if groups:
        held.sort(key=lambda entry: -lengths[entry[0][0][0]])
    return Items(
        tokens=tuple(sum(lengths[index] * count for index, count in content) for content, _ in held),
        squares=tuple(sum(lengths[index] ** 2 * count for index, count in content) for content, _ in held),
        longest=tuple(lengths[content[0][0]] for content, _ in held),
        contents=tuple(content for content, _ in held),
        group_rows=tuple(groups),
        groups=tuple(copies for _, copies in held) if groups else (),
    )


def _bundles(lengths: list[int], counts: list[int], room_of_bundle: int) -> list[Content]:
    """Put the sequences, longest first, into bundles of at most so many tokens; those over half a bundle stay alone."""
    contents: list[Content] = []
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
    return contents


def _padded_bundles(lengths: list[int], counts: list[int], room_of_bundle: int) -> list[Content]:
    """Do the same where each sequence of a bundle takes as much as its longest."""
    contents: list[Content] = []
    open_bundle: list[tuple[int, int]] = []
    places = 0
    for index in range(len(lengths) - 1, -1, -1):
        length, left = lengths[index], counts[index]
        if 2 * length > room_of_bundle:
            contents += [((index, 1),)] * left
            continue
        while left:
            if not places:
                if open_bundle:
                    contents.append(tuple(open_bundle))
                open_bundle, places = [], room_of_bundle // length
            taken = min(left, places)
            open_bundle.append((index, taken))
            places -= taken
            left -= taken
    if open_bundle:
        contents.append(tuple(open_bundle))
    return contents


def _group_contents(batch: Batch, groups: Sequence[GroupRow]) -> list[Content]:
    """Turn each group's true lengths into (index into the batch's lengths, count), longest first."""
    index_of = {row.length: int(index) for row, index in zip(batch.rows, batch.length_of_row, strict=True)}
    contents: list[Content] = []
    for group in groups:
        held: dict[int, int] = {}
        for length in group.lengths:
            held[index_of[length]] = held.get(index_of[length], 0) + 1
        contents.append(tuple(sorted(held.items(), reverse=True)))
    return contents


def _group_items(
    number: int, group: GroupRow, content: Content, lengths: list[int], room_of_bundle: int
) -> list[tuple[Content, Content]]:
    """Make an item of each copy of a group, or of as many copies as a bundle has room for, however they are charged."""
    charged = sum(count for _, count in content) * lengths[content[0][0]]
    copies = max(1, room_of_bundle // charged)
    items: list[tuple[Content, Content]] = []
    left = group.count
    while left:
        taken = min(copies, left)
        items.append((tuple((index, count * taken) for index, count in content), ((number, taken),)))
        left -= taken
    return items


@dataclass(frozen=True)
class Workload:
    """Items with their costs on each kind of interest, in ms, and the rules they are packed by.

    Under padded cost the items are those of `Items.padded`: what each of them takes at least, wherever it is put.
    """

    items: Items
    costs_ms: Mapping[ReplicaKind, list[float]]
    rules: PackingRules = FREE

    @classmethod
    def of(cls, items: Items, kinds: tuple[ReplicaKind, ...], rules: PackingRules = FREE) -> "Workload":
        """Cost the items on some kinds."""
        charged = items.padded() if rules.is_padded else items
        return cls(charged, {kind: charged.costs_ms(kind) for kind in kinds}, rules)
