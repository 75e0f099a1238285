"""What is learned of one job so far: one frozen value that can be written down and taken up again anywhere."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from planner_service.core.learn.measured import Cost, Kind, Registered, Run, Sample

FEWEST_SAMPLES = 12
"""Samples from which a kind's own cost is believed."""


@dataclass(frozen=True, slots=True)
class KindState:
    """What is known of one replica kind.

    Attributes
    ----------
    kind
        Which one.
    samples
        Measured micro-batches, oldest first; on ranks that are no slower than most.
    num_samples
        How many were taken in so far, those that gave way included.
    cost
        What is believed; None until there are enough samples.
    """

    kind: Kind
    samples: tuple[Sample, ...] = ()
    num_samples: int = 0
    cost: Cost | None = None


@dataclass(frozen=True, slots=True)
class DeviceState:
    """What is known of one type of GPU.

    Attributes
    ----------
    device
        Which one.
    scale
        How many times as long as registered its micro-batches take, for kinds that were not measured enough.
    num_off
        Iterations in a row in which its kinds were far from what was registered.
    is_drifting
        Whether they are so for long.
    """

    device: str
    scale: float = 1.0
    num_off: int = 0
    is_drifting: bool = False


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that takes longer than others of its type.

    Attributes
    ----------
    rank
        Which one.
    factor
        How many times as long, rounded; changes with the estimate where that matters.
    estimate
        The same as measured lately, smoothed.
    num_unseen
        Iterations since it last ran anything.
    """

    rank: int
    factor: float
    estimate: float
    num_unseen: int = 0


@dataclass(frozen=True, slots=True)
class PublishedCost:
    """A cost that plans are made with, and how many samples it was made from."""

    kind: Kind
    cost: Cost
    num_samples: int


@dataclass(frozen=True)
class LearnerState:
    """All that is learned of one job.

    Attributes
    ----------
    cursor
        Number of the last report of times that was taken in, in the order of the store.
    num_iterations
        Iterations that times were taken in of.
    recent
        Measured replicas of the last iterations, which are looked at again when more are known.
    kinds, devices, slow
        What is known; kinds that never ran, devices as registered and ranks like others are left out.
    version
        Number of the newest version; 0 is what was registered.
    published, published_slow
        What the newest version says.
    """

    cursor: int = 0
    num_iterations: int = 0
    recent: tuple[Run, ...] = ()
    kinds: tuple[KindState, ...] = ()
    devices: tuple[DeviceState, ...] = ()
    slow: tuple[SlowRank, ...] = ()
    version: int = 0
    published: tuple[PublishedCost, ...] = ()
    published_slow: tuple[SlowRank, ...] = ()

    def of_kind(self, kind: Kind) -> KindState:
        """Return what is known of a kind."""
        return next((own for own in self.kinds if own.kind == kind), KindState(kind))

    def of_device(self, device: str) -> DeviceState:
        """Return what is known of a type of GPU."""
        return next((own for own in self.devices if own.device == device), DeviceState(device))

    def cost_of(self, kind: Kind, registered: Registered) -> Cost:
        """Return what is believed of a kind on ranks like most."""
        known = self.of_kind(kind).cost
        return registered.costs[kind].times(self.of_device(kind.device).scale) if known is None else known

    @cached_property
    def factors(self) -> dict[int, float]:
        """How many times as long ranks take that are slower than most."""
        return {slow.rank: slow.factor for slow in self.slow}

    def iterations(self) -> list[int]:
        """Return the recent iterations, in the order their times came."""
        return list(dict.fromkeys(run.iteration for run in self.recent))


def with_kinds(kinds: Iterable[KindState], changed: Iterable[KindState]) -> tuple[KindState, ...]:
    """Replace what is known of some kinds."""
    by_kind = {own.kind: own for own in kinds} | {own.kind: own for own in changed}
    return tuple(by_kind[kind] for kind in sorted(by_kind))
