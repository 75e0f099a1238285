"""Whether all ranks were given the same data, by a few sequences of it."""

import hashlib
import json
from typing import Any

from torch import Tensor

from worker_agent.executor.collectives import Group, gather_bytes
from worker_agent.trainer.same_arguments import gather_texts, values_by_rank

SHOWN_TOKENS = 5
"""Token ids of a sequence that an error shows."""

NUM_REREADS = 8
"""How often sequences that differ are read again, to tell data that differs from data that is drawn by chance."""

_DIGEST_BYTES = 16
_UNKNOWN = bytes(_DIGEST_BYTES)


def refuse_unlike_data(data: Any, name: str, group: Group = None) -> None:
    """Refuse data that is not the same on every rank; a collective that every rank of the group calls.

    The first, the middle and the last sequence of indexed data are read for it. What cannot be read, and data of which
    a sequence is another each time, as with random crops, is let pass, and so is what can only be iterated: a stream
    must not lose what is read of it here.

    Parameters
    ----------
    data
        Sequences, as many on every rank.
    name
        What errors call the data.
    group
        The process group; by default all ranks.

    Raises
    ------
    ValueError
        On every rank, if a sequence differs; it shows which, and what each rank has.
    worker_agent.executor.faults.RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    if not (hasattr(data, "__len__") and hasattr(data, "__getitem__")):
        return
    doing = f"comparing the {name} of ranks"
    indices = sampled_indices(data)
    own = b"".join(_digest(data, index) for index in indices)
    gathered = gather_bytes(own, group, doing)
    differing = [index for at, index in enumerate(indices) if _differ([_of(told, at) for told in gathered])]
    if not differing:
        return
    varies = any(len({_digest(data, index) for _ in range(NUM_REREADS)}) > 1 for index in differing)
    if any(flag[0] for flag in gather_bytes(bytes([varies]), group, doing)):
        return
    texts = gather_texts(json.dumps(_shown(data, differing[0])).encode(), group, doing)
    told = values_by_rank([json.loads(text) for text in texts])
    raise ValueError(
        f"ranks were given different {name}: {name}[{differing[0]}] is {told}. Give every rank the same; each takes "
        "its part of it"
    )


def sampled_indices(data: Any) -> list[int]:
    """Return which sequences of indexed data are compared; always as many."""
    try:
        num_sequences = len(data)
    except Exception:  # noqa: BLE001 - met where the data is looked at, by all ranks
        num_sequences = 0
    return [0, num_sequences // 2, max(0, num_sequences - 1)]


def _digest(data: Any, index: int) -> bytes:
    """Return what tells one sequence from another; zeros for what cannot be read or is no tensor."""
    try:
        sequence = data[index]
        if not isinstance(sequence, Tensor):
            return _UNKNOWN
        tokens = sequence.detach().cpu().contiguous()
        content = f"{tokens.dtype} {tuple(tokens.shape)} {tokens.tolist()}"
    except Exception:  # noqa: BLE001 - a sequence that cannot be read is a fault of the iteration that would train on it
        return _UNKNOWN
    return hashlib.sha256(content.encode()).digest()[:_DIGEST_BYTES]


def _of(told: bytes, at: int) -> bytes:
    return told[at * _DIGEST_BYTES : (at + 1) * _DIGEST_BYTES]


def _differ(digests: list[bytes]) -> bool:
    return len({*digests} - {_UNKNOWN}) > 1


def _shown(data: Any, index: int) -> str:
    try:
        tokens = data[index].flatten()
        ids = ", ".join(map(str, tokens[:SHOWN_TOKENS].tolist()))
        return f"{tokens.numel()} tokens beginning with {ids}"
    except Exception as unreadable:  # noqa: BLE001 - the other ranks wait for this one's text
        return f"not readable ({type(unreadable).__name__})"
