"""Compares plans and exchanges sequences of iterations to come, in the background of the one that computes.

Tokens lie in the memory of the host, so a gloo group of their own carries them, beside whatever the devices exchange.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from planner_client.contract import Plan
from planner_client.groups import Groups
from worker_agent.executor.agree import agree_on_plan, digest_of
from worker_agent.executor.carried import CarriedFault
from worker_agent.executor.collectives import RowExchange
from worker_agent.executor.exchange import HeldGroups, HeldSequences
from worker_agent.executor.faults import IterationFailed
from worker_agent.executor.preparation import PreparedIteration, Preparer

Preparation = tuple[PreparedIteration, Tensor]
"""A rank's part of an iteration that all ranks agreed on, and the tokens it received for it, in order of arrival."""


class PreparationAhead:
    """One rank's preparations of iterations to come, one after the other in a thread of their own.

    Parameters
    ----------
    preparer
        Does what a rank can do alone.
    terms
        What must be the same on all ranks; see `agree_on_plan`.
    make_group
        Makes the process group, when the first preparation begins; a collective that every rank calls. What goes wrong
        in it on this rank is told to all by the first preparation.
    """

    def __init__(
        self,
        preparer: Preparer,
        terms: Mapping[str, object],
        make_group: Callable[[CarriedFault], dist.ProcessGroup],
    ) -> None:
        self._preparer = preparer
        self._terms = dict(terms)
        self._make_group = make_group
        self._group: dist.ProcessGroup | None = None
        self._making = CarriedFault(torch.device("cpu"))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prepare-iterations")
        self._begun: deque[tuple[str, Future[Preparation]]] = deque()

    def begin(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor],
        groups: HeldGroups | Groups | None = None,
    ) -> None:
        """Begin to prepare an iteration and return at once; every rank calls it for the same plans in one order."""
        if self._group is None:
            self._group = self._make_group(self._making)
        begun = self._thread.submit(self._prepare, plan, sequences, groups, self._group)
        self._begun.append((digest_of(plan), begun))

    def take(self, plan: Plan) -> Preparation | None:
        """Return the first that was begun for a plan and not taken yet; None if there is none.

        Plans of several iterations may be equal, byte for byte. A plan that was not prepared here may have been on
        other ranks, in place of this rank's own: that ended in a fault on all of them, which is raised here too.

        Raises
        ------
        ExecutionFault
            The fault that a preparation ended in, on every rank.
        """
        digest = digest_of(plan)
        own = next((number for number, (other, _) in enumerate(self._begun) if other == digest), None)
        if own is None:
            own = next((number for number, (_, begun) in enumerate(self._begun) if begun.exception()), None)
        if own is None:
            return None
        _, begun = self._begun[own]
        del self._begun[own]
        return begun.result()

    def close(self) -> None:
        """Wait for what is under way, which ends within the group's timeout, and drop what was not begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._begun.clear()

    def _prepare(
        self,
        plan: Plan,
        sequences: HeldSequences | Sequence[Tensor],
        groups: HeldGroups | Groups | None,
        group: dist.ProcessGroup,
    ) -> Preparation:
        ready: tuple[PreparedIteration, RowExchange] | None = None
        fault: Exception | None = self._making.fault
        with record_function("prepare the next iteration"):
            try:
                prepared = self._preparer.prepare(plan, sequences, groups)
                ready = prepared, prepared.exchange.reserve_tokens(group)
            except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
                fault = caught
            agree_on_plan(plan, self._terms, fault, group)
            if ready is None:
                raise IterationFailed("this rank could not prepare the iteration", {}) from fault
            prepared, tokens = ready
            return prepared, tokens.run("exchanging sequences ahead")
