"""Compares plans and exchanges sequences of iterations to come, in the background of the one that computes.

Tokens lie in the memory of the host, so a gloo group of their own carries them, beside whatever the devices exchange.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

from planner_client.contract import Plan
from worker_agent.executor.agree import agree_on_plan
from worker_agent.executor.exchange import HeldSequences
from worker_agent.executor.faults import IterationFailed
from worker_agent.executor.preparation import PreparedIteration, Preparer


class PreparationAhead:
    """One rank's preparations of iterations to come, one after the other in a thread of their own.

    Parameters
    ----------
    preparer
        Does what a rank can do alone.
    terms
        What must be the same on all ranks; see `agree_on_plan`.
    make_group
        Makes the process group, when the first preparation begins; a collective that every rank calls.
    """

    def __init__(
        self, preparer: Preparer, terms: Mapping[str, object], make_group: Callable[[], dist.ProcessGroup]
    ) -> None:
        self._preparer = preparer
        self._terms = dict(terms)
        self._make_group = make_group
        self._group: dist.ProcessGroup | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prepare-iterations")
        self._begun: dict[str, Future[tuple[PreparedIteration, Tensor]]] = {}

    def begin(self, plan: Plan, sequences: HeldSequences | Sequence[Tensor]) -> None:
        """Begin to prepare an iteration and return at once; every rank calls it for the same plans in one order."""
        if self._group is None:
            self._group = self._make_group()
        self._begun[plan.expected_digest()] = self._thread.submit(self._prepare, plan, sequences, self._group)

    def take(self, plan: Plan) -> tuple[PreparedIteration, Tensor] | None:
        """Return what was prepared for a plan, and the tokens this rank received; None if nothing was begun for it.

        Raises
        ------
        ExecutionFault
            The fault that the preparation ended in, on every rank.
        """
        begun = self._begun.pop(plan.expected_digest(), None) if isinstance(plan, Plan) else None
        return None if begun is None else begun.result()

    def close(self) -> None:
        """Wait for what is under way, which ends within the group's timeout, and drop what was not begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._begun.clear()

    def _prepare(
        self, plan: Plan, sequences: HeldSequences | Sequence[Tensor], group: dist.ProcessGroup
    ) -> tuple[PreparedIteration, Tensor]:
        prepared: PreparedIteration | None = None
        fault: Exception | None = None
        with record_function("prepare the next iteration"):
            try:
                prepared = self._preparer.prepare(plan, sequences)
            except Exception as caught:  # noqa: BLE001 - whatever it is, the ranks that wait must hear of it
                fault = caught
            agree_on_plan(plan, self._terms, fault, group)
            if prepared is None:
                raise IterationFailed("this rank could not prepare the iteration", {}) from fault
            return prepared, prepared.exchange.exchange_tokens(group)
