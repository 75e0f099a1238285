"""Decisions about tokens, without any service."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner_service.access import (
    Allowed,
    Caller,
    Need,
    Refused,
    decide,
    hash_of,
    is_secret,
    new_secret,
    without_secrets,
)
from planner_service.access.decide import matches
from planner_service.access.visible import disjoint, visible_jobs
from planner_service.store import JobRow, TokenRow

SCOPES = ["read", "plan", "admin"]
NAMES = st.text("ab-.", min_size=1, max_size=5)
PATTERNS = st.one_of(NAMES, NAMES.map(lambda name: name + "*"), st.just("*"))


def token(scope: str, *jobs: str) -> TokenRow:
    return TokenRow("t", hash_of("x"), scope, jobs or None)


@given(
    held=st.sampled_from([*SCOPES, "newer"]),
    wanted=st.sampled_from(SCOPES),
    patterns=st.none() | st.lists(PATTERNS, min_size=1, max_size=3).map(tuple),
    reach=st.sampled_from(["job", "any", "all"]),
    job=NAMES,
)
def test_decisions_follow_scope_and_jobs(
    held: str, wanted: str, patterns: tuple[str, ...] | None, reach: str, job: str
) -> None:
    """For every token and need:

    1. a token is allowed if and only if its scope holds the one needed and its jobs hold what is touched;
    2. a token for some jobs touches nothing that belongs to all;
    3. whoever is allowed is the token, no more and no less.
    """
    need = Need(wanted, reach, job if reach == "job" else None)  # type: ignore[arg-type]  # drawn from the literals
    holds_scope = held in SCOPES and SCOPES.index(held) >= SCOPES.index(wanted)
    as_regex = [re.escape(pattern).replace(r"\*", ".*") for pattern in patterns or ()]
    holds_job = {
        "any": True,
        "all": patterns is None,
        "job": patterns is None or any(re.fullmatch(regex, job) for regex in as_regex),
    }[reach]
    decision = decide(TokenRow("t", "0", held, patterns), need)
    assert isinstance(decision, Allowed) == (holds_scope and holds_job)
    if isinstance(decision, Allowed):
        assert decision.caller == Caller("t", held, patterns)
    else:
        assert (decision.code, decision.token) == ("forbidden", "t")


@given(lived_s=st.floats(0, 100), lifetime_s=st.floats(0.001, 100), need=st.sampled_from(SCOPES))
def test_an_expired_token_is_good_for_nothing_and_is_told_so(lived_s: float, lifetime_s: float, need: str) -> None:
    row = TokenRow("t", "0", "admin", None, 50.0, 50.0 + lifetime_s, read_at=50.0 + lived_s)
    decision = decide(row, Need(need, "any"))  # type: ignore[arg-type]  # drawn from the literals
    if isinstance(decision, Refused):
        assert row.read_at >= row.expires_at  # type: ignore[operator]  # it has one
        assert (decision.code, decision.token, decision.detail) == ("token-expired", "t", "token t has expired")
    else:
        assert row.read_at < row.expires_at  # type: ignore[operator]


def test_nobody_is_unauthenticated_not_forbidden() -> None:
    decision = decide(None, Need("read", "any"))
    assert isinstance(decision, Refused)
    assert (decision.code, decision.token) == ("unauthenticated", None)


def test_a_refusal_names_what_is_held_what_is_needed_and_what_to_do() -> None:
    refused = decide(token("read"), Need("admin"))
    assert isinstance(refused, Refused)
    assert refused.detail == "token t has scope read, and this needs admin"
    assert refused.remedy == "use a token with scope admin"
    refused = decide(token("read", "mine-*", "one"), Need("read", "job", "theirs"))
    assert isinstance(refused, Refused)
    assert refused.detail == "token t is not good for job 'theirs'"
    assert refused.remedy.endswith("this one is good for mine-*, one")


@pytest.mark.parametrize(("reach", "job"), [("job", None), ("any", "x"), ("all", "x")])
def test_a_job_goes_with_a_need_that_touches_one(reach: str, job: str | None) -> None:
    with pytest.raises(ValueError, match="a job goes with reach 'job'"):
        Need("read", reach, job)  # type: ignore[arg-type]  # wrong on purpose


@pytest.mark.parametrize(
    ("pattern", "job", "is_meant"),
    [
        ("a", "a", True),
        ("a", "ab", False),
        ("a*", "a", True),
        ("a*", "ab", True),
        ("a*", "ba", False),
        ("*", "a", True),
        ("a.", "ab", False),
        ("a-*", "A-1", False),
        ("a", "a\n", False),
    ],
)
def test_a_pattern_means_a_name_or_the_beginning_of_names(pattern: str, job: str, *, is_meant: bool) -> None:
    assert matches(pattern, job) == is_meant


class ListedJobs:
    """Jobs in a list, counting the rows that are read."""

    def __init__(self, names: list[str]) -> None:
        self._rows = {name: JobRow(name, b"{}") for name in sorted(names)}
        self.num_read = 0

    def get(self, name: str) -> JobRow | None:
        return self._rows.get(name)

    def page(self, *, after: str, limit: int) -> list[JobRow]:
        found = [row for name, row in self._rows.items() if name > after][:limit]
        self.num_read += len(found)
        return found


@given(
    names=st.sets(NAMES, max_size=30),
    patterns=st.lists(PATTERNS, min_size=1, max_size=6),
    after=st.just("") | NAMES,
    limit=st.integers(1, 10),
)
def test_visible_jobs_are_those_that_match_in_order(
    names: set[str], patterns: list[str], after: str, limit: int
) -> None:
    """For every set of jobs and patterns:

    1. exactly the jobs that match a pattern and come after the name are returned, ascending, up to the limit;
    2. patterns that are kept do not overlap.
    """
    jobs = ListedJobs(sorted(names))
    found = visible_jobs(jobs, tuple(patterns), after=after, limit=limit)  # type: ignore[arg-type]  # pages and gets
    expected = sorted(name for name in names if name > after and any(matches(pattern, name) for pattern in patterns))
    assert [row.name for row in found] == expected[:limit]
    kept = disjoint(tuple(patterns))
    assert all(sum(matches(pattern, name) for pattern in kept) <= 1 for name in names)


def test_jobs_that_are_not_shown_are_hardly_read() -> None:
    jobs = ListedJobs([f"a-{number:04}" for number in range(5000)] + ["b-1", "b-2"])
    found = visible_jobs(jobs, ("b-*",), after="", limit=100)  # type: ignore[arg-type]  # pages and gets
    assert [row.name for row in found] == ["b-1", "b-2"]
    assert jobs.num_read == 2


def test_secrets_are_256_random_bits_and_told_apart_from_other_text() -> None:
    secrets = {new_secret() for _ in range(1000)}
    assert len(secrets) == 1000
    assert all(is_secret(secret) and len(secret) == 47 for secret in secrets)
    secret = secrets.pop()
    for other in (
        "",
        "hyd_",
        secret[:-1],
        secret + "A",
        secret + "\n",
        secret.upper(),
        secret[:-1] + "!",
        " " + secret,
    ):
        assert not is_secret(other)


def test_a_hash_is_sha_256_in_hexadecimal() -> None:
    assert hash_of("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


@given(before=st.text(max_size=20), after=st.text(max_size=20))
def test_secrets_are_blotted_out_of_any_text(before: str, after: str) -> None:
    secret = new_secret()
    text = without_secrets(before + secret + after)
    assert secret not in text
    assert without_secrets(before) == before
