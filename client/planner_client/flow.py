"""How the client talks to the planner, without doing it: a generator yields steps, a driver acts on them.

The same decisions serve the synchronous and the asynchronous client, and tests drive them without a network
or a clock.
"""

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from planner_client.contract import FaultCode, Problem
from planner_client.errors import BadAnswer, DeadlineExceeded, PlannerUnavailable, RequestRefused
from planner_client.waits import MAX_TRY_S, with_an_end

RETRIED_STATUSES = frozenset({429, 502, 503, 504})
MAX_SHOWN_ERRORS = 3
NOT_FOUND = 404

Value = TypeVar("Value")
Wire = TypeVar("Wire", bound=BaseModel)


@dataclass(frozen=True)
class Query:
    """One request; all of this client's may be repeated, since the planner takes the same twice as once."""

    method: str
    path: str
    body: bytes | None = None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Ask:
    """Send this request and come back with an `Answer` or a `Failure` within ``timeout_s``."""

    query: Query
    timeout_s: float


@dataclass(frozen=True)
class Pause:
    """Wait this long."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """An HTTP response; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Failure:
    """No response: why."""

    reason: str


Flow = Generator[Ask | Pause, Answer | Failure | None, Value]


@dataclass(frozen=True)
class RetryPolicy:
    """When and how often to try again.

    Attributes
    ----------
    max_attempts
        Tries in all; None for as many as the time allows.
    first_pause_s, max_pause_s
        The pause before the second try, and its limit; it doubles from try to try.
    jitter
        Gives a number in [0, 1) for each pause, which is spread between half and the whole of its length.
    """

    max_attempts: int | None = 5
    first_pause_s: float = 0.1
    max_pause_s: float = 2.0
    # Pauses need to differ between trainers, not to be unpredictable.
    jitter: Callable[[], float] = field(default=random.random)

    def pause_s(self, attempt: int, retry_after_s: float | None) -> float:
        """Return the pause (s) after this attempt, counted from 1; never less than the planner asked for."""
        pause = min(self.max_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 30))
        pause *= 0.5 + 0.5 * self.jitter()
        return pause if retry_after_s is None else max(pause, retry_after_s)


def call(
    query: Query,
    *,
    timeout_s: float,
    clock: Callable[[], float],
    policy: RetryPolicy,
    try_timeout_s: float | None = None,
) -> Flow[Answer]:
    """Ask until there is a 2xx answer, the policy's tries are spent, or the time is up.

    Parameters
    ----------
    timeout_s
        Time for all tries and pauses together.
    clock
        Monotonic time in seconds.
    try_timeout_s
        Time for one try, where an answer is due sooner; else a try may take all that is left.

    Raises
    ------
    ValueError
        If the time has no end.
    RequestRefused
        If the planner answers 4xx with a problem document.
    DeadlineExceeded, PlannerUnavailable
        If the time or the tries are spent, or the planner met an internal error.
    BadAnswer
        If what answers does not speak as a planner does.
    """
    ends_at = clock() + with_an_end("timeout_s", timeout_s)
    longest_try_s = MAX_TRY_S if try_timeout_s is None else try_timeout_s
    attempt = 0
    reason = "no time was given"
    problem: Problem | None = None
    retry_after_s: float | None = None
    while (left_s := ends_at - clock()) > 0:
        attempt += 1
        got = yield Ask(query, min(left_s, longest_try_s))
        if isinstance(got, Answer):
            if 200 <= got.status < 300:
                return got
            problem = _problem(got)
            reason = _refusal(query, got, problem)
            retry_after_s = _retry_after_s(got)
        elif isinstance(got, Failure):
            reason, problem, retry_after_s = got.reason, None, None
        if attempt == policy.max_attempts:
            raise PlannerUnavailable(f"{query} failed {attempt} times, last: {reason}", problem, retry_after_s)
        pause_s = policy.pause_s(attempt, retry_after_s)
        if pause_s >= ends_at - clock():
            break
        yield Pause(pause_s)
    raise DeadlineExceeded(
        f"{query} had no answer within {timeout_s:g} s ({attempt} tries, last: {reason})",
        problem,
        retry_after_s,
    )


def call_to_delete(
    query: Query, *, timeout_s: float, clock: Callable[[], float], policy: RetryPolicy
) -> Flow[Answer | None]:
    """Do as `call`; where a try before may have deleted it already, that it is not there any more is success, too.

    Returns
    -------
    Answer or None
        None if it was gone at a later try.
    """
    calling = call(query, timeout_s=timeout_s, clock=clock, policy=policy)
    num_asks = 0
    got: Answer | Failure | None = None
    while True:
        try:
            step = calling.send(got)
        except StopIteration as end:
            deleted: Answer = end.value
            return deleted
        except RequestRefused as refused:
            if num_asks > 1 and refused.problem.status == NOT_FOUND:
                return None
            raise
        num_asks += isinstance(step, Ask)
        got = yield step


def read(answer: Answer, model: type[Wire]) -> Wire:
    """Read an answer as a wire value.

    Raises
    ------
    BadAnswer
        If it is not one; for a plan also if its digest does not fit its content.
    """
    try:
        return model.model_validate_json(answer.body)
    except ValidationError as error:
        shown = "; ".join(
            f"{'.'.join(map(str, entry['loc']))}: {entry['msg']}"
            for entry in error.errors(include_url=False, include_context=False, include_input=False)[:MAX_SHOWN_ERRORS]
        )
        raise BadAnswer(f"the answer is not a {model.__name__}: {shown}") from error


def _problem(answer: Answer) -> Problem | None:
    try:
        return Problem.model_validate_json(answer.body)
    except ValidationError:
        return None


def _refusal(query: Query, answer: Answer, problem: Problem | None) -> str:
    """Say why an answer is not a success, or raise what no other try can change."""
    if problem is not None and problem.code == FaultCode.DEADLINE_EXCEEDED:
        raise PlannerUnavailable(f"{query}: {problem.detail}; {problem.remedy}", problem)  # it would take as long again
    if answer.status in RETRIED_STATUSES:
        return f"status {answer.status}" + (f", {problem.detail}" if problem else "")
    if answer.status >= 500:
        detail = f": {problem.detail}" if problem else " without a problem document"
        raise PlannerUnavailable(f"{query} was answered {answer.status}{detail}", problem)
    if 400 <= answer.status < 500 and problem is not None:
        raise RequestRefused(problem)
    raise BadAnswer(f"{query} was answered {answer.status} without a problem document; is a planner at this address?")


def _retry_after_s(answer: Answer) -> float | None:
    text = answer.headers.get("retry-after", "").strip()
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
