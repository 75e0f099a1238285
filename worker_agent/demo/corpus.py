"""Real text that every machine has: the source files of Python's standard library, one file a sequence.

Tokens are bytes. Tests and installed packages are left out: distributions strip or add them, so leaving them out
keeps the corpus nearly the same everywhere that runs the same Python version.
"""

import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

VOCAB_SIZE = 256
"""Tokens are bytes."""

SKIPPED_DIRECTORIES = frozenset({"__pycache__", "dist-packages", "idle_test", "site-packages", "test", "tests"})
"""Directories below the standard library whose files are not read."""


@dataclass(frozen=True)
class Corpus:
    """Sequences read, and what became of the files that gave none.

    Attributes
    ----------
    sequences
        The bytes of each kept file, in the order of the files' sorted relative paths.
    num_files
        Files found.
    num_empty
        Files without a byte; they hold no sequence.
    num_over_long
        Files over ``max_length`` that were left out whole; nothing is truncated.
    num_over_long_tokens
        Tokens of those files.
    max_length
        Longest sequence kept, in tokens.
    """

    sequences: tuple[bytes, ...]
    num_files: int
    num_empty: int
    num_over_long: int
    num_over_long_tokens: int
    max_length: int

    def __post_init__(self) -> None:
        accounted = len(self.sequences) + self.num_empty + self.num_over_long
        if accounted != self.num_files:
            raise ValueError(f"{self.num_files} files were found but {accounted} accounted for")

    @property
    def lengths(self) -> list[int]:
        """Length of each sequence (tokens)."""
        return [len(sequence) for sequence in self.sequences]

    @property
    def num_tokens(self) -> int:
        """Tokens of all kept sequences."""
        return sum(self.lengths)

    def describe(self) -> str:
        """Return one sentence that accounts for every file."""
        return (
            f"{self.num_files} standard-library source files = {len(self.sequences)} sequences "
            f"({self.num_tokens:,} byte tokens) + {self.num_over_long} longer than {self.max_length} tokens, left out "
            f"({self.num_over_long_tokens:,} tokens) + {self.num_empty} empty"
        )


def read_corpus(max_length: int, root: Path | None = None) -> Corpus:
    """Read the Python source files below ``root``, sorted by path.

    Parameters
    ----------
    max_length
        Longest sequence to keep (tokens).
    root
        Directory to read; the running Python's standard library if not given.

    Raises
    ------
    ValueError
        If no file of at most ``max_length`` bytes is there.
    OSError
        If a file cannot be read.
    """
    base = root if root is not None else Path(sysconfig.get_path("stdlib"))
    contents = [path.read_bytes() for path in _source_files(base)]
    kept = tuple(content for content in contents if 0 < len(content) <= max_length)
    over_long = [len(content) for content in contents if len(content) > max_length]
    if not kept:
        raise ValueError(
            f"none of the {len(contents)} Python files below {base} has from 1 to {max_length} bytes; "
            "raise the maximum length or install a Python that ships its library's sources"
        )
    return Corpus(
        sequences=kept,
        num_files=len(contents),
        num_empty=sum(not content for content in contents),
        num_over_long=len(over_long),
        num_over_long_tokens=sum(over_long),
        max_length=max_length,
    )


def _source_files(base: Path) -> list[Path]:
    found = [
        path.relative_to(base)
        for path in base.rglob("*.py")
        if not SKIPPED_DIRECTORIES.intersection(path.relative_to(base).parts[:-1])
    ]
    return [base / path for path in sorted(found, key=lambda path: path.as_posix())]


def draw_batches(num_available: int, *, num_batches: int, num_sequences: int, seed: int) -> list[list[int]]:
    """Draw global batches as indices of sequences: shuffled epochs, cut into batches of equal size.

    Parameters
    ----------
    num_available
        Sequences to draw from.
    num_batches
        Global batches to draw.
    num_sequences
        Sequences of each batch; the same sequence may come twice only where one epoch ends and the next begins.
    seed
        Seed of the shuffles; the same seed draws the same batches.

    Raises
    ------
    ValueError
        If a batch would hold more sequences than there are.
    """
    if num_sequences > num_available:
        raise ValueError(
            f"a batch of {num_sequences} sequences cannot be drawn from {num_available}; "
            "ask for fewer sequences a batch or raise the maximum length"
        )
    shuffler = random.Random(seed)  # noqa: S311 - an order of training examples, not a secret
    stream: list[int] = []
    while len(stream) < num_batches * num_sequences:
        epoch = list(range(num_available))
        shuffler.shuffle(epoch)
        stream.extend(epoch)
    return [stream[batch * num_sequences : (batch + 1) * num_sequences] for batch in range(num_batches)]


def held_by(batch: list[int], source: int, num_sources: int) -> list[int]:
    """Return the indices of a batch that one of ``num_sources`` sources holds: every ``num_sources``-th one."""
    return batch[source::num_sources]
