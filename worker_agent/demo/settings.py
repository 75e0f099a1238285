"""What a demo run is asked to do; refused here, before any work, where it cannot be done."""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from worker_agent.measuring_limits import MOST_PACKINGS, MOST_RUNS

PROFILE_NAME = "demo"
STRATEGIES = (
    "(2,1)x1,(1,1)x2",
    "(1,2)x2",
    "(2,2)x1",
    "(1,3)x1,(1,1)x1",
    "(4,1)x1",
    "(1,1)x4",
)
"""One for each iteration of the second part: tensor parallel, pipeline parallel, both, and unlike replicas together."""

_SHORTEST_MAX_LENGTH_TOKENS = 256


@dataclass(frozen=True)
class DemoSettings:
    """Settings of one run.

    A run has two parts: plainly packed against planned training on replicas of one rank each, then training whose
    strategy changes with every iteration. Their decoders differ, since layouts need heads and layers to share.

    The decoder of the first part is narrow, so that attention's quadratic part outweighs the linear one from about
    1500 tokens on, as it does in large models from some tens of thousands of tokens on.

    Attributes
    ----------
    report
        Where the report goes.
    iterations
        Iterations of each mode.
    num_sequences
        Sequences of each global batch.
    max_length
        Longest sequence trained on, and the limit of a micro-batch (tokens).
    seed
        Seed of weights, batches and plans.
    profile_packings, profile_repeats
        Micro-batches the profiler measures, and how often on each rank.
    num_ranks
        Training processes, one thread each.
    hidden_size, num_layers, num_heads
        Shape of the decoder.
    learning_rate, changing_learning_rate
        AdamW's, in the first and in the second part.
    deadline_ms
        The planner's deadline for each plan.
    target_gap
        The planner stops at this gap: finer than the cost model predicts, and soon enough to leave the two cores,
        which it shares with training here, to training.
    strategies
        Of the second part, one for each of its iterations; all of ``changing_ranks`` ranks.
    changing_ranks
        Training processes of the second part, one thread each.
    changing_layers, changing_heads
        Shape of the second part's decoder, as wide as the first one's.
    changing_max_length
        Longest sequence of the second part (tokens), where ``max_length`` is not lower.

    Raises
    ------
    ValueError
        If a number is out of range or the report could not be written.
    """

    report: Path
    iterations: int = 12
    num_sequences: int = 12
    max_length: int = 8192
    seed: int = 0
    profile_packings: int = 28
    profile_repeats: int = 3
    num_ranks: int = 2
    hidden_size: int = 64
    num_layers: int = 2
    num_heads: int = 2
    learning_rate: float = 3e-3
    deadline_ms: int = 1000
    target_gap: float = 0.01
    strategies: tuple[str, ...] = STRATEGIES
    changing_ranks: int = 4
    changing_layers: int = 4
    changing_heads: int = 4
    changing_max_length: int = 1536
    changing_learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        limits = {
            "iterations": (self.iterations, 1, 100_000),
            "sequences": (self.num_sequences, self.num_ranks, 100_000),
            "max-length": (self.max_length, _SHORTEST_MAX_LENGTH_TOKENS, 1_048_576),
            "seed": (self.seed, 0, 2**31 - 1),
            "profile-packings": (self.profile_packings, 8, MOST_PACKINGS),
            "profile-repeats": (self.profile_repeats, 1, MOST_RUNS // MOST_PACKINGS),
        }
        for name, (value, least, most) in limits.items():
            if not least <= value <= most:
                raise ValueError(f"--{name} is {value}; give from {least} to {most}")
        _refuse_unwritable(self.report)

    def as_values(self) -> dict[str, Any]:
        """Return the settings as JSON values, the path as text."""
        return asdict(self) | {"report": str(self.report)}


def _refuse_unwritable(path: Path) -> None:
    """Refuse a report path that cannot be written, without creating anything."""
    directory = path.parent
    if path.is_dir():
        raise ValueError(f"--report {path} is a directory; name a file in it")
    if not directory.is_dir():
        raise ValueError(f"--report {path} lies in {directory}, which is no directory; create it or name another file")
    if not os.access(path if path.exists() else directory, os.W_OK):
        raise ValueError(f"--report {path} cannot be written by this user; name another file")
