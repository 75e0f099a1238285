"""Lengths of a plan's sequences in bins, by the layouts that run them: pure."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping

from planner_client.contract import LayoutCounts, LengthBins

MAX_LAYOUTS = 8
OCTAVES_IN_HALVES = 7
"""Batches whose lengths span no more doublings than this are shown in halves of doublings."""

LengthCounts = Mapping[str, Mapping[int, int]]
"""How many sequences of each length (tokens) each layout runs."""


def length_bins(by_layout: LengthCounts) -> LengthBins:
    """Count sequences by length; each bin's lengths reach about 1.4 or 2 times as far as the last one's."""
    totals: Counter[int] = Counter()
    for counts in by_layout.values():
        totals.update(counts)
    if not totals:
        return LengthBins(shortest=[], longest=[], num_sequences=[], num_tokens=[], layouts=[])
    bounds = _bounds(min(totals), max(totals))
    num_bins = len(bounds) - 1

    def binned(counts: Mapping[int, int], *, in_tokens: bool = False) -> list[int]:
        bins = [0] * num_bins
        for length, count in counts.items():
            bins[bisect_right(bounds, length) - 1] += count * (length if in_tokens else 1)
        return bins

    ordered = sorted(by_layout, key=lambda layout: (-sum(by_layout[layout].values()), layout))
    told = [LayoutCounts(layout=layout, num_sequences=binned(by_layout[layout])) for layout in ordered[:MAX_LAYOUTS]]
    if len(ordered) > MAX_LAYOUTS:
        others: Counter[int] = Counter()
        for layout in ordered[MAX_LAYOUTS:]:
            others.update(by_layout[layout])
        told.append(LayoutCounts(layout=None, num_sequences=binned(others)))
    return LengthBins(
        shortest=bounds[:-1],
        longest=[bound - 1 for bound in bounds[1:]],
        num_sequences=binned(totals),
        num_tokens=binned(totals, in_tokens=True),
        layouts=told,
    )


def _bounds(shortest: int, longest: int) -> list[int]:
    """Return where bins begin and, at last, where the last one ends: powers of two, and the middles between them."""
    first, last = shortest.bit_length() - 1, longest.bit_length()
    bounds = []
    for power in range(first, last):
        bounds.append(2**power)
        if last - first <= OCTAVES_IN_HALVES and power >= 1:
            bounds.append(3 * 2 ** (power - 1))
    bounds.append(2**last)
    begin = bisect_right(bounds, shortest) - 1
    end = bisect_right(bounds, longest)
    return bounds[begin : end + 1]
