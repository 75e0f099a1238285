"""What training keeps between iterations: master parameters and optimizer states, in flat shards over all ranks."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from worker_agent.executor.collectives import Group, collective_device, rank_loss_named
from worker_agent.executor.model import drawn_weights
from worker_agent.executor.optimizer_states import STEP, StateForm, foreseen_forms, forms_of
from worker_agent.executor.parameters import Interval, Parameter, ParameterTable
from worker_agent.executor.shape import DecoderConfig

MakeOptimizer = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
"""Makes an optimizer of parameter groups."""

DECAYED, UNDECAYED = "decayed", "undecayed"
"""Names of the two parameter groups: matrices, and norms' weights, whose weight decay is 0."""


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

    Raises
    ------
    ValueError
        If the seed is negative.
    """

    @torch.inference_mode(mode=False)
    def __init__(
        self,
        config: DecoderConfig,
        *,
        make_optimizer: MakeOptimizer,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        group: Group = None,
    ) -> None:
        if seed < 0:
            raise ValueError(f"seed is {seed}; give 0 or more")
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
        # Adagrad makes its states when it is built, and cannot do without them.
        self._has_states_from_the_start = bool(self.optimizer.state)

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

    @torch.inference_mode(mode=False)
    def optimizer_shards(self) -> dict[str, Tensor]:
        """Return this rank's optimizer states as flat tensors, one value for each element of the shard.

        A state that is one number for a whole parameter, as Adam's ``step``, is given once for each element, so that
        any number of ranks can take it over. Zeros stand for the states of a parameter that has not been stepped, and
        of one that the optimizer was not given. The optimizer is left as it is.

        Returns
        -------
        dict
            By the optimizer's name of the state, each of shape (elements of the shard,); copies.

        Raises
        ------
        ValueError
            If a state is neither a number nor one number for each element.
        """
        shards: dict[str, Tensor] = {}
        for (begin, end), parameter, states in self._optimized():
            stepped = self.optimizer.state.get(parameter)
            for name, form in states.items():
                shard = shards.setdefault(
                    name, torch.zeros(self.masters.numel(), dtype=form.dtype, device=self.masters.device)
                )
                if stepped and name in stepped:
                    shard[begin:end] = stepped[name]
        return shards

    @torch.inference_mode(mode=False)
    def load_optimizer_shards(self, shards: Mapping[str, Tensor]) -> None:
        """Take over optimizer states as `optimizer_shards` gave them, on any number of ranks.

        A parameter that had not been stepped begins as the optimizer lets it begin.

        Raises
        ------
        ValueError
            If the states are not those of this optimizer, or not of this shard's size.
        """
        optimized = self._optimized()
        own = {name for _, _, states in optimized for name in states}
        if own != shards.keys():
            raise ValueError(
                f"states {sorted(shards)} were given but the optimizer has {sorted(own)}; take the optimizer that "
                "they come from"
            )
        for name, shard in shards.items():
            if shard.shape != self.masters.shape:
                raise ValueError(
                    f"state {name!r} has shape {tuple(shard.shape)} but this shard has {self.masters.numel()} elements"
                )
        any_stepped = any(bool(shard.any()) for shard in shards.values())
        for (begin, end), parameter, states in optimized:
            given = {name: shards[name][begin:end] for name in states}
            counted = given.get(STEP)
            stepped = any_stepped if counted is None else bool(counted.any())
            if begin == end:
                continue
            if not (stepped or self._has_states_from_the_start):
                self.optimizer.state.pop(parameter, None)
                continue
            kept = self.optimizer.state[parameter]
            kept.update({name: form.state_of(given[name]) for name, form in states.items()})

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

    def _optimized(self) -> list[tuple[Interval, nn.Parameter, Mapping[str, StateForm]]]:
        """Return the parameters that the optimizer was given, and the states that it keeps, or will keep, of each."""
        found: list[tuple[Interval, nn.Parameter, Mapping[str, StateForm]]] = []
        group_of = {id(one): group for group in self.optimizer.param_groups for one in group["params"]}
        foreseen: dict[int, Mapping[str, StateForm]] = {}
        for interval, parameter in self._views:
            group = group_of.get(id(parameter))
            if group is None:
                continue
            states = forms_of(self.optimizer.state.get(parameter, {}), parameter)
            if not states and id(group) not in foreseen:
                foreseen[id(group)] = foreseen_forms(self.optimizer, group, parameter)
            found.append((interval, parameter, states or foreseen[id(group)]))
        return found
