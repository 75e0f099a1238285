"""What a rank asks of the agent of its node."""

import logging
import threading
import time

from planner_client.asking import Batches
from planner_client.contract import FaultCode, IterationTimings, JobSpec, Plan, PlanRequest, request_for
from planner_client.errors import HydraulisError, RequestRefused
from worker_agent.daemon.client import AgentClient
from worker_agent.daemon.wire import AgentCode, RankBatch, RankTimings

LOOK_S = 0.5
"""How often a rank looks whether its agent still knows what it handed in."""

TRY_S = 5.0

_log = logging.getLogger("worker_agent.trainer")


class RankLink:
    """One rank's line to its agent, as a way of asking (`planner_client.asking.Asking`). Threads may share one.

    Parameters
    ----------
    agent
        Talks to the agent.
    spec
        The job, whose sources are nodes.
    rank, ranks
        This rank, and all ranks of its node.
    """

    def __init__(self, agent: AgentClient, spec: JobSpec, rank: int, ranks: list[int]) -> None:
        self._agent = agent
        self._spec = spec
        self._rank = rank
        self._ranks = ranks
        self._is_registered = threading.Event()
        self._held: dict[int, RankBatch] = {}
        self._lock = threading.Lock()

    def hold(self, iteration: int, lengths: list[int]) -> None:
        """Remember what this rank holds of an iteration (tokens), and forget iterations long before."""
        with self._lock:
            self._held[iteration] = RankBatch(ranks=self._ranks, lengths=lengths)

    def let_go(self, iteration: int) -> None:
        """Forget what was held of an iteration and of those before."""
        with self._lock:
            self._held = {number: batch for number, batch in self._held.items() if number > iteration}

    def forget(self) -> None:
        """Forget all that is held."""
        with self._lock:
            self._held.clear()

    def held(self) -> dict[int, RankBatch]:
        """Return what is remembered."""
        with self._lock:
            return dict(self._held)

    def request(self, iteration: int, batches: Batches) -> PlanRequest:
        """Return what is asked for one iteration (see `Asking`)."""
        return request_for(self._spec, iteration, batches)

    def ask(self, request: PlanRequest, batches: Batches, timeout_s: float) -> Plan:  # noqa: ARG002 - nodes report
        """Hand in what this rank holds, and wait for the plan (see `Asking`)."""
        ends_at = time.monotonic() + timeout_s
        iteration = request.iteration
        batch = None if iteration is None else self.held().get(iteration)
        if iteration is None or batch is None:
            raise HydraulisError(f"iteration {iteration} was let go before it was asked for")
        self._register(ends_at)
        try:
            found = self._agent.plan(
                self._spec.name, iteration, self._rank, batch, timeout_s=ends_at - time.monotonic()
            )
        except RequestRefused as refused:
            if refused.problem.code != FaultCode.UNKNOWN_JOB:
                raise
            self._is_registered.clear()
            self._register(ends_at)
            found = self._agent.plan(
                self._spec.name, iteration, self._rank, batch, timeout_s=ends_at - time.monotonic()
            )
        return found.plan

    def report_timings(self, timings: IterationTimings, timeout_s: float) -> bool:
        """Give measured times to the agent, which sends them on (see `Asking`)."""
        told = RankTimings(
            digest=timings.digest, ranks=[self._rank], replicas=timings.replicas, solved_by=timings.solved_by
        )
        self._agent.give_timings(self._spec.name, timings.iteration, self._rank, told, timeout_s=timeout_s)
        return True

    def ensure_handed_in(self, iteration: int, batch: RankBatch, *, is_new: bool) -> None:
        """Hand in what this rank holds, unless the agent knows it.

        Raises
        ------
        HydraulisError
            If that could not be done.
        """
        self._register(time.monotonic() + TRY_S)
        name, rank = self._spec.name, self._rank
        if not is_new:
            try:
                told = self._agent.iteration(name, iteration, rank, timeout_s=TRY_S)
                if told.code not in {FaultCode.UNKNOWN_JOB, AgentCode.RANKS_MISSING}:
                    return
            except RequestRefused as refused:
                if refused.problem.code != AgentCode.NOT_HANDED_IN:
                    raise
        self._agent.hand_in(name, iteration, rank, batch, timeout_s=TRY_S)

    def _register(self, ends_at: float) -> None:
        if not self._is_registered.is_set():
            self._agent.register(self._spec, timeout_s=ends_at - time.monotonic())
            self._is_registered.set()


class HandIns:
    """Keeps the agent told of what a rank holds that does not ask for plans itself, until they were taken.

    Parameters
    ----------
    link
        The rank's line to its agent.
    """

    def __init__(self, link: RankLink) -> None:
        self._link = link
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="agent-hand-ins", daemon=True)
        self._thread.start()

    def announce(self, iteration: int, lengths: list[int]) -> None:
        """Begin to hand in what the rank holds of an iteration (tokens); returns at once."""
        self._link.hold(iteration, lengths)
        with self._changed:
            self._changed.notify()

    def close(self) -> None:
        """Stop; waits for a request that is under way."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(TRY_S)

    def _run(self) -> None:
        known: dict[int, RankBatch] = {}
        while True:
            held = self._link.held()
            for iteration, batch in sorted(held.items()):
                if self._is_closed:
                    return
                try:
                    self._link.ensure_handed_in(iteration, batch, is_new=known.get(iteration) is not batch)
                    known[iteration] = batch
                except Exception as failure:  # noqa: BLE001 - the thread goes on, whatever one request met
                    _log.debug("iteration %d could not be handed in: %s", iteration, failure)
            known = {iteration: batch for iteration, batch in known.items() if iteration in held}
            with self._changed:
                if self._is_closed:
                    return
                if self._link.held().keys() <= held.keys():
                    self._changed.wait(LOOK_S)
