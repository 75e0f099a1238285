"""Whether all ranks were given the same arguments: what differs trains something else, or holds ranks up."""

import functools
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from numbers import Number
from pathlib import PurePath
from typing import Any

import torch
from pydantic import BaseModel

from worker_agent.executor.collectives import Group, gather_bytes, gather_values

SHOWN_CHARACTERS = 160
"""Of a value that an error shows."""

SHOWN_VALUES = 4
"""Of one argument that an error shows; the ranks of further ones are not listed."""

SHOWN_ARGUMENTS = 8
"""That an error shows; of further ones it says how many there are."""


def refuse_unlike(arguments: Mapping[str, object], group: Group = None) -> None:
    """Refuse arguments that are not the same on every rank; a collective that every rank of the group calls.

    Parameters
    ----------
    arguments
        Values by name.
    group
        The process group; by default all ranks.

    Raises
    ------
    ValueError
        On every rank, if some differ; it names them, and what each rank has.
    worker_agent.executor.faults.RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    doing = "comparing the arguments of ranks"
    text = json.dumps(described(arguments)).encode()
    if len({*gather_bytes(hashlib.sha256(text).digest(), group, doing)}) == 1:
        return
    told = differences([json.loads(other) for other in gather_texts(text, group, doing)])
    more = f" (and {len(told) - SHOWN_ARGUMENTS} more)" if len(told) > SHOWN_ARGUMENTS else ""
    raise ValueError(
        f"ranks were given different arguments: {'; '.join(told[:SHOWN_ARGUMENTS])}{more}. Give every rank the same"
    )


def gather_texts(text: bytes, group: Group, doing: str) -> list[bytes]:
    """Give every rank every rank's JSON text, in rank order; they may differ in size."""
    size = int(max(sizes[0] for sizes in gather_values([len(text)], group, doing)))
    return gather_bytes(text.ljust(size), group, doing)


def differences(by_rank: Sequence[Mapping[str, str]]) -> list[str]:
    """Return which descriptions differ between ranks, with the ranks' values, in words.

    Parameters
    ----------
    by_rank
        From `described`, in rank order.
    """
    names = dict.fromkeys(name for told in by_rank for name in told)
    differing: list[str] = []
    for name in names:
        is_told = any(name.startswith((f"{other}.", f"{other}[")) for other in differing)
        if not is_told and len({told.get(name) for told in by_rank}) > 1:
            differing.append(name)
    return [f"{name} is {values_by_rank([told.get(name, 'not given') for told in by_rank])}" for name in differing]


def values_by_rank(values: Sequence[str]) -> str:
    """Say which ranks have which value."""
    ranks_of: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks_of.setdefault(value, []).append(rank)
    shown = [f"{value[:SHOWN_CHARACTERS]} on {_ranks(ranks)}" for value, ranks in ranks_of.items()]
    return " and ".join([*shown[:SHOWN_VALUES], *(["others"] if len(shown) > SHOWN_VALUES else [])])


def _ranks(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    listed = ", ".join(map(str, ranks[:SHOWN_VALUES]))
    return f"ranks {listed}" if len(ranks) <= SHOWN_VALUES else f"ranks {listed} and {len(ranks) - SHOWN_VALUES} more"


def described(arguments: Mapping[str, object]) -> dict[str, str]:
    """Describe values and their parts, by the place of each, so that equal ones are described alike on any rank."""
    told: dict[str, str] = {}
    for name, value in arguments.items():
        _describe(name, value, told)
    return told


def _describe(name: str, value: Any, told: dict[str, str]) -> None:
    if re.search(r"\bdata$", name):
        # Nobody wants to wait for all of it; `same_data` compares some.
        told[name] = sequences_described(value)
        return
    told[name] = _text(value)
    for part, own in _parts(value):
        _describe(f"{name}{part}", own, told)


def _text(value: Any) -> str:
    if value is None or isinstance(value, str | bytes | Number | Enum | torch.dtype):
        return repr(value)
    if isinstance(value, PurePath):
        return repr(str(value))
    if isinstance(value, Sequence):
        return f"{len(value)} entries"
    if isinstance(value, Callable) and not is_dataclass(value):  # type: ignore[arg-type]  # asked for, not a type
        # Two ranks have the same function at different places in memory.
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return type(value).__qualname__


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if is_dataclass(value) and not isinstance(value, type):
        yield from ((f".{field.name}", getattr(value, field.name)) for field in fields(value))
    elif isinstance(value, BaseModel):
        yield from ((f".{name}", getattr(value, name)) for name in type(value).model_fields)
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, Mapping):
        yield from ((f".{key}", own) for key, own in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        yield from ((f"[{number}]", own) for number, own in enumerate(value))


def sequences_described(data: Any) -> str:
    """Describe sequences by how many there are."""
    if not hasattr(data, "__len__"):
        return type(data).__qualname__
    try:
        return f"{len(data)} sequences"
    except Exception as unknown:  # noqa: BLE001 - whatever it raises is met where the data is looked at, by all ranks
        return f"data of no known length ({type(unknown).__name__})"
