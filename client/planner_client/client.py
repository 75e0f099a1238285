"""The planner's clients, synchronous and asynchronous: both act on the steps that `planner_client.flow` decides."""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx

from planner_client.contract import Plan, PlanRequest, Profile, ProfileList, ProfileMeasurement, ProfileSummary
from planner_client.errors import BadAnswer
from planner_client.flow import Answer, Ask, Failure, Flow, Pause, Query, RetryPolicy, call, read
from planner_client.plan_check import check_answers
from planner_client.transport import DeadlineTransport, deadline

DEFAULT_TIMEOUT_S = 30.0
ANSWER_MARGIN_S = 15.0
"""Time that a plan may take on top of its own deadline: waiting for a solver, transport, further tries."""

CONNECT_TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 512 * 1024 * 1024
READY_PAUSE_S = 0.25

Value = TypeVar("Value")


class _Calls:
    """What both clients ask, as flows."""

    def __init__(self, *, timeout_s: float, policy: RetryPolicy | None) -> None:
        self._timeout_s = timeout_s
        self._policy = policy if policy is not None else RetryPolicy()

    def _plan(self, request: PlanRequest, timeout_s: float | None) -> Flow[Plan]:
        limit_s = request.options.deadline_ms / 1000.0 + ANSWER_MARGIN_S if timeout_s is None else timeout_s
        body = request.model_dump_json(exclude_unset=True).encode()
        answer = yield from self._call(Query("POST", "/v1/plans", body), limit_s)
        return check_answers(read(answer, Plan), request)

    def _plan_with_digest(self, digest: str, timeout_s: float) -> Flow[Plan]:
        plan = read((yield from self._call(Query("GET", f"/v1/plans/{_quoted(digest)}"), timeout_s)), Plan)
        if plan.digest != digest:
            raise BadAnswer(f"asked for the plan {digest}, got {plan.digest}")
        return plan

    def _profiles(self, timeout_s: float) -> Flow[list[ProfileSummary]]:
        return read((yield from self._call(Query("GET", "/v1/profiles"), timeout_s)), ProfileList).profiles

    def _profile(self, name: str, timeout_s: float) -> Flow[Profile]:
        return read((yield from self._call(Query("GET", f"/v1/profiles/{_quoted(name)}"), timeout_s)), Profile)

    def _register(self, profile: Profile | ProfileMeasurement, timeout_s: float) -> Flow[Profile]:
        body = profile.model_dump_json().encode()
        return read((yield from self._call(Query("POST", "/v1/profiles", body), timeout_s)), Profile)

    def _ready(self, timeout_s: float) -> Flow[None]:
        patient = RetryPolicy(max_attempts=None, first_pause_s=READY_PAUSE_S, max_pause_s=READY_PAUSE_S)
        yield from call(Query("GET", "/readyz"), timeout_s=timeout_s, clock=time.monotonic, policy=patient)

    def _call(self, query: Query, timeout_s: float) -> Flow[Answer]:
        return call(query, timeout_s=timeout_s, clock=time.monotonic, policy=self._policy)


class PlannerClient(_Calls):
    """Talk to a planner and wait for its answers. Threads may share one client.

    Every method returns or raises within its ``timeout_s``, all tries together, whatever the other side does
    (only the resolution of a host name keeps the resolver's own limits).

    Parameters
    ----------
    base_url
        Where the planner is, such as ``http://planner:8000``.
    timeout_s
        Time for each call but `plan` and `wait_ready`, which have their own.
    policy
        When to try again.
    transport
        What carries requests; environment proxies are not used.
    sleep
        Waits between tries, in seconds.

    Raises
    ------
    HydraulisError
        From every method; see `planner_client.errors` for the branches.
    """

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        policy: RetryPolicy | None = None,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(timeout_s=timeout_s, policy=policy)
        self._sleep = sleep
        self._http = httpx.Client(base_url=_checked(base_url), transport=transport or DeadlineTransport())

    def plan(self, request: PlanRequest, *, timeout_s: float | None = None) -> Plan:
        """Plan one iteration; by default the request's own deadline and 15 s are the limit."""
        return self._drive(self._plan(request, timeout_s))

    def plan_with_digest(self, digest: str) -> Plan:
        """Fetch a plan that the planner made before."""
        return self._drive(self._plan_with_digest(digest, self._timeout_s))

    def profiles(self) -> list[ProfileSummary]:
        """List the profiles that the planner has."""
        return self._drive(self._profiles(self._timeout_s))

    def profile(self, name: str) -> Profile:
        """Fetch a profile."""
        return self._drive(self._profile(name, self._timeout_s))

    def register_profile(self, profile: Profile | ProfileMeasurement) -> Profile:
        """Register a profile, or a measurement that the planner fits; return the profile that it keeps."""
        return self._drive(self._register(profile, self._timeout_s))

    def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the planner can plan."""
        self._drive(self._ready(timeout_s))

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _drive(self, flow: Flow[Value]) -> Value:
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


class AsyncPlannerClient(_Calls):
    """The same as `PlannerClient`, for asyncio."""

    def __init__(
        self,
        base_url: str,
        *,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        policy: RetryPolicy | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        super().__init__(timeout_s=timeout_s, policy=policy)
        self._http = httpx.AsyncClient(base_url=_checked(base_url), transport=transport or httpx.AsyncHTTPTransport())

    async def plan(self, request: PlanRequest, *, timeout_s: float | None = None) -> Plan:
        """Plan one iteration; by default the request's own deadline and 15 s are the limit."""
        return await self._drive(self._plan(request, timeout_s))

    async def plan_with_digest(self, digest: str) -> Plan:
        """Fetch a plan that the planner made before."""
        return await self._drive(self._plan_with_digest(digest, self._timeout_s))

    async def profiles(self) -> list[ProfileSummary]:
        """List the profiles that the planner has."""
        return await self._drive(self._profiles(self._timeout_s))

    async def profile(self, name: str) -> Profile:
        """Fetch a profile."""
        return await self._drive(self._profile(name, self._timeout_s))

    async def register_profile(self, profile: Profile | ProfileMeasurement) -> Profile:
        """Register a profile, or a measurement that the planner fits; return the profile that it keeps."""
        return await self._drive(self._register(profile, self._timeout_s))

    async def wait_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until the planner can plan."""
        await self._drive(self._ready(timeout_s))

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _drive(self, flow: Flow[Value]) -> Value:
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


def _checked(base_url: str) -> httpx.URL:
    try:
        # httpx takes hosts such as `[bad`, which the standard library refuses.
        urlsplit(base_url)
        url = httpx.URL(base_url)
    except (ValueError, httpx.InvalidURL) as error:
        raise ValueError(
            f"planner address {base_url!r} cannot be read ({error}); give one like http://host:8000"
        ) from error
    if url.scheme not in {"http", "https"} or not url.host:
        raise ValueError(f"planner address {base_url!r} is not an http URL; give one like http://host:8000")
    return url


def _quoted(segment: str) -> str:
    return quote(segment, safe=":")


def _headers(ask: Ask) -> dict[str, str]:
    return {} if ask.query.body is None else {"Content-Type": "application/json"}


def _timeout(ask: Ask) -> httpx.Timeout:
    return httpx.Timeout(ask.timeout_s, connect=min(CONNECT_TIMEOUT_S, ask.timeout_s))


def _failure(error: Exception) -> Failure:
    return Failure(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
