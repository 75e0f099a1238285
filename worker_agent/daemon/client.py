"""What a rank uses to talk to the agent of its node. Brings no torch; threads may share one."""

import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from planner_client.address import checked_address
from planner_client.calls import ACCEPTED
from planner_client.client import PlannerClient
from planner_client.contract import Job, JobSpec, Problem
from planner_client.errors import BadAnswer, DeadlineExceeded, PlannerUnavailable, RequestRefused
from planner_client.flow import Answer, Failure, Flow, Query, RetryPolicy, call, read
from planner_client.transport import DeadlineTransport
from worker_agent.daemon.wire import AgentCode, AgentStatus, IterationOfNode, PlanOfRank, RankBatch, RankTimings

POLL_S = 10.0
POLL_MARGIN_S = 5.0
TIMEOUT_S = 10.0
UNIX = "unix:"

PATIENCE = RetryPolicy(max_attempts=12, first_pause_s=0.05, max_pause_s=0.5)
"""An agent that is restarted is back within seconds."""

_IN_VAIN = frozenset({AgentCode.PLANNER_AWAY, AgentCode.RANKS_MISSING})


class AgentClient:
    """Talks to an agent; every method returns or raises within its ``timeout_s``.

    Parameters
    ----------
    address
        ``unix:/path/of/agent.sock``, a path that begins with ``/``, or ``http://127.0.0.1:8471``.
    policy
        When to try again.

    Raises
    ------
    ValueError
        If the address cannot be read.
    planner_client.errors.HydraulisError
        From every method, as from `planner_client.client.PlannerClient`.
    """

    def __init__(self, address: str, *, policy: RetryPolicy = PATIENCE) -> None:
        self.address = checked_agent(address)
        self._policy = policy
        path = socket_path(address)
        transport = None if path is None else DeadlineTransport(socket_path=str(path))
        self.planner = PlannerClient(
            address if path is None else "http://localhost", policy=self._policy, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections."""
        self.planner.close()

    def status(self, *, timeout_s: float = TIMEOUT_S) -> AgentStatus:
        """Return what the agent says of itself."""
        return read(self._ask("GET", "/v1/agent", timeout_s), AgentStatus)

    def register(self, spec: JobSpec, *, timeout_s: float = TIMEOUT_S) -> Job:
        """Register the job with the planner, through the agent; the same again changes nothing."""
        body = spec.model_dump_json(exclude_unset=True).encode()
        return read(self._ask("PUT", f"/v1/jobs/{quote(spec.name)}", timeout_s, body), Job)

    def hand_in(
        self, job: str, iteration: int, rank: int, batch: RankBatch, *, timeout_s: float = TIMEOUT_S
    ) -> IterationOfNode:
        """Hand in what a rank holds; the same again changes nothing."""
        body = batch.model_dump_json(exclude_unset=True).encode()
        return read(self._ask("PUT", _rank(job, iteration, rank), timeout_s, body), IterationOfNode)

    def iteration(self, job: str, iteration: int, rank: int, *, timeout_s: float = TIMEOUT_S) -> IterationOfNode:
        """Ask how far an iteration is that this rank handed in."""
        return read(self._ask("GET", _rank(job, iteration, rank), timeout_s), IterationOfNode)

    def plan(self, job: str, iteration: int, rank: int, batch: RankBatch, *, timeout_s: float) -> PlanOfRank:
        """Hand in what a rank holds and wait for the plan; hands in again where the agent was started anew."""
        ends_at = time.monotonic() + timeout_s
        body: bytes | None = batch.model_dump_json(exclude_unset=True).encode()
        told: IterationOfNode | None = None
        while (left_s := ends_at - time.monotonic()) > 0:
            try:
                found = self._wait(_rank(job, iteration, rank), body, left_s)
            except RequestRefused as refused:
                if refused.problem.code != AgentCode.NOT_HANDED_IN:
                    raise
                body = batch.model_dump_json(exclude_unset=True).encode()
                continue
            if isinstance(found, PlanOfRank):
                return found
            told, body = found, None
        state = "not handed in" if told is None else told.state
        missing = f", waiting for ranks {told.missing_ranks}" if told is not None and told.missing_ranks else ""
        raise DeadlineExceeded(f"iteration {iteration} of job {job} was still {state} after {timeout_s:g} s{missing}")

    def give_timings(
        self, job: str, iteration: int, rank: int, timings: RankTimings, *, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Hand over what a rank measured."""
        body = timings.model_dump_json(exclude_unset=True).encode()
        self._ask("PUT", f"{_rank(job, iteration, rank)}/timings", timeout_s, body)

    def _wait(self, path: str, body: bytes | None, left_s: float) -> PlanOfRank | IterationOfNode:
        """Wait for the plan a while; hand in first where there is something to hand in."""
        wait_s = min(left_s, POLL_S)
        query = urlencode({"wait_ms": max(1, int(1000 * wait_s))})
        method, asked = ("GET", f"{path}/plan?{query}") if body is None else ("PUT", f"{path}?{query}")
        answer = self._ask(method, asked, left_s, body, try_timeout_s=wait_s + POLL_MARGIN_S)
        return read(answer, IterationOfNode) if answer.status == ACCEPTED else read(answer, PlanOfRank)

    def _ask(
        self, method: str, path: str, timeout_s: float, body: bytes | None = None, try_timeout_s: float | None = None
    ) -> Answer:
        return self.planner.drive(self._asking(Query(method, path, body), timeout_s, try_timeout_s))

    def _asking(self, query: Query, timeout_s: float, try_timeout_s: float | None) -> Flow[Answer]:
        """Ask as `call` does, but at once take an agent's word for what it waited for in vain itself."""
        calling = call(
            query, timeout_s=timeout_s, clock=time.monotonic, policy=self._policy, try_timeout_s=try_timeout_s
        )
        got: Answer | Failure | None = None
        while True:
            try:
                step = calling.send(got)
            except StopIteration as end:
                answer: Answer = end.value
                return answer
            got = yield step
            if isinstance(got, Answer) and got.status >= 500:
                _raise_if_in_vain(query, got)


def _raise_if_in_vain(query: Query, answer: Answer) -> None:
    try:
        problem = read(answer, Problem)
    except BadAnswer:
        return
    if problem.code in _IN_VAIN:
        raise PlannerUnavailable(f"{query}: {problem.detail}", problem)


def socket_path(address: str) -> Path | None:
    """Return the Unix socket that an address names; None if it names none."""
    if address.startswith("/"):
        return Path(address)
    return Path(address.removeprefix(UNIX)) if address.startswith(UNIX) else None


def checked_agent(address: str) -> str:
    """Check that an address is one of an agent, without asking anybody.

    Raises
    ------
    ValueError
        If it cannot be read.
    """
    path = socket_path(address)
    if path is None:
        checked_address(address)
    elif not path.is_absolute():
        raise ValueError(
            f"agent address {address!r} names no absolute path; give one like unix:/run/hydraulis/agent.sock"
        )
    return address


def _rank(job: str, iteration: int, rank: int) -> str:
    return f"/v1/jobs/{quote(job)}/iterations/{iteration:d}/ranks/{rank:d}"
