"""Whether all ranks were given the same arguments: what differs trains something else, or holds ranks up."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from worker_agent.executor.collectives import Group, gather_bytes

DIGEST_BYTES = 16
SHOWN = 160
"""Characters of a value that an error shows."""


def refuse_unlike(arguments: Mapping[str, object], group: Group = None) -> None:
    """Refuse arguments that are not the same on every rank; a collective that every rank of the group calls.

    Parameters
    ----------
    arguments
        Values by name; every rank gives the same names.
    group
        The process group; by default all ranks.

    Raises
    ------
    ValueError
        On every rank, if some differ; it names them and shows what this rank has.
    worker_agent.executor.faults.RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    told = {name: described(value) for name, value in arguments.items()}
    payload = b"".join(hashlib.sha256(text.encode()).digest()[:DIGEST_BYTES] for text in told.values())
    gathered = gather_bytes(payload, group, "comparing the arguments of ranks")
    differing = [
        name
        for number, name in enumerate(told)
        if len({other[number * DIGEST_BYTES : (number + 1) * DIGEST_BYTES] for other in gathered}) > 1
    ]
    if differing:
        own = ", ".join(f"{name}={told[name][:SHOWN]}" for name in differing)
        raise ValueError(
            f"ranks were given different arguments: {', '.join(differing)}; this rank has {own}. Give every rank the "
            "same arguments"
        )


def described(value: Any) -> str:
    """Describe a value so that equal ones are described alike, on any rank."""
    if is_dataclass(value) and not isinstance(value, type):
        inner = ", ".join(
            f"{field.name}={sequences_described(own) if field.name == 'data' else described(own)}"
            for field in fields(value)
            if (own := getattr(value, field.name)) is not None
        )
        return f"{type(value).__name__}({inner})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{described(key)}: {described(own)}" for key, own in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return "[" + ", ".join(map(described, value)) + "]"
    if isinstance(value, Callable):  # type: ignore[arg-type]  # what can be called is asked for, not a type
        # Two ranks have the same function at different places.
        return str(getattr(value, "__qualname__", type(value).__qualname__))
    return repr(value)


def sequences_described(data: Any) -> str:
    """Describe sequences by how many there are: what is read of them may be drawn by chance."""
    return f"{len(data)} sequences" if hasattr(data, "__len__") else type(data).__qualname__
