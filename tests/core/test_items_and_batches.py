from collections import Counter

from core_cases import SMALL, batch_of
from hypothesis import given, settings
from hypothesis import strategies as st

from planner_service.core.items import items_of
from planner_service.core.problem import Batch, SourceRow

COUNTS = st.dictionaries(st.integers(1, 5000), st.integers(1, 40), max_size=30)


@settings(max_examples=200, deadline=None)
@given(COUNTS, st.integers(1, 400), st.integers(4, 200), st.sampled_from([1, 2, 16, 128]))
def test_bundles_keep_every_sequence_and_exact_figures(
    counts: dict[int, int], max_bundle_tokens: int, max_items: int, alignment: int
) -> None:
    """Invariants:

    1. The items hold every sequence of the batch exactly once.
    2. Tokens and squares of an item are the exact sums over what it holds; longest is its longest.
    3. A bundle of several sequences has at most ``max_bundle_tokens`` tokens.
    4. Items come longest first.
    """
    rows = tuple(SourceRow("a", length, count) for length, count in sorted(counts.items()))
    batch = Batch(rows, alignment)
    items = items_of(batch, max_bundle_tokens, max_items)
    lengths = [int(length) for length in batch.lengths]
    held: Counter[int] = Counter()
    for content, tokens, squares, longest in zip(
        items.contents, items.tokens, items.squares, items.longest, strict=True
    ):
        for index, count in content:
            held[index] += count
        assert tokens == sum(lengths[index] * count for index, count in content)
        assert squares == sum(lengths[index] ** 2 * count for index, count in content)
        assert longest == max(lengths[index] for index, _ in content)
        assert sum(count for _, count in content) == 1 or tokens <= max_bundle_tokens
    assert [held[index] for index in range(len(lengths))] == [int(count) for count in batch.counts]
    assert list(items.longest) == sorted(items.longest, reverse=True)
    if batch.num_sequences:
        assert len(items.costs_ms(SMALL)) == len(items)


def test_the_number_of_items_does_not_grow_with_the_number_of_sequences() -> None:
    sizes = []
    for factor in (1_000, 1_000_000):
        rows = tuple(SourceRow("a", length, factor) for length in range(100, 1100, 10))
        sizes.append(len(items_of(Batch(rows), 10**9)))
    assert max(sizes) <= 4096 + 100


def test_lengths_are_rounded_up_to_the_alignment_and_merged() -> None:
    batch = batch_of([1, 16, 17, 31, 32, 33], alignment=16)
    assert batch.lengths.tolist() == [16, 32, 48]
    assert batch.counts.tolist() == [2, 3, 1]
    assert batch.num_tokens == 130
    assert batch.longest == 48


def test_splitting_separates_by_true_and_by_occupied_length() -> None:
    batch = batch_of([90, 100, 110, 130], alignment=16)
    kept, over = batch.split(max_true=120, max_occupied=112)
    assert [row.length for row in kept.rows] == [90, 100, 110]
    assert [row.length for row in over] == [130]
    kept, _ = batch.split(max_true=105, max_occupied=10_000)
    assert [row.length for row in kept.rows] == [90, 100]
