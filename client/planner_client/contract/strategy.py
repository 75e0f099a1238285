"""Strategies as people write them: ``(16,1)x1,(8,1)x6`` is one (tp=16, pp=1) replica and six (tp=8, pp=1).

In a cluster of several GPU types a group names its own: ``(8,1)x4@A800 80GB,(4,1)x8@A100 40GB``.
"""

import re
from collections.abc import Sequence
from typing import Annotated

from pydantic import StringConstraints

from planner_client.contract.scalars import MAX_DEGREE, MAX_GPUS, Degree, NumGpus, Sent

_GROUP = re.compile(
    r"\(\s*(\d{1,9})\s*,\s*(\d{1,9})\s*(?:,\s*(\d{1,9})\s*)?\)\s*x\s*(\d{1,9})(?:\s*@([^,()]{1,1000}))?"
)

DeviceName = Annotated[str, StringConstraints(min_length=1, max_length=1000)]


class ReplicaGroup(Sent):
    """Replicas of one layout.

    Attributes
    ----------
    tp, cp, pp
        Degrees of the layout: tensor, context and pipeline parallel.
    num_replicas
        How many replicas.
    device
        The type of GPU that they run on, where a cluster has several that have this layout.
    """

    tp: Degree
    cp: Degree = 1
    pp: Degree
    num_replicas: NumGpus
    device: DeviceName | None = None

    @property
    def num_ranks(self) -> int:
        """Ranks that all replicas of the group take together."""
        return self.tp * self.cp * self.pp * self.num_replicas


class OptimizerLayout(Sent):
    """The fixed homogeneous sharding of the optimizer states over all ranks.

    Attributes
    ----------
    dp, tp, pp
        Degrees of the sharding: data, tensor and pipeline parallel; their product is the number of GPUs.
    """

    dp: NumGpus
    tp: Degree
    pp: Degree


class AllowedLayout(Sent):
    """A layout that strategies may use.

    Attributes
    ----------
    tp, cp, pp
        Degrees of the layout: tensor, context and pipeline parallel.
    """

    tp: Degree
    cp: Degree = 1
    pp: Degree


def parse_strategy(text: str) -> list[ReplicaGroup]:
    """Read ``(tp,pp)xCOUNT`` or ``(tp,cp,pp)xCOUNT`` groups, each perhaps with ``@DEVICE``, separated by commas.

    Raises
    ------
    ValueError
        If the text is not of that form or a number is out of range.
    """
    groups: list[ReplicaGroup] = []
    at = 0
    while True:
        match = _GROUP.match(text, at)
        if match is None:
            raise ValueError(
                f"strategy {text!r} cannot be read at {text[at : at + 20]!r}; write groups as (tp,pp)xCOUNT or "
                "(tp,cp,pp)xCOUNT with commas between, for example (16,1)x1,(8,1)x6"
            )
        first, second, third, count, device = match.groups()
        degrees = (int(first), int(second), int(third)) if third else (int(first), 1, int(second))
        if not all(1 <= degree <= MAX_DEGREE for degree in degrees):
            raise ValueError(f"strategy {text!r} has degrees {degrees}; each must be from 1 to {MAX_DEGREE}")
        if not 1 <= int(count) <= MAX_GPUS:
            raise ValueError(f"strategy {text!r} has a group of {count} replicas; give from 1 to {MAX_GPUS}")
        groups.append(
            ReplicaGroup(
                tp=degrees[0],
                cp=degrees[1],
                pp=degrees[2],
                num_replicas=int(count),
                device=device.strip() if device else None,
            )
        )
        rest = text[match.end() :].lstrip()
        if not rest:
            return groups
        if not rest.startswith(","):
            raise ValueError(f"strategy {text!r} cannot be read at {rest[:20]!r}; put a comma between groups")
        at = len(text) - len(rest[1:].lstrip())


def format_strategy(groups: Sequence[ReplicaGroup]) -> str:
    """Write groups in the notation that `parse_strategy` reads; cp is left out where it is 1."""
    return ",".join(
        (f"({group.tp},{group.pp})" if group.cp == 1 else f"({group.tp},{group.cp},{group.pp})")
        + f"x{group.num_replicas}"
        + (f"@{group.device}" if group.device else "")
        for group in groups
    )
