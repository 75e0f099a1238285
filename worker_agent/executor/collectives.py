"""The few collectives the executor uses, each with the fault it ends in when a rank is lost."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from worker_agent.executor.faults import RankLost

Group = dist.ProcessGroup | None
"""A process group; None is the default group of all ranks."""


def group_timeout(group: Group = None) -> timedelta:
    """Return how long a collective of a group waits for its ranks."""
    group = dist.group.WORLD if group is None else group
    if group is None:
        raise ValueError("there is no process group; call torch.distributed.init_process_group first")
    timeout: timedelta = group._get_backend(collective_device(group)).options._timeout
    return timeout


def collective_device(group: Group = None) -> torch.device:
    """Return the device whose tensors a group's collectives take."""
    if dist.get_backend(group) == dist.Backend.NCCL:
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


@contextmanager
def rank_loss_named(doing: str) -> Iterator[None]:
    """Turn the breaking off of a collective into `RankLost`.

    Raises
    ------
    RankLost
        If a rank died or did not arrive within the group's timeout.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise  # the device's memory is a matter of this rank alone
    except RuntimeError as broken:
        raise RankLost(
            f"a collective broke off while {doing}: {broken}; a rank died or did not arrive within the group's "
            "timeout: look at the other ranks' output, then restart from the last checkpoint"
        ) from broken


def gather_bytes(payload: bytes, group: Group, doing: str) -> list[bytes]:
    """Give every rank every rank's payload, in rank order; all payloads have the same size."""
    device = collective_device(group)
    own = torch.frombuffer(bytearray(payload), dtype=torch.uint8).to(device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    with rank_loss_named(doing):
        dist.all_gather(gathered, own, group=group)
    return [bytes(other.cpu().numpy()) for other in gathered]


def gather_values(values: Sequence[float], group: Group, doing: str) -> list[list[float]]:
    """Give every rank every rank's values (fp64), in rank order; all ranks give the same number of values."""
    device = collective_device(group)
    own = torch.tensor(values, dtype=torch.float64, device=device)
    gathered = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    with rank_loss_named(doing):
        dist.all_gather(gathered, own, group=group)
    return [other.tolist() for other in gathered]


def sum_in_place(values: Tensor, group: Group, doing: str) -> None:
    """Replace a tensor on every rank by the sum over all ranks."""
    with rank_loss_named(doing):
        dist.all_reduce(values, group=group)


@dataclass(frozen=True, eq=False)
class RowExchange:
    """One all-to-all whose memory is there already, so that a rank which takes part in it needs nothing more.

    Attributes
    ----------
    sent, received
        What goes to the ranks and what comes from them, in rank order; flat, on the device of the group.
    send_splits, receive_splits
        Elements to and from each rank; zeros are allowed.
    group
        The process group.
    """

    sent: Tensor
    received: Tensor
    send_splits: list[int]
    receive_splits: list[int]
    group: Group

    @classmethod
    def reserve(
        cls, sent: Tensor, send_splits: Sequence[int], receive_splits: Sequence[int], group: Group
    ) -> "RowExchange":
        """Take the memory of an exchange; involves no other rank.

        Parameters
        ----------
        sent
            Shape (sum of ``send_splits``,), the part for rank 0 first.
        send_splits, receive_splits
            Elements to and from each rank.
        group
            The process group.
        """
        device = collective_device(group)
        received = torch.zeros(sum(receive_splits), dtype=sent.dtype, device=device)
        return cls(sent.to(device), received, list(send_splits), list(receive_splits), group)

    def run(self, doing: str) -> Tensor:
        """Exchange, and return what was received; a collective that every rank of the group calls.

        Raises
        ------
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        with rank_loss_named(doing):
            dist.all_to_all_single(self.received, self.sent, self.receive_splits, self.send_splits, group=self.group)
        return self.received
