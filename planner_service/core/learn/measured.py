"""What is known before and what is measured: registered costs, and replicas with the times of their micro-batches."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from planner_service.core.problem import Layout

Sample = tuple[float, float, float]
"""One micro-batch: the sum of its squared lengths (tokens squared), of its lengths (tokens), and its time (ms)."""

LEAST_TIME_MS = 1e-6
MOST_TIME_MS = 1e8
"""Shortest and longest time of a micro-batch that tells of a machine, a nanosecond and a day; others are mistakes."""


def is_credible(time_ms: float) -> bool:
    """Tell whether a micro-batch can have taken so long."""
    return LEAST_TIME_MS <= time_ms <= MOST_TIME_MS


@dataclass(frozen=True, slots=True)
class Cost:
    """Coefficients of one replica kind per pipeline stage: ms per token squared, ms per token, ms per micro-batch."""

    a: float
    b: float
    c: float

    def time_ms(self, squares: float, tokens: float) -> float:
        """Return the time of a micro-batch with these sums of squared lengths and of lengths."""
        return self.a * squares + self.b * tokens + self.c

    def times(self, factor: float) -> "Cost":
        """Return the cost of a machine on which everything takes ``factor`` times as long."""
        return Cost(self.a * factor, self.b * factor, self.c * factor)


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """A layout on one type of GPU."""

    device: str
    layout: Layout

    def __str__(self) -> str:
        return f"{self.layout} on {self.device}"


@dataclass(frozen=True)
class Registered:
    """What a job was registered with.

    Attributes
    ----------
    costs
        Of every layout on every type of GPU.
    ranks
        Of each type of GPU.
    """

    costs: Mapping[Kind, Cost]
    ranks: Mapping[str, tuple[int, ...]]

    @cached_property
    def device_of(self) -> dict[int, str]:
        """The type of each rank."""
        return {rank: device for device, ranks in self.ranks.items() for rank in ranks}

    def kinds_of(self, device: str) -> list[Kind]:
        """Return the kinds of one type of GPU, in order."""
        return sorted(kind for kind in self.costs if kind.device == device)


@dataclass(frozen=True, slots=True)
class Run:
    """One replica in one iteration, as it was measured.

    Attributes
    ----------
    iteration
        Which iteration.
    kind
        Its layout, and the type of GPU of its ranks as it was registered.
    ranks
        Where it ran.
    samples
        Its micro-batches.
    """

    iteration: int
    kind: Kind
    ranks: tuple[int, ...]
    samples: tuple[Sample, ...]

    @property
    def total_ms(self) -> float:
        """Time of all its micro-batches."""
        return sum(time_ms for *_, time_ms in self.samples)


def weighted_median(values: list[tuple[float, float]]) -> float:
    """Return the lower weighted median of (value, weight) pairs: half of the weight or more is at or below it."""
    ordered = sorted(values)
    half, seen = sum(weight for _, weight in ordered) / 2, 0.0
    for value, weight in ordered:
        seen += weight
        if seen >= half * (1 - 1e-12):
            return value
    return ordered[-1][0]


def ratio_of(run: Run, cost: Cost) -> float:
    """Return how many times as long a replica took as a cost predicts, by the median of its micro-batches' time."""
    pairs = [
        (time_ms / predicted_ms, predicted_ms)
        for squares, tokens, time_ms in run.samples
        if (predicted_ms := cost.time_ms(squares, tokens)) > 0
    ]
    return weighted_median(pairs) if pairs else 1.0
