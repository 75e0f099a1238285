"""What a measurement is asked to do; refused here, before any work, where it cannot be done. Pure: no torch."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from worker_agent.executor.shape import DecoderConfig
from worker_agent.measuring_limits import MOST_PACKINGS, MOST_RUNS

Clock = Literal["wall", "cpu"]
Limit = Literal["measured", "memory"]
DeviceKind = Literal["cpu", "cuda"]

SHORTEST_TOKENS = 32
"""Shortest sequence measured, where a mix leaves no shorter rest."""

MOST_TOKENS = 100_000 * SHORTEST_TOKENS
"""Largest micro-batch measured: full of the shortest sequences it holds as many as a sample may list."""

MOST_RANKS = 1024
MOST_SEED = 2**32 - 1

_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_LAYOUT = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,3})")
_FEWEST_PACKINGS = 8


class Layout(NamedTuple):
    """Degrees of one layout: tensor and pipeline parallel."""

    tp: int
    pp: int

    def __str__(self) -> str:
        return f"{self.tp}x{self.pp}"

    @property
    def num_ranks(self) -> int:
        """Ranks of one replica."""
        return self.tp * self.pp


ALONE = Layout(1, 1)


def parse_layouts(text: str) -> tuple[Layout, ...]:
    """Read layouts as they are typed: tensor parallel x pipeline parallel, such as ``1x1,2x1,1x2``.

    Raises
    ------
    ValueError
        Naming what is no layout.
    """
    found = []
    for part in text.split(","):
        match = _LAYOUT.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is no layout; write tensor x pipeline degrees, such as 1x1,2x1,1x2")
        found.append(Layout(int(match[1]), int(match[2])))
    return tuple(found)


@dataclass(frozen=True)
class ProfilingSettings:
    """What to measure, and how often.

    Attributes
    ----------
    name
        Name of the profile.
    config
        The decoder to measure.
    max_tokens
        Largest micro-batch measured (tokens), whatever the layout.
    max_length
        Longest sequence measured (tokens).
    layouts
        Layouts to measure, by turns.
    num_ranks
        Ranks that measure at once; as many replicas of a layout as they can form run side by side.
    num_packings
        Different micro-batches to measure for each layout.
    num_repeats
        Times that each of them is run at least.
    max_repeats
        Times that it is run at most, where its times do not settle before; ``num_repeats`` if not given.
    num_memory_levels
        Sizes of micro-batches whose peak memory is measured for each layout; 0 measures no memory.
    limit
        Where the limit of a micro-batch comes from: ``measured`` is ``max_tokens``, known to fit; with ``memory`` the
        planner derives it from the peaks measured.
    with_collectives
        Whether collectives among the ranks are timed.
    clock
        ``wall``, what plans predict and training sees; or ``cpu``, for one that other work shares: CPU time leaves out
        what other processes take, but also waiting for the other ranks of a stage.
    device
        What the ranks compute on.
    seed
        Seed of the packings, their order and the tokens.
    timeout_s
        Wall-clock limit of the whole measurement.

    Raises
    ------
    ValueError
        If a number is out of range.
    """

    name: str
    config: DecoderConfig
    max_tokens: int
    max_length: int
    layouts: tuple[Layout, ...] = (ALONE,)
    num_ranks: int = 2
    num_packings: int = 28
    num_repeats: int = 3
    max_repeats: int | None = None
    num_memory_levels: int = 0
    limit: Limit = "measured"
    with_collectives: bool = False
    clock: Clock = "wall"
    device: DeviceKind = "cpu"
    seed: int = 0
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        if not _PROFILE_NAME.fullmatch(self.name):
            raise ValueError(
                f"name is {self.name!r}; give up to 128 letters, digits, dots, underscores and hyphens, the first a "
                "letter or digit"
            )
        limits = {
            "max_tokens": (self.max_tokens, SHORTEST_TOKENS, MOST_TOKENS),
            "max_length": (self.max_length, SHORTEST_TOKENS, MOST_TOKENS),
            "num_ranks": (self.num_ranks, 1, MOST_RANKS),
            "num_packings": (self.num_packings, _FEWEST_PACKINGS, MOST_PACKINGS),
            "num_repeats": (self.num_repeats, 1, MOST_RUNS),
            "max_repeats": (self.most_repeats, self.num_repeats, MOST_RUNS),
            "num_memory_levels": (self.num_memory_levels, 0, self.num_packings),
            "seed": (self.seed, 0, MOST_SEED),
        }
        for name, (value, least, most) in limits.items():
            if value < least:
                raise ValueError(f"{name} is {value}; give at least {least}")
            if value > most:
                raise ValueError(f"{name} is {value}; give at most {most}")
        if self.num_packings * self.most_repeats > MOST_RUNS:
            raise ValueError(
                f"num_packings {self.num_packings} times max_repeats {self.most_repeats} is "
                f"{self.num_packings * self.most_repeats} runs of a layout; give at most {MOST_RUNS}"
            )
        if self.max_length > self.max_tokens:
            raise ValueError(
                f"max_length {self.max_length} exceeds max_tokens {self.max_tokens}, so that the longest sequence "
                "would not fit a micro-batch; raise max_tokens"
            )
        if self.limit == "memory" and self.num_memory_levels < 2:
            raise ValueError(
                f"num_memory_levels is {self.num_memory_levels}; give at least 2 to derive limits from memory, or let "
                "the limit be what was measured"
            )
        if self.clock == "cpu" and self.device == "cuda":
            raise ValueError("clock is 'cpu' but the ranks compute on GPUs; give 'wall'")
        _check_layouts(self.layouts, self.config, self.num_ranks)

    @property
    def most_repeats(self) -> int:
        """Times that a packing is run at most."""
        return self.num_repeats if self.max_repeats is None else self.max_repeats

    def num_replicas(self, layout: Layout) -> int:
        """Replicas of a layout that run side by side."""
        return self.num_ranks // layout.num_ranks


def _check_layouts(layouts: Sequence[Layout], config: DecoderConfig, num_ranks: int) -> None:
    if not layouts:
        raise ValueError("there is no layout to measure; give one, such as 1x1")
    for layout in layouts:
        if layouts.count(layout) > 1:
            raise ValueError(f"layout {layout} appears twice; keep one of them")
        if layout.num_ranks > num_ranks:
            raise ValueError(
                f"layout {layout} needs {layout.num_ranks} ranks but {num_ranks} measure; raise the number of "
                "processes, or leave it out"
            )
        if config.num_heads % layout.tp:
            raise ValueError(
                f"layout {layout} does not divide the model's {config.num_heads} attention heads; leave layouts out "
                "whose tensor degree does not divide them"
            )
        if layout.pp > config.num_layers:
            raise ValueError(
                f"layout {layout} has more stages than the model has layers ({config.num_layers}); leave it out"
            )
