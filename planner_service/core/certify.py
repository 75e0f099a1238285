"""How good any strategy of a cluster could be: a branch-and-bound over the numbers of replicas of each kind.

A node limits those numbers; a linear program at a probed time T either proves, by its duals, that no strategy within
the limits ends in T, or uses fractional numbers of replicas, on one of which the node branches. When every node of the
tree is closed, T bounds all strategies. Its fractional solutions also show which strategies are worth trying.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from planner_service.core.bounds import (
    FEW_SINGLE_CLASSES,
    Fleet,
    Weights,
    bound_with_weights,
    capacity_classes,
)
from planner_service.core.cost import least_replica_ms
from planner_service.core.cpsat import Fractional, FractionalPlacement
from planner_service.core.length_table import LengthTable

COLUMNS = 24
"""Groups of neighbouring lengths in the programs; more gain nothing on real batches and take longer."""

WHOLE = 1e-4
"""A number of replicas this close to a whole one counts as one."""

CLOSED = 1e-4
"""A proof this close to the probed time counts; the bound claimed is what is proven, not the probed time."""


@dataclass
class Certifier:
    """Raises the bound over all strategies of a fleet.

    Attributes
    ----------
    fleet
        The cluster, and what limits its strategies.
    table
        Costs of the batch on the fleet's kinds; not empty.
    bound_ms
        What is proven so far.
    may_go_on
        Asked between linear programs; False ends a probe without a proof.
    tried
        Fractional placements that linear programs found, newest last.
    num_programs
        Linear programs solved.
    """

    fleet: Fleet
    table: LengthTable
    bound_ms: float
    may_go_on: Callable[[], bool]
    tried: list[Fractional] = field(default_factory=list)
    num_programs: int = 0

    def relax(self, upper_ms: float, rounds: int) -> None:
        """Raise the bound without branching: bisect the time between the bound and one that suffices.

        Parameters
        ----------
        upper_ms
            A time that suffices, or that a proof of would be good enough.
        rounds
            Most linear programs to solve.
        """
        low, high = self.bound_ms, upper_ms
        probe = high
        for _ in range(rounds):
            if high <= low * (1 + CLOSED) or not self.may_go_on():
                return
            proven = self._root(probe)
            if proven is None:
                high = probe
            else:
                self.bound_ms = max(self.bound_ms, proven)
                low = max(low, proven)
                if probe == high:
                    return
            probe = 0.5 * (low + high)

    def prove(self, time_ms: float, most_programs: int) -> bool:
        """Try to close the whole tree at a time, within so many linear programs; raise the bound if that succeeds."""
        allowed = self.num_programs + most_programs
        probe = _Probe(self, time_ms)
        proven, nodes = time_ms, [self.fleet]
        while nodes:
            if self.num_programs >= allowed or not self.may_go_on():
                return False
            node = nodes.pop()
            bound, replicas = probe.examine(node)
            if bound is not None:
                proven = min(proven, bound)
                continue
            children = list(branches(node, replicas)) if replicas is not None else []
            if not children:
                return False
            nodes += children
        self.bound_ms = max(self.bound_ms, proven)
        return True

    def _root(self, time_ms: float) -> float | None:
        return _Probe(self, time_ms).examine(self.fleet)[0]


class _Probe:
    """Examines nodes at one time, by one linear program."""

    def __init__(self, certifier: Certifier, time_ms: float) -> None:
        self._certifier = certifier
        self._table = certifier.table
        self._time_ms = time_ms
        self._classes = capacity_classes(certifier.fleet, certifier.table, time_ms, FEW_SINGLE_CLASSES)
        self._program: FractionalPlacement | None = None

    def examine(self, node: Fleet) -> tuple[float | None, tuple[float, ...] | None]:
        """Bound a node at about the probed time if that is proven, else tell which replicas speak against it."""
        present = _present(node)
        if not present:
            return math.inf, None
        table = self._table.of_rows(present)
        alone = self._single_replica_ms(node, present)
        floor_ms = max(table.floor_ms, alone)
        if floor_ms >= self._time_ms * (1 - CLOSED):
            return floor_ms, None
        found = self._solved(node, present)
        if found is None:
            return None, None
        if found.scale > 1 + 1e-9:
            fleet, weights = _narrowed(node, present, found.weights)
            proven = bound_with_weights(fleet, table, weights)
            if proven >= self._time_ms * (1 - CLOSED):
                return proven, None
        self._certifier.tried.append(found)
        return None, found.replicas

    def _solved(self, node: Fleet, present: list[int]) -> Fractional | None:
        if self._program is None:
            self._program = FractionalPlacement(
                self._certifier.fleet, self._table, self._classes, self._time_ms, COLUMNS
            )
        self._certifier.num_programs += 1
        most = tuple(node.most[k] if k in present else 0 for k in range(len(node.kinds)))
        return self._program.solve(node.fewest, most)

    def _single_replica_ms(self, node: Fleet, present: list[int]) -> float:
        """Bound a node that leaves room for one replica only, which then holds the whole batch."""
        if len(present) > 1:
            return 0.0
        kind, most = node.kinds[present[0]], node.most[present[0]]
        if min(node.gpus_left()[kind.device] // kind.num_ranks + node.fewest[present[0]], most or 2) != 1:
            return 0.0
        works = self._table.work_ms[present[0]]
        tokens = math.floor(float(self._table.lengths @ self._table.counts) * (1 - 1e-9))
        return least_replica_ms(kind, float(works @ self._table.counts), tokens, float(works[-1])) * (1 - 1e-9)


def _present(node: Fleet) -> list[int]:
    """Kinds of which the node has replicas or leaves room for one; none if it asks for more GPUs than there are."""
    left = node.gpus_left()
    if min(left.values()) < 0:
        return []
    return [
        k
        for k, kind in enumerate(node.kinds)
        if node.most[k] != 0 and (node.fewest[k] or kind.num_ranks <= left[kind.device])
    ]


def _narrowed(node: Fleet, present: list[int], weights: Weights) -> tuple[Fleet, Weights]:
    """Leave out the kinds of which there are no replicas: nothing may be placed on them."""
    number = {k: position for position, k in enumerate(present)}
    fleet = Fleet(
        tuple(node.kinds[k] for k in present),
        tuple(node.fewest[k] for k in present),
        tuple(node.most[k] for k in present),
        node.pools,
    )
    kept = [index for index, entry in enumerate(weights.classes) if entry.group in number]
    return fleet, Weights(
        tuple(replace(weights.classes[index], group=number[weights.classes[index].group]) for index in kept),
        tuple(weights.work[index] for index in kept),
        tuple(weights.token[index] for index in kept),
    )


def branches(node: Fleet, replicas: tuple[float, ...]) -> Iterator[Fleet]:
    """Split a node at the fractional number of replicas that concerns most GPUs; nothing if all are whole.

    Together the two parts hold every strategy that the node holds.
    """
    split, most_gpus = -1, 0.0
    for k, value in enumerate(replicas):
        most = node.most[k]
        if value <= node.fewest[k] or (most is not None and value >= most):
            continue
        part = min(value - math.floor(value), math.ceil(value) - value)
        gpus = node.kinds[k].num_ranks * part
        if part > WHOLE and gpus > most_gpus:
            split, most_gpus = k, gpus
    if split < 0:
        return
    below = math.floor(replicas[split])
    yield replace(node, most=(*node.most[:split], below, *node.most[split + 1 :]))
    yield replace(node, fewest=(*node.fewest[:split], below + 1, *node.fewest[split + 1 :]))
