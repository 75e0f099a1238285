"""Read sequence lengths from a file, and take a batch from them."""

import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planner_client.contract import Histogram
from planner_client.contract.scalars import MAX_LENGTH_TOKENS, MAX_SEQUENCES_LISTED
from planner_service.workloads import STREAMS, builtin_stream

FORMATS = ".csv (columns length,count), .txt or .txt.gz (one length a line), .npy, .json (a list), or - for stdin"


class LengthsFileError(ValueError):
    """A file of lengths that cannot be read, with the place and the remedy."""


@dataclass(frozen=True)
class Lengths:
    """What a file holds: a stream of lengths in order, or a histogram."""

    stream: list[int] | None = None
    histogram: Histogram | None = None


def read_lengths(path: str) -> Lengths:
    """Read a file of sequence lengths in tokens.

    Parameters
    ----------
    path
        File name, ``-`` for one length a line on standard input, or the name of a built-in stream.

    Raises
    ------
    LengthsFileError
        If the file is missing, of unknown format, or holds something that is not a length.
    """
    try:
        return _read(path)
    except (OSError, EOFError, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise LengthsFileError(f"{path} cannot be read: {reason}") from error
    except UnicodeDecodeError as error:
        raise LengthsFileError(f"{path} is not text: byte {error.start} is not UTF-8") from error


def _read(path: str) -> Lengths:
    if path.endswith(".csv"):
        return Lengths(histogram=_from_csv(Path(path).read_text(encoding="utf-8"), path))
    return Lengths(stream=_stream(path))


def _stream(path: str) -> list[int]:
    if path == "-":
        return _from_lines(sys.stdin, "standard input")
    if path in STREAMS:
        return builtin_stream(path)
    if path.endswith((".txt", ".txt.gz")):
        opener = gzip.open if path.endswith(".gz") else open
        with opener(path, "rt", encoding="utf-8") as lines:
            return _from_lines(lines, path)
    if path.endswith(".npy"):
        return _from_npy(path)
    if path.endswith(".json"):
        return _from_json(Path(path).read_text(encoding="utf-8"), path)
    raise LengthsFileError(f"{path} has an unknown format; give {FORMATS}, or a built-in stream: {', '.join(STREAMS)}")


def _length(value: object, where: str) -> int:
    if isinstance(value, str):
        text = value.strip()
        value = int(text) if text.isascii() and text.isdigit() and len(text) <= 12 else text
    if isinstance(value, bool) or not isinstance(value, int):
        raise LengthsFileError(f"{where}: {value!r} is not a whole number of tokens")
    if not 1 <= value <= MAX_LENGTH_TOKENS:
        raise LengthsFileError(f"{where}: length {value} is out of range; give 1 to {MAX_LENGTH_TOKENS} tokens")
    return value


def _from_lines(lines: Iterable[str], name: str) -> list[int]:
    return [_length(line, f"{name} line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _from_csv(text: str, name: str) -> Histogram:
    rows = csv.reader(io.StringIO(text))
    header = [cell.strip() for cell in next(rows, [])]
    if header != ["length", "count"]:
        raise LengthsFileError(f"{name} line 1: the columns are {','.join(header)!r}; make them 'length,count'")
    counts: dict[int, int] = {}
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        where = f"{name} line {number}"
        if len(row) != 2:
            raise LengthsFileError(f"{where}: {len(row)} cells; give a length and a count")
        length = _length(row[0], where)
        counts[length] = counts.get(length, 0) + _length(row[1], f"{where} (count)")
    ascending = sorted(counts)
    try:
        return Histogram(lengths=ascending, counts=[counts[length] for length in ascending])
    except ValueError as error:
        raise LengthsFileError(f"{name}: a count or the number of distinct lengths is too large: {error}") from error


def _from_npy(path: str) -> list[int]:
    try:
        array = np.load(path, allow_pickle=False)
    except ValueError as error:
        raise LengthsFileError(f"{path} is not a .npy array of whole numbers: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        shape = getattr(array, "shape", "?")
        raise LengthsFileError(
            f"{path} holds an array of shape {shape} and type {getattr(array, 'dtype', '?')}; "
            "give one dimension of whole numbers"
        )
    return [_length(int(value), f"{path} element {index}") for index, value in enumerate(array)]


def _from_json(text: str, name: str) -> list[int]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise LengthsFileError(f"{name} is not JSON: {error}") from error
    if not isinstance(values, list):
        raise LengthsFileError(f"{name} holds a JSON {type(values).__name__}; give a list of lengths")
    return [_length(value, f"{name} element {index}") for index, value in enumerate(values)]


def take_batch(lengths: Lengths, num_tokens: int | None, max_length: int | None, seed: int) -> Lengths:
    """Take a batch of about ``num_tokens`` tokens: the first sequences of a stream, or a seeded draw from a histogram.

    The sequence that reaches the number is the last one taken. From a stream, sequences over ``max_length`` are taken
    as they come but not counted, since they are not trained on; a draw takes only sequences within ``max_length``,
    with replacement, each equally likely.

    Parameters
    ----------
    lengths
        What the file holds.
    num_tokens
        Tokens to take; everything if None.
    max_length
        Longest sequence that counts, in tokens.
    seed
        Seed of the draw.

    Raises
    ------
    LengthsFileError
        If no sequence of a histogram is within ``max_length``, so that a draw would never end.
    """
    if num_tokens is None:
        return lengths
    limit = max_length or MAX_LENGTH_TOKENS
    if lengths.stream is not None:
        return Lengths(stream=_prefix(lengths.stream, num_tokens, limit))
    histogram = lengths.histogram
    if histogram is None or not any(length <= limit for length in histogram.lengths):
        raise LengthsFileError(f"no sequence has at most {limit} tokens, so no batch of {num_tokens} can be drawn")
    within = [
        (length, count) for length, count in zip(histogram.lengths, histogram.counts, strict=True) if length <= limit
    ]
    weights = np.array([count for _, count in within], float)
    values = np.array([length for length, _ in within])
    if num_tokens > MAX_SEQUENCES_LISTED * float(values @ weights / weights.sum()):
        raise LengthsFileError(
            f"{num_tokens} tokens would take more than {MAX_SEQUENCES_LISTED} sequences of the mean length "
            f"{values @ weights / weights.sum():.1f}; take fewer tokens, or the whole histogram without --tokens"
        )
    generator = np.random.default_rng(seed)
    drawn: list[int] = []
    reached = 0
    while reached < num_tokens:
        chunk = generator.choice(values, size=1024, p=weights / weights.sum())
        part = _prefix([int(length) for length in chunk], num_tokens - reached, limit)
        drawn += part
        reached += sum(part)
    return Lengths(stream=drawn)


def _prefix(stream: list[int], num_tokens: int, limit: int) -> list[int]:
    taken: list[int] = []
    reached = 0
    for length in stream:
        if reached >= num_tokens:
            break
        taken.append(length)
        reached += length if length <= limit else 0
    return taken
