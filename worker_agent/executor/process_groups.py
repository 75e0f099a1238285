"""The process groups a runner holds: made when a plan first needs them, in one order on all ranks, and given up."""

from collections import OrderedDict
from collections.abc import Sequence

import torch
import torch.distributed as dist

from worker_agent.executor.agree import settle
from worker_agent.executor.carried import CarriedFault
from worker_agent.executor.collectives import Group, collective_device, group_timeout, rank_loss_named
from worker_agent.executor.layout import revise_groups
from worker_agent.executor.tensor_parallel import TensorGroup

DEFAULT_MAX_PROCESS_GROUPS = 32
"""Most process groups of stages that a runner holds; each costs memory on a GPU."""


class ProcessGroups:
    """The process groups of one runner; every rank of the group builds one and calls its methods in the same order.

    Making a group involves every rank, member or not, so all ranks walk a plan's groups in its order. Groups that
    plans have not used for longest are given up first, by all ranks alike.

    Parameters
    ----------
    group
        The group of all ranks; None is the default group.
    limit
        Most groups of stages held at a time. Up to three more span all ranks: `propagation`, `pipeline` and
        `preparation`.

    Attributes
    ----------
    propagation
        Moves parameters and gradients while stages compute.

    Raises
    ------
    ValueError
        If the group is not one of all ranks of the job.
    IterationFailed
        On every rank, if a rank could not make its part of a group.
    RankLost
        If a rank died or did not arrive within the group's timeout.
    """

    def __init__(self, group: Group, limit: int = DEFAULT_MAX_PROCESS_GROUPS) -> None:
        if limit < 1:
            raise ValueError(f"max_process_groups is {limit}; give at least 1")
        if dist.get_world_size(group) != dist.get_world_size():
            raise ValueError(
                f"the runner's group has {dist.get_world_size(group)} of the job's {dist.get_world_size()} ranks, but "
                "process groups are made by all ranks together; give a group of all ranks"
            )
        self._global_ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        self._rank = dist.get_rank(group)
        self._timeout = group_timeout(group)
        self._device = collective_device(group)
        self._limit = limit
        self._held: OrderedDict[tuple[int, ...], dist.ProcessGroup] = OrderedDict()
        self._pipeline: dist.ProcessGroup | None = None
        self._preparation: dist.ProcessGroup | None = None
        carried = CarriedFault(self._device)
        self._first_sum = torch.zeros(1, device=self._device)
        self.propagation = self._joined(range(len(self._global_ranks)), carried)
        settle(carried.fault, "making process groups", group)

    @property
    def held(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of the groups of stages held, the least recently used first."""
        return tuple(self._held)

    def check(self, needed: Sequence[tuple[int, ...]]) -> None:
        """Refuse a plan that needs too many groups; involves no other rank.

        Raises
        ------
        LayoutRefused
            Naming the limit.
        """
        revise_groups(self.held, needed, self._limit)

    def ensure(self, needed: Sequence[tuple[int, ...]], carried: CarriedFault, *, pipeline: bool) -> None:
        """Hold the groups that a plan needs; a collective that every rank calls.

        Parameters
        ----------
        needed
            Ranks of its groups of stages, in the order to make them.
        carried
            Keeps what goes wrong on this rank.
        pipeline
            Whether it has stages that send to one another.

        Raises
        ------
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        given_up, made = revise_groups(self.held, needed, self._limit)
        for ranks in given_up:
            self._destroy(self._held.pop(ranks))
        for ranks in made:
            self._held[ranks] = self._joined(ranks, carried)
        for ranks in needed:
            self._held.move_to_end(ranks)
        if pipeline and self._pipeline is None:
            self._pipeline = self._joined(range(len(self._global_ranks)), carried)

    def tensor_group(self, ranks: tuple[int, ...]) -> TensorGroup | None:
        """Return the group of the ranks that share this rank's stage; None if it has the stage alone."""
        return TensorGroup(self._held[ranks]) if len(ranks) > 1 else None

    @property
    def pipeline(self) -> dist.ProcessGroup:
        """The group in which neighbouring stages send to one another.

        Raises
        ------
        RuntimeError
            If no plan with stages was announced to `ensure`.
        """
        if self._pipeline is None:
            raise RuntimeError("no plan with pipeline stages was announced")
        return self._pipeline

    def preparation(self, carried: CarriedFault) -> dist.ProcessGroup:
        """Return the group that prepares iterations to come, on the hosts; a collective that every rank calls."""
        if self._preparation is None:
            self._preparation = self._joined(range(len(self._global_ranks)), carried, on_host=True)
        return self._preparation

    def close(self) -> None:
        """Give all groups up; every rank calls it once, after its last iteration."""
        for group in (*self._held.values(), self._pipeline, self._preparation, self.propagation):
            if group is not None:
                self._destroy(group)
        self._held.clear()
        self._pipeline, self._preparation = None, None

    def _joined(self, ranks: Sequence[int], carried: CarriedFault, *, on_host: bool = False) -> dist.ProcessGroup:
        """Make a group, at the second try where the first one failed before it met the other ranks."""

        def make() -> dist.ProcessGroup:
            return self._make(ranks, on_host=on_host)

        return carried.attempt(f"making the process group of ranks {list(ranks)}", make, make)

    def _make(self, ranks: Sequence[int], *, on_host: bool = False) -> dist.ProcessGroup:
        # Making groups among their members alone is faster but ends in broken connections when ranks that were given
        # up meet again (torch 2.13).
        with rank_loss_named("making a process group"):
            group: dist.ProcessGroup = dist.new_group(
                [self._global_ranks[rank] for rank in ranks],
                timeout=self._timeout,
                backend=dist.Backend.GLOO if on_host else None,
            )
            if not on_host and self._rank in ranks and self._device.type == "cuda":
                # The first collective makes NCCL's communicator, which point-to-point messages of a few ranks cannot.
                dist.all_reduce(self._first_sum, group=group)
        return group

    def _destroy(self, group: dist.ProcessGroup) -> None:
        if dist.is_initialized() and isinstance(group, dist.ProcessGroup):  # on ranks outside it, it is a number
            dist.destroy_process_group(group)
