"""The circuit breaker, by a clock that only moves in the test."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_client.breaker import Breaker, BreakerPolicy, Permission, Ticket

POLICY = BreakerPolicy(max_failures=3, first_pause_s=1.0, max_pause_s=8.0)


def opened(now: float = 100.0, policy: BreakerPolicy = POLICY) -> Breaker:
    breaker = Breaker(policy)
    for _ in range(policy.max_failures):
        breaker, ticket = breaker.admit(now)
        breaker = breaker.failed(ticket, now)
    assert breaker.state == "open"
    return breaker


def test_it_opens_after_failures_in_a_row_and_not_before() -> None:
    breaker = Breaker(POLICY)
    for _ in range(10):
        for _ in range(2):
            breaker, ticket = breaker.admit(0.0)
            breaker = breaker.failed(ticket, 0.0)
        breaker, ticket = breaker.admit(0.0)
        breaker = breaker.succeeded(ticket)
    assert breaker.state == "closed"
    assert opened().state == "open"


def test_while_open_nothing_is_asked_until_one_probe_goes_out() -> None:
    breaker, ticket = opened(100.0).admit(100.9)
    assert ticket.permission is Permission.NO
    breaker, probe = breaker.admit(101.0)
    assert probe.permission is Permission.PROBE
    breaker, other = breaker.admit(500.0)
    assert other.permission is Permission.NO
    assert breaker.succeeded(probe).state == "closed"


def test_pauses_double_up_to_their_limit() -> None:
    breaker, now = opened(0.0), 0.0
    pauses = []
    for _ in range(5):
        pauses.append(breaker.pause_s)
        now = breaker.probe_at
        breaker, probe = breaker.admit(now)
        breaker = breaker.failed(probe, now)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 8.0]


def test_the_planners_own_wish_lengthens_a_pause_within_the_limit() -> None:
    breaker, probe = opened(0.0).admit(1.0)
    assert breaker.failed(probe, 1.0, retry_after_s=5.0).pause_s == 5.0
    assert breaker.failed(probe, 1.0, retry_after_s=5000.0).pause_s == 8.0


def test_failures_from_before_it_opened_do_not_count_against_the_probe() -> None:
    breaker = Breaker(POLICY)
    breaker, stale = breaker.admit(0.0)
    for _ in range(3):
        breaker, ticket = breaker.admit(0.0)
        breaker = breaker.failed(ticket, 0.0)
    breaker, probe = breaker.admit(1.0)
    assert breaker.failed(stale, 1.0) == breaker
    assert breaker.succeeded(probe).state == "closed"


def test_a_probe_that_did_not_go_out_leaves_room_for_another() -> None:
    breaker, probe = opened(0.0).admit(1.0)
    breaker, another = breaker.abandoned(probe, 1.0).admit(1.0)
    assert another.permission is Permission.PROBE


@pytest.mark.parametrize(
    "numbers", [{"max_failures": 0}, {"first_pause_s": 0.0}, {"first_pause_s": 2.0, "max_pause_s": 1.0}]
)
def test_a_policy_that_makes_no_sense_is_refused(numbers: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="give"):
        BreakerPolicy(**numbers)  # type: ignore[arg-type]  # the test gives what must be refused


steps = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.floats(0, 5)),
        st.tuples(st.just("ask"), st.just(0.0)),
        st.tuples(st.just("succeed"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 20)),
        st.tuples(st.just("abandon"), st.integers(0, 20)),
    ),
    max_size=80,
)


class Checked:
    """A breaker among requests and outcomes, with its promises checked at every step."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.breaker = Breaker(policy)
        self.policy = policy
        self.now = 0.0
        self.out: list[Ticket] = []
        self.in_a_row = 0
        self.may_probe_at = 0.0

    def wait(self, seconds: float) -> None:
        self.now += seconds

    def ask(self, _: float) -> None:
        before = self.breaker
        self.breaker, ticket = before.admit(self.now)
        if before.state == "closed":
            assert ticket.permission is Permission.ASK
        elif ticket.permission is Permission.PROBE:
            assert before.state == "open"
            assert self.now >= self.may_probe_at
        else:
            assert ticket.permission is Permission.NO
            assert before.state == "half-open" or self.now < self.may_probe_at
        self.out.append(ticket)

    def succeed(self, number: float) -> None:
        if self.out:
            ticket, before = self.out.pop(int(number) % len(self.out)), self.breaker
            self.breaker = before.succeeded(ticket)
            if ticket.period == before.period and ticket.permission is not Permission.NO:
                self.in_a_row = 0
                assert self.breaker.state == "closed"
                assert self.breaker.admit(self.now)[1].permission is Permission.ASK

    def fail(self, number: float) -> None:
        if self.out:
            ticket, before = self.out.pop(int(number) % len(self.out)), self.breaker
            self.breaker = before.failed(ticket, self.now)
            self.in_a_row += ticket.period == before.period and before.state == "closed"
            if before.state == "closed":
                assert (self.breaker.state == "open") == (self.in_a_row == self.policy.max_failures)
            if before.state != "open" and self.breaker.state == "open":
                assert self.policy.first_pause_s <= self.breaker.pause_s <= self.policy.max_pause_s
                assert self.breaker.pause_s >= before.pause_s
                self.in_a_row, self.may_probe_at = 0, self.now + self.breaker.pause_s
            assert self.breaker.state != "closed" or before.state == "closed"

    def abandon(self, number: float) -> None:
        if self.out:
            ticket, before = self.out.pop(int(number) % len(self.out)), self.breaker
            self.breaker = before.abandoned(ticket, self.now)
            if self.breaker != before:
                assert ticket.permission is Permission.PROBE
                assert self.breaker.state == "open"
                self.may_probe_at = self.now


@given(steps=steps, max_failures=st.integers(1, 4))
def test_whatever_happens_the_breaker_keeps_its_promises(steps: list[tuple[str, float]], max_failures: int) -> None:
    """Under any interleaving of requests and outcomes:

    1. It opens only at a failure, and from closed only after ``max_failures`` in a row without a success between.
    2. While it is open no request goes out before its pause is over; while half-open none but the one probe.
    3. A success of the probe closes it at once, and then requests are waited for; nothing but a success closes it.
    4. A pause lies between the first and the longest, and never shrinks from one failed probe to the next.
    5. It is never stuck: once what is out is settled, after the longest pause at most a request goes out again.
    """
    checked = Checked(BreakerPolicy(max_failures=max_failures, first_pause_s=1.0, max_pause_s=4.0))
    for kind, number in steps:
        getattr(checked, kind)(number)
    breaker, now = checked.breaker, checked.now
    if breaker.state == "half-open":
        (probe,) = [out for out in checked.out if (out.period, out.permission) == (breaker.period, Permission.PROBE)]
        breaker = breaker.failed(probe, now)
    assert breaker.admit(now + checked.policy.max_pause_s)[1].permission is not Permission.NO
