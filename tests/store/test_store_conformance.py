"""What every store owes for profiles, plans, tokens and the audit record, held over all back ends."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from postgres import PostgresServer
from store_kinds import OpenStore

from planner_service.store import (
    AuditRow,
    Claim,
    JobConflict,
    JobRow,
    PlanRow,
    ProfileConflict,
    ProfileInUse,
    ProfileRow,
    ReportTerms,
    SqlStore,
    Store,
    StoredPlan,
    TokenConflict,
    TokenRow,
)


def plan_row(key: str = "sha256:k", *, digest: str = "sha256:d", body: bytes = b"{}") -> PlanRow:
    return PlanRow(request_key=key, digest=digest, body=body)


def planned(store: Store, plan: PlanRow, *, job: str = "job", iteration: int = 0) -> Claim:
    """Let an iteration have a plan."""
    store.jobs.put(JobRow(job, b"{}"))
    store.jobs.report(job, iteration, {"a": b"1"}, ReportTerms(1, 60.0, 100))
    claim = store.jobs.claim("me", 60.0)
    assert claim is not None
    store.jobs.finish(claim, plan, b"{}")
    return claim


def test_what_was_put_is_found_byte_for_byte(open_store: OpenStore) -> None:
    store = open_store()
    body = bytes(range(256)) * 1000
    assert store.plans.put(plan_row(body=body)) == plan_row(body=body)
    assert store.profiles.put(ProfileRow("p", b"\x00content", "sha256:s"))
    again = open_store()
    assert again.plans.of_request("sha256:k") == plan_row(body=body)
    assert again.plans.with_digest("sha256:d") == plan_row(body=body)
    assert again.profiles.get("p") == ProfileRow("p", b"\x00content", "sha256:s")
    again.check()


def test_what_was_never_put_is_not_found(store: Store) -> None:
    assert store.plans.of_request("sha256:k") is None
    assert store.plans.with_digest("sha256:d") is None
    assert store.plans.page(after=0, limit=10) == []
    assert store.plans.delete("sha256:d") == 0
    assert store.profiles.get("p") is None
    assert store.profiles.all() == []
    assert store.profiles.delete("p") is False
    assert store.access.token_with_hash("0" * 64) is None
    assert store.access.delete_token("t") is False


@pytest.mark.parametrize("name", ["a\x00b", "\ud800", "ä" * 1000, "'; DROP TABLE plans; --"])
def test_a_name_that_nothing_can_have_is_not_found(store: Store, name: str) -> None:
    assert store.profiles.get(name) is None
    assert store.profiles.delete(name) is False
    assert store.plans.of_request(name) is None
    assert store.plans.with_digest(name) is None
    assert store.plans.delete(name) == 0
    assert store.access.token_with_hash(name) is None
    assert store.access.delete_token(name) is False
    assert store.jobs.get(name) is None
    assert store.jobs.delete(name) is False
    assert store.jobs.iteration(name, 0) is None
    assert store.jobs.iterations(name, after=None, limit=1) == []
    assert store.jobs.sources(name, 0) == []
    assert store.jobs.timings(name, 0) == []
    assert store.jobs.counts(name).num_iterations == 0


def test_the_first_plan_of_a_request_stays(store: Store) -> None:
    first = plan_row(body=b"first")
    store.plans.put(first)
    assert store.plans.put(plan_row(digest="sha256:other", body=b"second")) == first
    assert store.plans.of_request("sha256:k") == first
    assert store.plans.with_digest("sha256:other") is None


def test_of_plans_with_one_digest_the_first_is_found(store: Store) -> None:
    for number in range(5):
        store.plans.put(plan_row(f"sha256:{9 - number}", body=str(number).encode()))
    found = store.plans.with_digest("sha256:d")
    assert found is not None
    assert found.body == b"0"


def test_plans_are_paged_in_the_order_they_were_stored(store: Store) -> None:
    began_at = time.time()
    for number in range(5):
        store.plans.put(plan_row(f"sha256:{9 - number}", digest=f"sha256:d{number}", body=b"x" * number))
    first = store.plans.page(after=0, limit=3)
    rest = store.plans.page(after=first[-1].number, limit=3)
    assert [(plan.digest, plan.num_bytes) for plan in (*first, *rest)] == [(f"sha256:d{n}", n) for n in range(5)]
    assert first[0].number == 1
    assert all(began_at - 5 < plan.created_at < time.time() + 5 for plan in first)
    assert isinstance(first[0], StoredPlan)


def test_all_plans_with_a_digest_go_but_those_that_an_iteration_names(store: Store) -> None:
    for key in ("sha256:1", "sha256:2", "sha256:3"):
        store.plans.put(plan_row(key))
    planned(store, plan_row("sha256:2"))
    assert store.plans.delete("sha256:d") == 2
    assert store.plans.of_request("sha256:2") is not None
    assert store.plans.of_request("sha256:1") is None
    assert store.jobs.delete("job")
    assert store.plans.of_request("sha256:2") is not None
    assert store.plans.delete("sha256:d") == 1
    assert store.plans.of_request("sha256:2") is None


def test_a_profile_can_be_put_again_but_not_changed(store: Store) -> None:
    assert store.profiles.put(ProfileRow("p", b"one", "sha256:1")) is True
    assert store.profiles.put(ProfileRow("p", b"one", "sha256:else")) is False
    assert store.profiles.put(ProfileRow("p", b"fitted otherwise", "sha256:1")) is False
    with pytest.raises(ProfileConflict):
        store.profiles.put(ProfileRow("p", b"two", "sha256:2"))
    assert store.profiles.get("p") == ProfileRow("p", b"one", "sha256:1")


def test_profiles_are_listed_by_the_codes_of_their_characters(store: Store) -> None:
    for name in ("b", "a", "_", "B", "a-b", "aB", "a.b"):
        store.profiles.put(ProfileRow(name, name.encode(), name))
    assert [row.name for row in store.profiles.all()] == ["B", "_", "a", "a-b", "a.b", "aB", "b"]


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(b'{"name":"job","profile":"p","num_gpus":8}', id="alone"),
        pytest.param(b'{"devices":[{"num_gpus":8,"profile":"q"},{"num_gpus":8,"profile":"p"}]}', id="among others"),
    ],
)
def test_a_profile_that_a_job_names_stays(store: Store, spec: bytes) -> None:
    store.profiles.put(ProfileRow("p", b"one", "sha256:1"))
    store.jobs.put(JobRow("job", spec))
    with pytest.raises(ProfileInUse, match="job"):
        store.profiles.delete("p")
    assert store.profiles.get("p") is not None
    store.jobs.delete("job")
    assert store.profiles.delete("p") is True
    assert store.profiles.get("p") is None
    assert store.profiles.put(ProfileRow("p", b"two", "sha256:2")) is True


def test_a_profile_given_whole_is_the_jobs_own(store: Store) -> None:
    store.profiles.put(ProfileRow("p", b"one", "sha256:1"))
    store.jobs.put(JobRow("job", b'{"name":"job","profile":{"name":"p"},"num_gpus":8}'))
    assert store.profiles.delete("p") is True


def test_tokens_are_given_found_listed_and_taken_back(store: Store) -> None:
    began_at = time.time()
    given = store.access.put_token(TokenRow("b", "1" * 64, "plan", ("team-*", "x")))
    store.access.put_token(TokenRow("B", "2" * 64, "admin", None))
    assert (given.name, given.secret_hash, given.scope, given.jobs) == ("b", "1" * 64, "plan", ("team-*", "x"))
    assert began_at - 5 < given.created_at < time.time() + 5
    assert store.access.token_with_hash("1" * 64) == given
    assert [row.name for row in store.access.tokens()] == ["B", "b"]
    assert store.access.delete_token("b") is True
    assert store.access.delete_token("b") is False
    assert store.access.token_with_hash("1" * 64) is None


def test_a_token_expires_by_the_clock_of_the_database_and_stays_stored(store: Store) -> None:
    for_ever = store.access.put_token(TokenRow("for-ever", "1" * 64, "plan", None))
    assert (for_ever.expires_at, for_ever.left_s, for_ever.is_expired) == (None, None, False)
    given = store.access.put_token(TokenRow("short", "2" * 64, "plan", None), lifetime_s=0.3)
    assert given.expires_at == pytest.approx(given.created_at + 0.3)
    assert not given.is_expired
    found = store.access.token_with_hash("2" * 64)
    assert found == given
    assert found.left_s is not None
    assert found.left_s <= 0.3
    time.sleep(0.35)
    found = store.access.token_with_hash("2" * 64)
    assert found == given
    assert found.is_expired
    assert [(row.name, row.is_expired) for row in store.access.tokens()] == [("for-ever", False), ("short", True)]
    with pytest.raises(TokenConflict):
        store.access.put_token(TokenRow("short", "3" * 64, "plan", None))
    assert store.access.delete_token("short")


def test_two_tokens_cannot_have_one_name(store: Store) -> None:
    store.access.put_token(TokenRow("t", "1" * 64, "plan", ()))
    with pytest.raises(TokenConflict):
        store.access.put_token(TokenRow("t", "2" * 64, "read", None))
    found = store.access.token_with_hash("1" * 64)
    assert found is not None
    assert found.jobs == ()
    assert store.access.token_with_hash("2" * 64) is None


def test_the_audit_record_keeps_everything_in_order(store: Store) -> None:
    began_at = time.time()
    for number in range(5):
        store.access.record(AuditRow(None if number % 2 else "t", f"action {number}", "subject ä", "refused"))
    entries = store.access.audit(after=0, limit=3)
    entries += store.access.audit(after=entries[-1].number, limit=10)
    assert [(row.token, row.action) for row in entries] == [(None if n % 2 else "t", f"action {n}") for n in range(5)]
    assert [row.number for row in entries] == sorted({row.number for row in entries})
    assert all(began_at - 5 < row.at < time.time() + 5 for row in entries)
    assert entries[0].outcome == "refused"


def test_plans_are_pruned_by_age_unless_an_iteration_that_is_kept_names_them(store: Store) -> None:
    store.plans.put(plan_row("sha256:1"))
    planned(store, plan_row("sha256:2", body=b"named"))
    assert store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0) == 0
    assert store.prune(keep_iterations_s=3600.0, keep_plans_s=-1.0) == 1
    assert store.plans.of_request("sha256:1") is None
    assert store.plans.of_request("sha256:2") is not None
    assert store.prune(keep_iterations_s=-1.0, keep_plans_s=-1.0) == 2
    assert store.plans.of_request("sha256:2") is None
    assert store.jobs.iteration("job", 0) is None
    assert store.jobs.get("job") is not None


def test_pruning_takes_a_bounded_number_of_rows_at_a_time(store: Store) -> None:
    num_plans = 250
    for number in range(num_plans):
        store.plans.put(plan_row(f"sha256:{number}"))
    went = []
    while num := store.prune(keep_iterations_s=-1.0, keep_plans_s=-1.0):
        went.append(num)
    assert sum(went) == num_plans
    assert max(went) <= 100
    assert store.plans.page(after=0, limit=1) == []


NUM_WRITERS = 12


def at_once(open_store: OpenStore, write: Callable[[Store, int], object]) -> list[object]:
    """Let many writers write at one moment, over several stores on one database; return what each was told."""
    stores = [open_store() for _ in range(3)]
    start = threading.Barrier(NUM_WRITERS)

    def one(number: int) -> object:
        start.wait(10)
        try:
            return write(stores[number % len(stores)], number)
        except (ProfileConflict, JobConflict, TokenConflict) as conflict:
            return type(conflict)

    with ThreadPoolExecutor(NUM_WRITERS) as threads:
        return list(threads.map(one, range(NUM_WRITERS), timeout=60))


def test_of_many_who_put_a_plan_at_once_one_wins_and_all_get_its_bytes(open_store: OpenStore) -> None:
    told = at_once(open_store, lambda store, number: store.plans.put(plan_row(body=b"%d" % number)))
    assert len(set(map(repr, told))) == 1
    assert open_store().plans.of_request("sha256:k") == told[0]
    assert len(open_store().plans.page(after=0, limit=10)) == 1


def test_of_many_who_put_a_profile_at_once_one_wins_and_the_others_are_told(open_store: OpenStore) -> None:
    told = at_once(
        open_store, lambda store, number: store.profiles.put(ProfileRow("p", b"%d" % number, f"sha256:{number}"))
    )
    assert sorted(map(repr, told)) == sorted(["True", *[repr(ProfileConflict)] * (NUM_WRITERS - 1)])
    assert open_store().profiles.get("p") == ProfileRow("p", b"%d" % told.index(True), f"sha256:{told.index(True)}")


def test_of_many_who_register_a_job_at_once_one_wins_and_the_others_are_told(open_store: OpenStore) -> None:
    told = at_once(open_store, lambda store, number: store.jobs.put(JobRow("j", b"%d" % number))[1])
    assert sorted(map(repr, told)) == sorted(["True", *[repr(JobConflict)] * (NUM_WRITERS - 1)])
    found = open_store().jobs.get("j")
    assert found is not None
    assert found.spec == b"%d" % told.index(True)


def test_of_many_who_register_the_same_job_at_once_one_is_told_that_it_is_new(open_store: OpenStore) -> None:
    told = at_once(open_store, lambda store, _: store.jobs.put(JobRow("j", b"{}")))
    assert sorted(is_new for _, is_new in told) == [False] * (NUM_WRITERS - 1) + [True]  # type: ignore[misc]
    assert len({row for row, _ in told}) == 1  # type: ignore[misc]


def test_of_many_who_give_a_token_at_once_one_wins_and_the_others_are_told(open_store: OpenStore) -> None:
    told = at_once(
        open_store, lambda store, number: store.access.put_token(TokenRow("t", f"{number:064x}", "read", None)).name
    )
    assert sorted(map(repr, told)) == sorted([repr("t"), *[repr(TokenConflict)] * (NUM_WRITERS - 1)])
    [row] = open_store().access.tokens()
    assert row.secret_hash == f"{told.index('t'):064x}"


def test_of_many_who_claim_at_once_no_two_get_the_same_iteration(open_store: OpenStore) -> None:
    store = open_store()
    store.jobs.put(JobRow("j", b"{}"))
    for iteration in range(NUM_WRITERS // 2):
        store.jobs.report("j", iteration, {"a": b"1"}, ReportTerms(1, 60.0, 100))
    told = at_once(open_store, lambda store, number: store.jobs.claim(f"owner-{number}", 60.0))
    claimed = [claim.iteration for claim in told if isinstance(claim, Claim)]
    assert sorted(claimed) == list(range(NUM_WRITERS // 2))


def test_the_audit_record_goes_by_age_and_its_numbers_are_not_given_again(store: Store) -> None:
    for number in range(3):
        store.access.record(AuditRow("t", f"action {number}", "x", "done"))
    assert store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0, keep_audit_s=3600.0) == 0
    last = store.access.audit(after=0, limit=10)[-1].number
    assert store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0, keep_audit_s=-1.0) == 3
    assert store.access.audit(after=0, limit=10) == []
    store.access.record(AuditRow(None, "later", "x", "refused"))
    [entry] = store.access.audit(after=last, limit=10)
    assert entry.action == "later"


def test_jobs_profiles_and_tokens_stay_however_old_they_are(store: Store) -> None:
    store.profiles.put(ProfileRow("p", b"{}", "sha256:p"))
    store.jobs.put(JobRow("j", b"{}"))
    store.access.put_token(TokenRow("t", "1" * 64, "read", None), lifetime_s=0.001)
    time.sleep(0.01)
    assert store.prune(keep_iterations_s=-1.0, keep_plans_s=-1.0, keep_audit_s=-1.0) == 0
    assert store.profiles.get("p") is not None
    assert store.jobs.get("j") is not None
    found = store.access.token_with_hash("1" * 64)
    assert found is not None
    assert found.is_expired


@pytest.mark.parametrize("fast_s", [-86_400.0, 86_400.0])
def test_times_are_those_of_the_server_whatever_the_services_clock_says(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, fast_s: float
) -> None:
    true_time = time.time
    store = SqlStore(postgres_server.new_database())
    monkeypatch.setattr(time, "time", lambda: true_time() + fast_s)
    token = store.access.put_token(TokenRow("t", "1" * 64, "read", None), lifetime_s=60.0)
    found = store.access.token_with_hash("1" * 64)
    store.access.record(AuditRow(None, "a", "x", "done"))
    job, _ = store.jobs.put(JobRow("j", b"{}"))
    collecting = store.jobs.report("j", 0, {"a": b"1"}, ReportTerms(2, 60.0, 100))
    assert store.jobs.claim("me", 60.0) is None
    store.plans.put(plan_row())
    assert store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0, keep_audit_s=3600.0) == 0
    times = [
        token.created_at,
        job.created_at,
        collecting.due_at - 60.0,
        store.plans.page(after=0, limit=1)[0].created_at,
    ]
    store.close()
    assert found is not None
    assert not found.is_expired
    assert all(abs(at - true_time()) < 30 for at in times)
