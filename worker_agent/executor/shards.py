"""What training keeps between iterations: master parameters and optimizer states, in flat shards over all ranks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from worker_agent.executor.collectives import Group, collective_device, rank_loss_named
from worker_agent.executor.model import drawn_weights
from worker_agent.executor.parameters import Interval, Parameter, ParameterTable
from worker_agent.executor.shape import DecoderConfig

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer of parameter groups."""

DECAYED, UNDECAYED = "decayed", "undecayed"
"""Names of the two parameter groups: matrices, and norms' weights, whose weight decay is 0."""

_STEP = "step"


class ShardedState:
    """One rank's shard of a decoder's training state; the layout that computes plays no part in it.

    All trained weights lie in one flat order (`ParameterTable`), of which every rank keeps one interval, together with
    its gradients and optimizer states. Every rank of the group builds one.

    Parameters
    ----------
    config
        The decoder's shape.
    make_optimizer
        Given parameter groups (``params``, ``name``, and a ``weight_decay`` of 0 for norms), makes the optimizer. Each
        of its parameters is the flat interval of one of the decoder's parameters that lies in the shard, so that only
        optimizers that treat every element by itself (SGD, Adam, AdamW, ...) train as they would on whole parameters.
    seed
        Of the first weights, which are those of ``Decoder(config, seed=seed)``.
    dtype
        Of masters, gradients and optimizer states.
    group
        The process group; by default all ranks.

    Attributes
    ----------
    table
        The flat order.
    interval
        First element of the shard in it, and the one after its last.
    masters, gradients
        The shard's weights and gradients, shape (elements of the shard,).
    optimizer
        Steps on views of ``masters``; works with ``torch.optim.lr_scheduler``.
    """

    def __init__(
        self,
        config: DecoderConfig,
        *,
        make_optimizer: MakeOptimizer,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        group: Group = None,
    ) -> None:
        self.table = ParameterTable.of(config)
        self._group = group
        self.rank, self.world_size = dist.get_rank(group), dist.get_world_size(group)
        self.interval: Interval = self.table.shard(self.rank, self.world_size)
        begin, end = self.interval
        self.masters = torch.empty(end - begin, dtype=dtype, device=collective_device(group))
        self.gradients = torch.zeros_like(self.masters)
        self.load(drawn_weights(config, seed))
        self._views: list[tuple[Interval, nn.Parameter]] = []
        self.optimizer = make_optimizer(self._parameter_groups())

    @property
    def config(self) -> DecoderConfig:
        """The decoder's shape."""
        return self.table.config

    def load(self, full: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> None:
        """Take over weights; involves no other rank.

        Parameters
        ----------
        full
            Every parameter of the decoder by name, whole; only this rank's elements are kept.

        Raises
        ------
        ValueError
            If a parameter is missing, unknown or of another shape.
        """
        missing = {entry.name for entry in self.table.entries}
        for name, weights in full.items() if isinstance(full, Mapping) else full:
            if name not in missing:
                raise ValueError(
                    f"the decoder has no parameter {name!r} left to load; give each of its parameters once"
                )
            missing.remove(name)
            self._take(self.table.entry(name), weights)
        if missing:
            raise ValueError(f"{len(missing)} parameters are missing, {min(missing)!r} among them; give them all")

    def gathered(self) -> dict[str, Tensor]:
        """Return all weights by the decoder's names, whole, on every rank; a collective that every rank calls.

        Raises
        ------
        RankLost
            If a rank died or did not arrive within the group's timeout.
        """
        return self.named(self.gather_flat(self.masters))

    def gather_flat(self, local: Tensor) -> Tensor:
        """Return a flat tensor whose shards the ranks hold, whole, on every rank; a collective that every rank calls.

        Parameters
        ----------
        local
            This rank's shard, shape (elements of the shard,).
        """
        size = -(-self.table.num_elements // self.world_size)
        padded = torch.zeros(size, dtype=local.dtype, device=local.device)
        padded[: local.numel()] = local
        whole = torch.empty(size * self.world_size, dtype=local.dtype, device=local.device)
        with rank_loss_named("gathering shards"):
            dist.all_gather(list(torch.split(whole, size)), padded, group=self._group)
        return whole[: self.table.num_elements]

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Cut a flat tensor of all elements into the decoder's parameters, as views by name."""
        return {entry.name: flat[entry.begin : entry.end].view(entry.shape) for entry in self.table.entries}

    def optimizer_shards(self) -> dict[str, Tensor]:
        """Return this rank's optimizer states as flat tensors, one value for each element of the shard.

        A state that is one number for a whole parameter, as Adam's ``step``, is given once for each element, so that
        any number of ranks can take it over. Before the first step the states are those the optimizer begins with.

        Returns
        -------
        dict
            By the optimizer's name of the state, each of shape (elements of the shard,); copies.
        """
        if not self.optimizer.state:
            self._begin_states()
        shards: dict[str, Tensor] = {}
        for (begin, end), parameter in self._views:
            for name, value in self.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    shard = shards.setdefault(
                        name, torch.zeros(self.masters.numel(), dtype=value.dtype, device=self.masters.device)
                    )
                    shard[begin:end] = value.flatten()
        return shards

    def load_optimizer_shards(self, shards: Mapping[str, Tensor]) -> None:
        """Take over optimizer states as `optimizer_shards` gave them, on any number of ranks.

        Raises
        ------
        ValueError
            If the states are not those of this optimizer, or not of this shard's size.
        """
        own = self.optimizer_shards()
        if own.keys() != shards.keys():
            raise ValueError(
                f"states {sorted(shards)} were given but the optimizer has {sorted(own)}; take the optimizer that "
                "they come from"
            )
        for name, shard in shards.items():
            if shard.shape != self.masters.shape:
                raise ValueError(
                    f"state {name!r} has shape {tuple(shard.shape)} but this shard has {self.masters.numel()} elements"
                )
        for (begin, end), parameter in self._views:
            state = self.optimizer.state[parameter]
            for name, shard in shards.items():
                if state[name].dim() == 0:
                    state[name].copy_(shard[begin] if end > begin else torch.zeros(()))
                else:
                    state[name].copy_(shard[begin:end])

    def zero_gradients(self) -> None:
        """Set the shard's gradients to zero and make every optimizer parameter's ``grad`` a view of them again."""
        self.gradients.zero_()
        for (begin, end), parameter in self._views:
            parameter.grad = self.gradients[begin:end]

    def _take(self, entry: Parameter, weights: Tensor) -> None:
        if tuple(weights.shape) != entry.shape:
            raise ValueError(f"{entry.name} has shape {tuple(weights.shape)} but this decoder's has {entry.shape}")
        begin, end = max(entry.begin, self.interval[0]), min(entry.end, self.interval[1])
        if begin < end:
            kept = weights.reshape(-1)[begin - entry.begin : end - entry.begin]
            self.masters[begin - self.interval[0] : end - self.interval[0]].copy_(kept)

    def _parameter_groups(self) -> list[dict[str, Any]]:
        """Make one optimizer parameter for each interval of a decoder's parameter in the shard.

        A shard without any gets an empty one, so that the optimizers of all ranks have the same states.
        """
        groups: dict[bool, list[nn.Parameter]] = {True: [], False: []}
        offset = self.interval[0]
        for entry in self.table.entries:
            begin, end = max(entry.begin, offset) - offset, min(entry.end, self.interval[1]) - offset
            if begin < end:
                self._views.append(((begin, end), nn.Parameter(self.masters[begin:end])))
                groups[entry.is_matrix].append(self._views[-1][1])
        if not self._views:
            self._views.append(((0, 0), nn.Parameter(self.masters[:0])))
            groups[True].append(self._views[-1][1])
        self.zero_gradients()
        return [
            {"params": groups[True], "name": DECAYED},
            {"params": groups[False], "name": UNDECAYED, "weight_decay": 0.0},
        ]

    def _begin_states(self) -> None:
        """Let the optimizer set its states up by a step that changes nothing: no gradient, no rate."""
        rates = [group["lr"] for group in self.optimizer.param_groups]
        kept, gradients = self.masters.clone(), self.gradients.clone()
        self.zero_gradients()
        for group in self.optimizer.param_groups:
            group["lr"] = torch.zeros_like(group["lr"]) if isinstance(group["lr"], Tensor) else 0.0
        # Not through optimizer.step, which schedulers count.
        type(self.optimizer).step(self.optimizer)
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        for state in self.optimizer.state.values():
            if _STEP in state:
                state[_STEP] = torch.zeros_like(state[_STEP]) if isinstance(state[_STEP], Tensor) else 0
        self.masters.copy_(kept)
        self.gradients.copy_(gradients)
