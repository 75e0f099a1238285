"""What a trainer asks: a cluster with its profiles, a batch and options."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Annotated, Self

from pydantic import Field, model_validator

from planner_client.contract.histogram import Histogram
from planner_client.contract.options import PlanOptions
from planner_client.contract.profile import Profile
from planner_client.contract.scalars import (
    MAX_ATOMIC_GROUPS,
    MAX_DEVICE_POOLS,
    MAX_GPUS,
    MAX_SEQUENCES_LISTED,
    MAX_SOURCES,
    MAX_STRATEGIES,
    Count,
    FewEntries,
    LengthTokens,
    NonNegativeInt,
    NumGpus,
    ProfileName,
    Sent,
    SourceName,
)
from planner_client.contract.strategy import OptimizerLayout, ReplicaGroup
from planner_client.contract.wording import first_few

ListedLengths = Annotated[list[LengthTokens], Field(max_length=MAX_SEQUENCES_LISTED, fail_fast=True)]
NodeRanks = Annotated[
    list[Annotated[int, Field(ge=0, lt=MAX_GPUS, strict=True)]], Field(min_length=1, max_length=MAX_GPUS)
]
StrategyGroups = Annotated[list[ReplicaGroup], Field(min_length=1, max_length=1024)]

DEFAULT_SOURCE = "local"
"""Name of the one source of a request whose lengths come as a plain list."""


class DevicePool(Sent):
    """GPUs of one type.

    Attributes
    ----------
    profile
        The profile of the model on them, by name or whole.
    num_gpus
        How many there are.
    nodes
        Which ranks these are, node by node; a tensor-parallel group stays inside one where that is possible. Nodes may
        be of unlike sizes. Without, ranks are numbered type by type, and nodes are filled one after another.
    """

    profile: ProfileName | Profile
    num_gpus: NumGpus
    nodes: Annotated[list[NodeRanks], Field(min_length=1, max_length=MAX_GPUS)] | None = None

    @model_validator(mode="after")
    def _nodes_have_its_gpus(self) -> Self:
        if self.nodes is not None and (num_ranks := sum(map(len, self.nodes))) != self.num_gpus:
            raise ValueError(
                f"nodes has {num_ranks} ranks but num_gpus is {self.num_gpus}; name every rank of this type once"
            )
        return self

    @property
    def profile_name(self) -> str:
        """Name of the profile, however it was given."""
        return self.profile if isinstance(self.profile, str) else self.profile.name


class AtomicGroup(Sent):
    """Some sequences of one source that must share a micro-batch, such as preference pairs.

    Samples with a shared prefix are such groups, too. Their sequences are part of the batch and stand in its
    ``lengths`` or ``histograms`` like all others.

    Attributes
    ----------
    lengths
        Lengths of the sequences of one group (tokens).
    count
        How many such groups there are.
    """

    lengths: Annotated[list[LengthTokens], Field(min_length=2, max_length=1024)]
    count: Count = 1


AtomicGroups = Annotated[
    dict[SourceName, Annotated[list[AtomicGroup], Field(min_length=1, max_length=MAX_ATOMIC_GROUPS)]], FewEntries
]


class Cluster(Sent):
    """The GPUs to plan for, which strategies they may form, and what constrains plans.

    The GPUs are given either as ``profile`` and ``num_gpus``, or as ``devices``.

    Attributes
    ----------
    profile
        The profile of the model on the GPUs, by name or whole.
    num_gpus
        How many GPUs there are.
    devices
        The GPUs by type where there are several; ranks are numbered type by type in this order, unless all of them
        name theirs.
    optimizer_layout
        The fixed sharding of the optimizer states, which memory limits depend on; chosen if not given.
    strategies
        Candidates, of which the best is taken; with none, all that the cluster can form are searched.
    options
        What constrains the plan and the search for it.
    """

    profile: ProfileName | Profile | None = None
    num_gpus: NumGpus | None = None
    devices: Annotated[list[DevicePool], Field(min_length=1, max_length=MAX_DEVICE_POOLS)] | None = None
    optimizer_layout: OptimizerLayout | None = None
    strategies: Annotated[list[StrategyGroups], Field(max_length=MAX_STRATEGIES)] = Field(default_factory=list)
    options: PlanOptions = PlanOptions()

    @model_validator(mode="after")
    def _one_cluster(self) -> Self:
        if self.devices is not None:
            if self.profile is not None or self.num_gpus is not None:
                raise ValueError("give the cluster as either profile and num_gpus or devices, not both")
        elif self.profile is None or self.num_gpus is None:
            raise ValueError("give the cluster as profile and num_gpus, or as devices where GPUs are of several types")
        if self.total_gpus > MAX_GPUS:
            raise ValueError(f"the cluster has {self.total_gpus} GPUs; plan for at most {MAX_GPUS}")
        _refuse_unlike_numbering(self.pools)
        return self

    @property
    def pools(self) -> tuple[DevicePool, ...]:
        """The cluster's GPUs by type, however they were given."""
        if self.devices is not None:
            return tuple(self.devices)
        if self.profile is None or self.num_gpus is None:
            return ()
        return (DevicePool.model_construct(profile=self.profile, num_gpus=self.num_gpus, nodes=None),)

    def ranks_of_pools(self) -> list[frozenset[int]]:
        """Return the ranks of each of the cluster's pools."""
        found: list[frozenset[int]] = []
        first_rank = 0
        for pool in self.pools:
            counted = range(first_rank, first_rank + pool.num_gpus)
            found.append(frozenset(counted if pool.nodes is None else chain.from_iterable(pool.nodes)))
            first_rank += pool.num_gpus
        return found

    @property
    def total_gpus(self) -> int:
        """GPUs of all types together."""
        return sum(pool.num_gpus for pool in self.pools)

    @property
    def profile_names(self) -> str:
        """Names of the profiles, joined by ``+``, as plans give them."""
        return "+".join(pool.profile_name for pool in self.pools)

    @property
    def profile_version(self) -> int | None:
        """Version of what was learned of these profiles; None if they are as registered."""
        return None


class PlanRequest(Cluster):
    """One iteration to plan.

    The cluster is given as in every `Cluster`; the batch either as ``lengths`` or as ``histograms``.

    Attributes
    ----------
    iteration
        Number of the iteration; part of the plan and its digest.
    lengths
        Lengths of all sequences in the order held (tokens), as a list or as lists by source.
    histograms
        How many sequences of each length there are, by source.
    atomic_groups
        Sequences that must share a micro-batch, by source.
    """

    iteration: NonNegativeInt | None = None
    lengths: (
        ListedLengths | Annotated[dict[SourceName, ListedLengths], Field(max_length=MAX_SOURCES), FewEntries] | None
    ) = None
    histograms: Annotated[dict[SourceName, Histogram], Field(max_length=MAX_SOURCES), FewEntries] | None = None
    atomic_groups: AtomicGroups | None = None

    @model_validator(mode="after")
    def _one_batch(self) -> Self:
        if (self.lengths is None) == (self.histograms is None):
            raise ValueError("give the batch as either lengths or histograms, not both and not neither")
        needs_order = self.options.method in {"plain", "off", "next-fit"}
        if self.histograms is not None and needs_order:
            raise ValueError(
                f"method {self.options.method} needs the order in which sequences arrive, which histograms do not "
                "hold; send lengths"
            )
        return self

    @model_validator(mode="after")
    def _groups_are_held(self) -> Self:
        if self.atomic_groups is None:
            return self
        if self.options.method != "hydraulis":
            raise ValueError(f"method {self.options.method} does not honour atomic_groups; use method hydraulis")
        histograms = self.histograms_by_source()
        for source, groups in self.atomic_groups.items():
            if source not in histograms:
                raise ValueError(
                    f"atomic_groups names source {source} but the batch has no sequences of that source; "
                    f"its sources are {first_few(sorted(histograms)) or 'none'}"
                )
            needed: dict[int, int] = {}
            for group in groups:
                for length in group.lengths:
                    needed[length] = needed.get(length, 0) + group.count
            histogram = histograms[source]
            held = dict(zip(histogram.lengths, histogram.counts, strict=True))
            for length, count in sorted(needed.items()):
                if count > held.get(length, 0):
                    raise ValueError(
                        f"atomic_groups of source {source} take {count} sequences of {length} tokens but it has "
                        f"{held.get(length, 0)}; the sequences of groups are part of the batch"
                    )
        return self

    @property
    def num_sequences(self) -> int:
        """Sequences of all sources together."""
        listed = self.lengths_by_source()
        if listed is not None:
            return sum(map(len, listed.values()))
        return sum(histogram.num_sequences for histogram in (self.histograms or {}).values())

    def lengths_by_source(self) -> dict[str, list[int]] | None:
        """Return the listed lengths by source, or None if the batch came as histograms."""
        if isinstance(self.lengths, list):
            return {DEFAULT_SOURCE: self.lengths}
        return self.lengths

    def histograms_by_source(self) -> dict[str, Histogram]:
        """Return the batch as one histogram a source, however it was given."""
        listed = self.lengths_by_source()
        if listed is None:
            return dict(self.histograms or {})
        return {source: Histogram.of(lengths) for source, lengths in listed.items()}


def _refuse_unlike_numbering(pools: Sequence[DevicePool]) -> None:
    """Refuse clusters whose pools do not have every rank between them once."""
    given = [pool for pool in pools if pool.nodes is not None]
    if not given:
        return
    if len(given) < len(pools):
        raise ValueError(f"{len(given)} of {len(pools)} devices name their ranks in nodes; let all of them do, or none")
    seen = [rank for pool in given for node in pool.nodes or () for rank in node]
    if sorted(seen) != list(range(len(seen))):
        twice = next((rank for rank, after in pairwise(sorted(seen)) if rank == after), None)
        wrong = f"rank {max(seen)} of {len(seen)} GPUs" if twice is None else f"rank {twice} twice"
        raise ValueError(f"the nodes of devices name {wrong}; name each rank from 0 to {len(seen) - 1} once")
