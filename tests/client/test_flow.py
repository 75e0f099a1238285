"""The client's decisions, without a network and without a clock."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_client.contract import Plan, PlanOptions, PlanRequest
from planner_client.errors import BadAnswer, DeadlineExceeded, HydraulisError, PlannerUnavailable, RequestRefused
from planner_client.flow import RETRIED_STATUSES, Answer, Ask, Failure, Pause, Query, RetryPolicy, call
from planner_client.plan_check import check_answers

PLAIN = RetryPolicy(max_attempts=4, first_pause_s=1.0, max_pause_s=3.0, jitter=lambda: 1.0)
OK = Answer(200, {}, b"{}")
REFUSED = Failure("ConnectError: refused")


def problem(status: int, code: str = "overloaded", **headers: str) -> Answer:
    body = {"type": "urn:x", "title": "x", "status": status, "detail": "why", "code": code, "remedy": "how"}
    return Answer(status, headers, json.dumps(body).encode())


class Driven:
    """Drives a flow with prepared answers; each ask takes ``ask_s`` of a clock that only moves here."""

    def __init__(
        self, got: list[Answer | Failure], *, timeout_s: float = 100.0, ask_s: float = 0.0, policy: RetryPolicy = PLAIN
    ) -> None:
        self.now = 1000.0
        self.asks: list[Ask] = []
        self.pauses: list[float] = []
        self.answer: Answer | None = None
        self.error: HydraulisError | None = None
        self._run(iter(got), timeout_s, ask_s, policy)
        self.took_s = self.now - 1000.0

    def _run(
        self, got: "itertools.chain[Answer | Failure]", timeout_s: float, ask_s: float, policy: RetryPolicy
    ) -> None:  # type: ignore[type-arg]
        flow = call(Query("GET", "/x"), timeout_s=timeout_s, clock=lambda: self.now, policy=policy)
        reply: Answer | Failure | None = None
        try:
            while True:
                step = flow.send(reply)
                if isinstance(step, Pause):
                    self.pauses.append(step.seconds)
                    self.now += step.seconds
                    reply = None
                else:
                    self.asks.append(step)
                    self.now += min(ask_s, step.timeout_s)
                    reply = next(got)
        except StopIteration as end:
            self.answer = end.value
        except HydraulisError as error:
            self.error = error


def test_an_answer_is_returned_at_once() -> None:
    driven = Driven([OK])
    assert driven.answer == OK
    assert driven.pauses == []
    assert driven.asks == [Ask(Query("GET", "/x"), 100.0)]


@pytest.mark.parametrize("failure", [REFUSED, *(problem(status) for status in sorted(RETRIED_STATUSES))])
def test_what_may_pass_is_tried_again_with_growing_pauses(failure: Answer | Failure) -> None:
    driven = Driven([failure, failure, failure, OK])
    assert driven.answer == OK
    assert driven.pauses == [1.0, 2.0, 3.0]


def test_after_the_last_try_the_planner_is_unavailable_and_the_reason_is_told() -> None:
    driven = Driven([REFUSED, REFUSED, REFUSED, problem(503)])
    assert type(driven.error) is PlannerUnavailable
    assert "4 times, last: status 503, why" in str(driven.error)
    assert driven.error.problem is not None


def test_retry_after_is_honoured() -> None:
    driven = Driven([problem(429, **{"retry-after": "17"}), OK])
    assert driven.pauses == [17.0]


def test_a_retry_after_beyond_the_time_given_ends_the_call_at_once() -> None:
    driven = Driven([problem(429, **{"retry-after": "200"})])
    assert isinstance(driven.error, DeadlineExceeded)
    assert driven.error.retry_after_s == 200.0
    assert driven.took_s == 0.0


@pytest.mark.parametrize("retry_after", ["", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 400, "\u0661"])
def test_a_retry_after_that_is_no_number_of_seconds_is_ignored(retry_after: str) -> None:
    assert Driven([problem(503, **{"retry-after": retry_after}), OK]).pauses == [1.0]


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422])
def test_a_refusal_is_not_tried_again(status: int) -> None:
    driven = Driven([problem(status, code="sequence-too-long")])
    assert isinstance(driven.error, RequestRefused)
    assert driven.error.problem.code == "sequence-too-long"
    assert str(driven.error) == "why [sequence-too-long]; how"
    assert len(driven.asks) == 1


@pytest.mark.parametrize("status", [500, 501, 599])
def test_an_internal_error_makes_the_planner_unavailable_without_another_try(status: int) -> None:
    for answer in (problem(status, code="internal"), Answer(status, {}, b"<html>")):
        driven = Driven([answer])
        assert type(driven.error) is PlannerUnavailable
        assert len(driven.asks) == 1


@pytest.mark.parametrize(
    "answer", [Answer(404, {}, b"<html>"), Answer(302, {"location": "/y"}, b""), Answer(101, {}, b"")]
)
def test_an_answer_that_no_planner_gives_is_bad(answer: Answer) -> None:
    driven = Driven([answer])
    assert isinstance(driven.error, BadAnswer)
    assert "is a planner at this address?" in str(driven.error)


def test_no_time_means_no_request() -> None:
    driven = Driven([], timeout_s=0)
    assert isinstance(driven.error, DeadlineExceeded)
    assert driven.asks == []


outcomes = st.sampled_from(
    [OK, REFUSED, problem(503), problem(429, **{"retry-after": "2"}), problem(504), problem(422)]
)


@given(
    got=st.lists(outcomes, min_size=60, max_size=60),
    timeout_s=st.floats(0.01, 50),
    ask_s=st.floats(0, 20),
    jitter=st.floats(0, 1, exclude_max=True),
    max_attempts=st.one_of(st.none(), st.integers(1, 6)),
)
def test_a_call_keeps_its_time_and_its_tries(
    got: list[Answer | Failure], timeout_s: float, ask_s: float, jitter: float, max_attempts: int | None
) -> None:
    """Whatever is answered, and however long it takes:

    1. The call ends, with an answer or with one of the client's errors.
    2. It never takes longer than the time given; no single request is given longer than what is left.
    3. It never tries more often than the policy allows, and never after an answer or a refusal.
    4. Every pause is followed by another try.
    """
    policy = RetryPolicy(max_attempts=max_attempts, first_pause_s=1.0, max_pause_s=3.0, jitter=lambda: jitter)
    driven = Driven(got, timeout_s=timeout_s, ask_s=ask_s, policy=policy)
    assert (driven.answer is None) != (driven.error is None)
    assert driven.took_s <= timeout_s * (1 + 1e-9)
    assert all(ask.timeout_s <= timeout_s * (1 + 1e-9) for ask in driven.asks)
    assert max_attempts is None or len(driven.asks) <= max_attempts
    final = [at for at, answer in enumerate(got[: len(driven.asks)]) if answer in (OK, problem(422))]
    assert final in ([], [len(driven.asks) - 1])
    assert len(driven.pauses) == max(0, len(driven.asks) - 1)


@given(attempt=st.integers(1, 10_000), jitter=st.floats(0, 1, exclude_max=True))
def test_pauses_are_bounded_and_never_shorter_than_asked_for(attempt: int, jitter: float) -> None:
    policy = RetryPolicy(first_pause_s=0.1, max_pause_s=2.0, jitter=lambda: jitter)
    assert 0.05 <= policy.pause_s(attempt, None) <= 2.0
    assert policy.pause_s(attempt, 7.5) == 7.5


REQUEST = PlanRequest.model_validate(
    {
        "profile": "p",
        "num_gpus": 2,
        "iteration": 4,
        "lengths": {"a": [5, 5], "b": [7]},
        "options": {"over_long": "drop"},
    }
)


def plan(**changes: object) -> Plan:
    """A plan for `REQUEST`: source a's fives in a micro-batch, source b's seven dropped."""
    micro_batch = {"sequences": [{"source": "a", "length": 5, "count": 2}], "num_tokens": 10, "num_padding_tokens": 0}
    replica = {"tp": 1, "cp": 1, "pp": 1, "device": "d", "ranks": [0], "max_tokens": 10, "makespan_ms": 1.0}
    content = {
        "digest": "",
        "profile": "p",
        "iteration": 4,
        "seed": 0,
        "num_sequences": 2,
        "num_tokens": 10,
        "dropped": [{"source": "b", "length": 7, "count": 1}],
        "replicas": [{**replica, "simulated_ms": 1.0, "micro_batches": [{**micro_batch, "time_ms": 1.0}]}],
        "makespan_ms": 1.0,
        "simulated_ms": 1.0,
        "sync_ms": 0.0,
        "lower_bound_ms": None,
        "gap": None,
        "bound_scope": None,
        "solved_by": "fallback",
        "status": "feasible",
        "planning_ms": 0.0,
        "num_gpus": 2,
        "strategy": "(1,1)x1",
        **changes,
    }
    try:
        return Plan.model_validate(content)
    except ValueError as error:
        digest = str(error).split("content gives '")[1].split("'")[0]
        return Plan.model_validate({**content, "digest": digest})


def test_a_plan_for_the_request_is_accepted() -> None:
    assert check_answers(plan(), REQUEST) == plan()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"iteration": 5}, "iteration is 5 but 4 was asked for"),
        ({"num_gpus": 3}, "num_gpus is 3 but 2"),
        ({"alignment": 2}, "alignment is 2 but 1"),
        ({"profile": "q"}, "profile is 'q' but 'p'"),
        ({"num_tokens": 11}, "says 2 sequences of 11 tokens but places 2 of 10"),
        ({"num_sequences": 3}, "says 3 sequences"),
        ({"lower_bound_ms": 2.0, "gap": 0.0, "bound_scope": "strategy"}, "bound of 2.0 ms lies above"),
        ({"dropped": []}, "source 'b' gave 1 sequences of 7 tokens, but the plan holds 0"),
        ({"dropped": [{"source": "b", "length": 7, "count": 2}]}, "but the plan holds 2"),
        ({"replicas": []}, "source 'a' gave 2 sequences of 5 tokens, but the plan holds 0"),
    ],
)
def test_a_sealed_plan_for_something_else_is_a_bad_answer(changes: dict[str, object], said: str) -> None:
    with pytest.raises(BadAnswer, match=said):
        check_answers(plan(**changes), REQUEST)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_tokens": 9}, "micro-batch 0 of replica 0 has 10 tokens but its replica holds 9"),
        ({"ranks": [2]}, "rank 2 of 2 GPUs"),
        ({"ranks": [0, 1]}, "has 2 ranks but its layout takes 1"),
        ({"tp": 2, "ranks": [1, 1]}, "rank 1 is in the plan twice"),
        ({"tp": 8}, "has 1 ranks but its layout takes 8"),
    ],
)
def test_a_sealed_plan_whose_replica_cannot_be_run_is_a_bad_answer(changes: dict[str, object], said: str) -> None:
    replica = plan().model_dump()["replicas"][0]
    with pytest.raises(BadAnswer, match=said):
        check_answers(plan(replicas=[{**replica, **changes}]), REQUEST)


def test_a_plan_that_drops_what_must_not_be_dropped_is_a_bad_answer() -> None:
    strict = REQUEST.model_copy(update={"options": PlanOptions()})
    with pytest.raises(BadAnswer, match="drops a sequence of 7 tokens"):
        check_answers(plan(), strict)


def test_a_micro_batch_with_false_token_counts_is_a_bad_answer() -> None:
    replica = plan().model_dump()["replicas"][0]
    (micro_batch,) = replica["micro_batches"]
    for changes in ({"num_tokens": 9}, {"num_padding_tokens": 1}):
        with pytest.raises(BadAnswer, match="tokens of sequences and padding but has 10"):
            check_answers(plan(replicas=[{**replica, "micro_batches": [{**micro_batch, **changes}]}]), REQUEST)
