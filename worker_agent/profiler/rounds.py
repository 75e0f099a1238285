"""What to measure next, given what was measured: pure, so that every rank decides the same and a journal goes on.

Layouts take turns, and every micro-batch of a layout is run once before any of them again, so that what disturbs the
machine for a while meets all alike. A micro-batch is run until it is *stable*: other processes only ever add time, so
that the fastest times are the undisturbed ones, and three of them that agree show that they were reached.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from worker_agent.profiler.packings import draw_packings, memory_packings
from worker_agent.profiler.records import Record, Round, RoundRecord
from worker_agent.profiler.settings import ProfilingSettings

AGREEING = 3
"""So many of the fastest times have to agree."""

TOLERANCE = 0.05
"""They agree if they lie within this share of the fastest."""

OUTLIER_RATIO = 1.25
"""A time is an outlier if it is more than so many times the reference."""

MICRO_BATCHES_PER_ROUND = 8
"""Enough that a pipeline is mostly full, few enough that a round takes seconds."""

_FEWEST_PER_STAGE = 2
_LENGTH_OF_EQUAL_COST_TOKENS = 1500
"""About where a narrow decoder's quadratic part reaches the linear one; for estimates of the time left alone."""


def is_stable(times_ms: Sequence[float]) -> bool:
    """Tell whether the three fastest times lie within 5 % of each other."""
    fastest = sorted(times_ms)[:AGREEING]
    return len(fastest) == AGREEING and fastest[-1] <= (1 + TOLERANCE) * fastest[0]


def reference_ms(times_ms: Sequence[float]) -> float:
    """Return the median of the three fastest times; of fewer, the fastest.

    Raises
    ------
    ValueError
        If there are none.
    """
    if not times_ms:
        raise ValueError("no time was measured; measure at least once")
    fastest = sorted(times_ms)[:AGREEING]
    return fastest[1] if len(fastest) == AGREEING else fastest[0]


def is_outlier(time_ms: float, times_ms: Sequence[float]) -> bool:
    """Tell whether a time is more than a quarter over the reference of all times of its micro-batch."""
    return time_ms > OUTLIER_RATIO * reference_ms(times_ms)


@dataclass(frozen=True)
class Progress:
    """What was measured so far, and what follows from it.

    Attributes
    ----------
    settings
        What to measure.
    records
        Finished rounds, in order.
    """

    settings: ProfilingSettings
    records: tuple[RoundRecord, ...]

    @classmethod
    def of(cls, settings: ProfilingSettings, records: Iterable[Record]) -> "Progress":
        """Return what follows from records; those of collectives are left out."""
        return cls(settings, tuple(record for record in records if isinstance(record, RoundRecord)))

    @cached_property
    def packings(self) -> list[list[int]]:
        """Lengths of every micro-batch."""
        settings = self.settings
        return draw_packings(settings.max_tokens, settings.max_length, settings.num_packings, settings.seed)

    @cached_property
    def memory_levels(self) -> tuple[int, ...]:
        """Micro-batches whose peak memory is measured, by ascending tokens."""
        return memory_packings(self.packings, self.settings.num_memory_levels)

    @cached_property
    def times_ms(self) -> dict[tuple[int, int], list[float]]:
        """All times of a layout's micro-batch."""
        times: dict[tuple[int, int], list[float]] = defaultdict(list)
        for record in self.records:
            for reading in record.readings:
                times[record.round.layout, reading.packing].append(reading.time_ms)
        return times

    @cached_property
    def num_runs(self) -> Counter[tuple[int, int]]:
        """Rounds of kind ``time`` that ran a layout's micro-batch."""
        timed = (record for record in self.records if record.round.kind == "time")
        return Counter((record.round.layout, packing) for record in timed for packing in record.round.packings)

    def largest_tokens(self, layout: int) -> int:
        """Return the most tokens that a micro-batch of a layout may be measured with."""
        tokens = [sum(lengths) for lengths in self.packings]
        lacking = [
            tokens[record.round.packings[0]]
            for record in self.records
            if record.lacked_memory and record.round.layout == layout
        ]
        if not lacking:
            return self.settings.max_tokens
        fitting = [tokens[number] for number in self.memory_levels if tokens[number] < min(lacking)]
        return max(fitting, default=0)

    def is_done(self, layout: int, packing: int) -> bool:
        """Tell whether a layout's micro-batch needs no further run."""
        if sum(self.packings[packing]) > self.largest_tokens(layout):
            return True
        runs = self.num_runs[layout, packing]
        if runs < self.settings.num_repeats:
            return False
        return runs >= self.settings.most_repeats or is_stable(self.times_ms[layout, packing])

    def runs_left(self, layout: int, packing: int) -> int:
        """Return how many runs a layout's micro-batch still needs at least."""
        if self.is_done(layout, packing):
            return 0
        return max(1, self.settings.num_repeats - self.num_runs[layout, packing])

    @cached_property
    def next_round(self) -> Round | None:
        """What to measure next; None when all is measured."""
        return self._next_memory_round() or self._next_time_round()

    def _next_memory_round(self) -> Round | None:
        measured = {record.round for record in self.records if record.round.kind == "memory"}
        for layout in range(len(self.settings.layouts)):
            for number in self.memory_levels:
                if sum(self.packings[number]) > self.largest_tokens(layout):
                    break
                level = Round(layout=layout, kind="memory", packings=(number,))
                if level not in measured:
                    return level
        return None

    def _next_time_round(self) -> Round | None:
        waiting = [
            (self.num_runs[layout, packing], layout, packing)
            for layout in range(len(self.settings.layouts))
            for packing in range(len(self.packings))
            if not self.is_done(layout, packing)
        ]
        if not waiting:
            return None
        fewest_runs, layout, _ = min(waiting)
        chosen = [packing for runs, owner, packing in waiting if (runs, owner) == (fewest_runs, layout)]
        shuffle = random.Random(f"{self.settings.seed} {layout} {fewest_runs}")  # noqa: S311 - an order, not a secret
        shuffle.shuffle(chosen)
        chosen = chosen[:MICRO_BATCHES_PER_ROUND]
        return Round(layout=layout, kind="time", packings=(*chosen, *self._filling(layout, chosen)))

    def _filling(self, layout: int, chosen: Sequence[int]) -> list[int]:
        """Return micro-batches to run besides, so that a pipeline is not mostly empty."""
        missing = _FEWEST_PER_STAGE * self.settings.layouts[layout].pp - len(chosen)
        if missing <= 0 or self.settings.layouts[layout].pp == 1:
            return []
        largest = self.largest_tokens(layout)
        others = [
            number for number, lengths in enumerate(self.packings) if number not in chosen and sum(lengths) <= largest
        ]
        return sorted(others, key=lambda number: self.num_runs[layout, number])[:missing]

    def work(self, layout: int, packing: int) -> float:
        """Return about how long a layout's micro-batch takes, in arbitrary units."""
        lengths = self.packings[packing]
        cost = sum(length + length * length / _LENGTH_OF_EQUAL_COST_TOKENS for length in lengths)
        return cost / self.settings.layouts[layout].num_ranks

    @cached_property
    def work_left(self) -> float:
        """Work that is left at least, in the same units."""
        layouts, packings = range(len(self.settings.layouts)), range(len(self.packings))
        return sum(
            self.runs_left(layout, packing) * self.work(layout, packing) for layout in layouts for packing in packings
        )
