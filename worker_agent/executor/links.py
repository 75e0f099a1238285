"""Messages between neighbouring stages: activations one way, their gradients the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from worker_agent.executor.carried import CarriedFault
from worker_agent.executor.collectives import rank_loss_named
from worker_agent.executor.layout import RankRole
from worker_agent.executor.schedule import Message, Step
from worker_agent.executor.scratch import Scratch


@dataclass(frozen=True, eq=False)
class _Unsent:
    """A message on its way; the tensor must live until it has arrived."""

    work: dist.Work
    tensor: Tensor


class StageLinks:
    """One rank's links to the ranks that hold the same part of the stages before and after.

    Parameters
    ----------
    role
        The rank's role.
    hidden_size
        Width of a message; its other dimension are the micro-batch's tokens.
    dtype, device
        Of messages.
    scratch
        Room for the largest message.
    carried
        Keeps what goes wrong on this rank.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - who sends, what, and what there is if that fails
        self,
        role: RankRole,
        hidden_size: int,
        dtype: torch.dtype,
        device: torch.device,
        scratch: Scratch,
        carried: CarriedFault,
    ) -> None:
        self._role = role
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._device = device
        self._scratch = scratch
        self._carried = carried
        self._group: dist.ProcessGroup | None = None
        self._unsent: list[_Unsent] = []

    def connect(self, group: dist.ProcessGroup | None) -> None:
        """Name the process group whose messages these are; None for a replica of one stage, which has none."""
        self._group = group

    def exchange(self, step: Step, result: Tensor | None, num_tokens: Sequence[int]) -> list[Tensor]:
        """Hand over what a step sends and wait for what it receives.

        Parameters
        ----------
        step
            The step.
        result
            What it sends; None where that could not be computed.
        num_tokens
            Tokens of every micro-batch, padding included: what is received has no shape of its own.

        Returns
        -------
        list of Tensor
            One for each message received, shape (tokens, hidden size).

        Raises
        ------
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        if not step.sends and not step.receives:
            return []
        shapes = {one: (num_tokens[one.micro_batch], self._hidden_size) for one in (*step.sends, *step.receives)}
        sent = [self._sendable(result, shapes[message]) for message in step.sends]
        received = [self._room(shapes[message]) for message in step.receives]
        posts = [
            *(self._post(dist.isend, message, tensor) for message, tensor in zip(step.sends, sent, strict=True)),
            *(self._post(dist.irecv, message, tensor) for message, tensor in zip(step.receives, received, strict=True)),
        ]
        with rank_loss_named("passing activations between stages"):
            self._start(posts, sent, len(received))
        return received

    def flush(self) -> None:
        """Wait until all messages have arrived.

        Raises
        ------
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        with rank_loss_named("passing activations between stages"):
            for unsent in self._unsent:
                unsent.work.wait()
        self._unsent.clear()

    def _sendable(self, result: Tensor | None, shape: tuple[int, int]) -> Tensor:
        def contiguous() -> Tensor:
            if result is None:
                raise RuntimeError("there is no result to send")
            return result.contiguous()

        return self._carried.attempt(
            "preparing what to send to another stage", contiguous, lambda: self._scratch.take(shape, self._dtype)
        )

    def _room(self, shape: tuple[int, int]) -> Tensor:
        return self._carried.attempt(
            "taking memory to receive in from another stage",
            lambda: torch.empty(shape, dtype=self._dtype, device=self._device),
            lambda: self._scratch.take(shape, self._dtype),
        )

    def _post(self, operation: Callable[..., Any], message: Message, tensor: Tensor) -> dist.P2POp:
        peer = self._role.next_rank if message.to_next else self._role.previous_rank
        return dist.P2POp(operation, tensor, group=self._group, group_peer=peer)

    def _start(self, posts: Sequence[dist.P2POp], sent: Sequence[Tensor], num_received: int) -> None:
        """Post all at once, so that no send stands before the receive that its receiver waits for first."""
        works = dist.batch_isend_irecv(list(posts))
        if self._device.type == "cuda":
            # One work stands for all. Waiting orders the compute stream behind it and does not stop this thread.
            for work in works:
                work.wait()
            return
        # With gloo a send ends when it is received: that is waited for in the end, or stages would run in lock-step.
        self._unsent = [unsent for unsent in self._unsent if not unsent.work.is_completed()]
        num_sent = len(posts) - num_received
        self._unsent += [_Unsent(work, tensor) for work, tensor in zip(works[:num_sent], sent, strict=True)]
        for work in works[num_sent:]:
            work.wait()
