"""The planner's clients, synchronous and asynchronous: each drives the flows of `planner_client.calls`."""

import asyncio
import ssl
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import httpx

from planner_client.address import bearer, checked_address, trusting
from planner_client.calls import ANSWER_MARGIN_S, DEFAULT_TIMEOUT_S, PlannerCalls
from planner_client.errors import BadAnswer, PlannerUnavailable
from planner_client.flow import Answer, Ask, Failure, Flow, Pause, RetryPolicy
from planner_client.transport import DeadlineTransport, deadline

__all__ = ["ANSWER_MARGIN_S", "DEFAULT_TIMEOUT_S", "AsyncPlannerClient", "PlannerClient"]

CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 512 * 1024 * 1024

Value = TypeVar("Value")
P = ParamSpec("P")


def _waiting(
    flow: Callable[Concatenate[PlannerCalls, P], Flow[Value]],
) -> Callable[Concatenate["PlannerClient", P], Value]:
    """Make a flow a method that waits for its end."""

    @wraps(flow)
    def method(self: "PlannerClient", /, *args: P.args, **kwargs: P.kwargs) -> Value:
        return self.drive(flow(self._calls, *args, **kwargs))

    return method


def _awaited(
    flow: Callable[Concatenate[PlannerCalls, P], Flow[Value]],
) -> Callable[Concatenate["AsyncPlannerClient", P], Coroutine[Any, Any, Value]]:
    """Make a flow a method to await."""

    @wraps(flow)
    async def method(self: "AsyncPlannerClient", /, *args: P.args, **kwargs: P.kwargs) -> Value:
        return await self.drive(flow(self._calls, *args, **kwargs))

    return method


class PlannerClient:
    """Talk to a planner and wait for its answers. Threads may share one client.

    Every method returns or raises within its ``timeout_s``, all tries together, whatever the other side does. What
    each asks is said in `planner_client.calls.PlannerCalls`.

    Parameters
    ----------
    base_url
        Where the planner is, such as ``https://planner:8000``.
    token
        Sent as ``Authorization: Bearer ...``; it is in no error, log line or repr.
    ca_file
        Certificates (PEM) to trust instead of the public ones, such as those of your own authority.
    timeout_s
        Time for each call that is not given its own; `plan` and `wait_ready` have defaults of their own.
    policy
        When to try again.
    transport
        What carries requests instead of sockets; environment proxies are not used.
    sleep
        Waits between tries, in seconds.

    Raises
    ------
    HydraulisError
        From every method; see `planner_client.errors` for the branches.
    ValueError
        If the address, the token or the certificates cannot be used.
    """

    def __init__(  # noqa: PLR0913 - all but the address may be left out, and has a name
        self,
        base_url: str,
        *,
        token: str | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        policy: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = checked_address(base_url)
        self._calls = PlannerCalls(timeout_s=timeout_s, policy=policy)
        self._sleep = sleep
        trusted = trusting(self._url, ca_file)
        self._http = httpx.Client(
            base_url=self._url, headers=bearer(token), transport=transport or DeadlineTransport(trusted)
        )

    def __repr__(self) -> str:
        return f"PlannerClient({str(self._url)!r})"

    plan = _waiting(PlannerCalls.plan)
    plan_with_digest = _waiting(PlannerCalls.plan_with_digest)
    plans = _waiting(PlannerCalls.plans)
    delete_plan = _waiting(PlannerCalls.delete_plan)
    profiles = _waiting(PlannerCalls.profiles)
    profile = _waiting(PlannerCalls.profile)
    register_profile = _waiting(PlannerCalls.register_profile)
    delete_profile = _waiting(PlannerCalls.delete_profile)
    register_job = _waiting(PlannerCalls.register_job)
    job = _waiting(PlannerCalls.job)
    jobs = _waiting(PlannerCalls.jobs)
    delete_job = _waiting(PlannerCalls.delete_job)
    learning = _waiting(PlannerCalls.learning)
    learned_versions = _waiting(PlannerCalls.learned_versions)
    learned_version = _waiting(PlannerCalls.learned_version)
    reset_learning = _waiting(PlannerCalls.reset_learning)
    report = _waiting(PlannerCalls.report)
    report_all = _waiting(PlannerCalls.report_all)
    iteration = _waiting(PlannerCalls.iteration)
    iterations = _waiting(PlannerCalls.iterations)
    iteration_plan = _waiting(PlannerCalls.iteration_plan)
    report_timings = _waiting(PlannerCalls.report_timings)
    timings = _waiting(PlannerCalls.timings)
    report_node = _waiting(PlannerCalls.report_node)
    nodes = _waiting(PlannerCalls.nodes)
    wait_ready = _waiting(PlannerCalls.wait_ready)

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def drive(self, flow: Flow[Value]) -> Value:
        """Ask what a flow asks, to its end; for flows beside those of `PlannerCalls`."""
        got: Answer | Failure | None = None
        while True:
            try:
                step = flow.send(got)
            except StopIteration as end:
                value: Value = end.value
                return value
            if isinstance(step, Pause):
                self._sleep(step.seconds)
                got = None
            else:
                got = self._ask(step)

    def _ask(self, ask: Ask) -> Answer | Failure:
        _refuse_closed(self._http)
        try:
            with (
                deadline(time.monotonic() + ask.timeout_s),
                self._http.stream(
                    ask.query.method,
                    ask.query.path,
                    content=ask.query.body,
                    headers=_headers(ask),
                    timeout=_timeout(ask),
                ) as response,
            ):
                chunks = _Chunks()
                for chunk in response.iter_bytes():
                    chunks.add(chunk)
                return Answer(response.status_code, response.headers, chunks.joined())
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _failure(error)


class AsyncPlannerClient:
    """The same as `PlannerClient`, for asyncio; host names are resolved by asyncio's own threads."""

    def __init__(  # noqa: PLR0913 - all but the address may be left out, and has a name
        self,
        base_url: str,
        *,
        token: str | None = None,
        ca_file: str | Path | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        policy: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = checked_address(base_url)
        self._calls = PlannerCalls(timeout_s=timeout_s, policy=policy)
        trusted = trusting(self._url, ca_file) or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._http = httpx.AsyncClient(
            base_url=self._url,
            headers=bearer(token),
            transport=transport or httpx.AsyncHTTPTransport(verify=trusted, trust_env=False),
        )

    def __repr__(self) -> str:
        return f"AsyncPlannerClient({str(self._url)!r})"

    plan = _awaited(PlannerCalls.plan)
    plan_with_digest = _awaited(PlannerCalls.plan_with_digest)
    plans = _awaited(PlannerCalls.plans)
    delete_plan = _awaited(PlannerCalls.delete_plan)
    profiles = _awaited(PlannerCalls.profiles)
    profile = _awaited(PlannerCalls.profile)
    register_profile = _awaited(PlannerCalls.register_profile)
    delete_profile = _awaited(PlannerCalls.delete_profile)
    register_job = _awaited(PlannerCalls.register_job)
    job = _awaited(PlannerCalls.job)
    jobs = _awaited(PlannerCalls.jobs)
    delete_job = _awaited(PlannerCalls.delete_job)
    learning = _awaited(PlannerCalls.learning)
    learned_versions = _awaited(PlannerCalls.learned_versions)
    learned_version = _awaited(PlannerCalls.learned_version)
    reset_learning = _awaited(PlannerCalls.reset_learning)
    report = _awaited(PlannerCalls.report)
    report_all = _awaited(PlannerCalls.report_all)
    iteration = _awaited(PlannerCalls.iteration)
    iterations = _awaited(PlannerCalls.iterations)
    iteration_plan = _awaited(PlannerCalls.iteration_plan)
    report_timings = _awaited(PlannerCalls.report_timings)
    timings = _awaited(PlannerCalls.timings)
    report_node = _awaited(PlannerCalls.report_node)
    nodes = _awaited(PlannerCalls.nodes)
    wait_ready = _awaited(PlannerCalls.wait_ready)

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def drive(self, flow: Flow[Value]) -> Value:
        """Ask what a flow asks, to its end; for flows beside those of `PlannerCalls`."""
        got: Answer | Failure | None = None
        while True:
            try:
                step = flow.send(got)
            except StopIteration as end:
                value: Value = end.value
                return value
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                got = None
            else:
                got = await self._ask(step)

    async def _ask(self, ask: Ask) -> Answer | Failure:
        _refuse_closed(self._http)
        try:
            async with (
                asyncio.timeout(ask.timeout_s),
                self._http.stream(
                    ask.query.method,
                    ask.query.path,
                    content=ask.query.body,
                    headers=_headers(ask),
                    timeout=_timeout(ask),
                ) as response,
            ):
                chunks = _Chunks()
                async for chunk in response.aiter_bytes():
                    chunks.add(chunk)
                return Answer(response.status_code, response.headers, chunks.joined())
        except TimeoutError:
            return Failure(f"no whole answer within {ask.timeout_s:.3g} s")
        except (httpx.TransportError, httpx.DecodingError) as error:
            return _failure(error)


class _Chunks:
    """An answer as it arrives, with a bound on its size."""

    def __init__(self) -> None:
        self._chunks: list[bytes] = []
        self._num_bytes = 0

    def add(self, chunk: bytes) -> None:
        self._num_bytes += len(chunk)
        if self._num_bytes > MAX_ANSWER_BYTES:
            raise BadAnswer(f"the answer is over the limit of {MAX_ANSWER_BYTES} bytes")
        self._chunks.append(chunk)

    def joined(self) -> bytes:
        return b"".join(self._chunks)


def _refuse_closed(http: httpx.Client | httpx.AsyncClient) -> None:
    if http.is_closed:
        raise PlannerUnavailable("this client is closed; build a new one")


def _headers(ask: Ask) -> dict[str, str]:
    return {} if ask.query.body is None else {"Content-Type": "application/json"}


def _timeout(ask: Ask) -> httpx.Timeout:
    return httpx.Timeout(ask.timeout_s, connect=min(CONNECT_TIMEOUT_S, ask.timeout_s))


def _failure(error: Exception) -> Failure:
    return Failure(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
