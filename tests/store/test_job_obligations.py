"""What every store owes for jobs and their iterations, held over all back ends."""

import queue
import time

import pytest
from store_kinds import OpenStore

from planner_service.store import (
    BatchConflict,
    Claim,
    IterationChanged,
    IterationClosed,
    JobConflict,
    JobRow,
    JobUnknown,
    PlanRow,
    PlanStands,
    ReportTerms,
    Store,
    TooManyOpen,
)

TERMS = ReportTerms(num_expected=2, wait_s=60.0, max_open=5)
AT_ONCE = ReportTerms(num_expected=2, wait_s=0.0, max_open=1000)
PLAN = PlanRow("sha256:k", "sha256:d", b"plan")


def claimed(store: Store, owner: str = "me", lease_s: float = 60.0) -> Claim:
    claim = store.jobs.claim(owner, lease_s)
    assert claim is not None
    return claim


def due(store: Store, job: str, *iterations: int) -> None:
    store.jobs.put(JobRow(job, b"{}"))
    for iteration in iterations:
        store.jobs.report(job, iteration, {"a": b"1", "b": b"2"}, TERMS)


def test_a_job_stands_as_it_was_registered_first(open_store: OpenStore) -> None:
    store = open_store()
    began_at = time.time()
    row, is_new = store.jobs.put(JobRow("job", b'{"a":1}'))
    assert is_new
    assert (row.name, row.spec) == ("job", b'{"a":1}')
    assert began_at - 5 < row.created_at < time.time() + 5
    assert store.jobs.put(JobRow("job", b'{"a":1}')) == (row, False)
    with pytest.raises(JobConflict):
        store.jobs.put(JobRow("job", b'{"a":2}'))
    assert open_store().jobs.get("job") == row


def test_jobs_are_paged_by_the_codes_of_their_characters(store: Store) -> None:
    names = ["B", "_", "a", "a-b", "a.b", "aB", "b"]
    for name in reversed(names):
        store.jobs.put(JobRow(name, b"{}"))
    assert [row.name for row in store.jobs.page(after="", limit=3)] == names[:3]
    assert [row.name for row in store.jobs.page(after="a", limit=100)] == names[3:]
    assert store.jobs.page(after="b", limit=100) == []
    assert [row.name for row in store.jobs.page(after="a\x00", limit=1)] == ["a-b"]


def test_a_deleted_job_leaves_its_plans_only(open_store: OpenStore) -> None:
    store = open_store()
    due(store, "job", 0, 1)
    store.jobs.finish(claimed(store), PLAN, b"{}")
    store.jobs.put_timings("job", 0, "k", b"t", 1.0)
    late = claimed(store)
    assert store.jobs.delete("job") is True
    assert store.jobs.delete("job") is False
    again = open_store()
    assert again.jobs.get("job") is None
    assert again.jobs.page(after="", limit=5) == []
    assert again.jobs.iteration("job", 0) is None
    assert again.jobs.iterations("job", after=None, limit=5) == []
    assert again.jobs.sources("job", 0) == []
    assert again.jobs.timings("job", 0) == []
    assert again.jobs.counts("job").num_iterations == 0
    assert again.jobs.next_due_at() is None
    assert again.jobs.claim("me", 1.0) is None
    assert again.plans.of_request(PLAN.request_key) == PLAN
    assert store.jobs.renew(late, 60.0) is False
    assert store.jobs.finish(late, PLAN, b"{}") is None
    assert store.jobs.fail(late, b"{}") is None


def test_a_claim_on_a_deleted_job_is_none_on_another_of_its_name(store: Store) -> None:
    due(store, "job", 0)
    late = claimed(store)
    store.jobs.delete("job")
    due(store, "job", 0)
    now = claimed(store)
    assert (now.num_tries, now.iteration) == (late.num_tries, late.iteration)
    assert store.jobs.finish(late, PLAN, b"{}") is None
    assert store.jobs.fail(late, b"{}") is None
    store.jobs.give_back(late)
    assert store.jobs.renew(late, 60.0) is False
    assert store.jobs.renew(now, 60.0) is True


def test_a_large_job_is_deleted_little_by_little_and_gone_at_once(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner_service.store.sql.prune.NUM_ITERATIONS", 10)
    num_iterations = 65
    store.jobs.put(JobRow("job", b"{}"))
    for iteration in range(num_iterations):
        store.jobs.report("job", iteration, {"a": b"1"}, AT_ONCE)
    assert store.jobs.delete("job")
    assert store.jobs.next_due_at() is None
    store.jobs.put(JobRow("job", b"{}"))
    assert store.jobs.iteration("job", num_iterations - 1) is None
    num_pruned = 0
    while num := store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0):
        num_pruned += num
    assert 0 < num_pruned < num_iterations
    assert store.jobs.get("job") is not None


def test_an_iteration_begins_with_its_first_report_and_is_due_with_the_last(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    assert store.jobs.iteration("job", 7) is None
    began_at = time.time()
    row = store.jobs.report("job", 7, {"b": b"2"}, TERMS)
    assert (row.state, row.num_expected, row.num_reported) == ("collecting", 2, 1)
    assert began_at + 55 < row.due_at < time.time() + 65
    assert store.jobs.claim("me", 60.0) is None
    assert store.jobs.sources("job", 7) == ["b"]
    assert store.jobs.iteration("job", 7) == row
    last = store.jobs.report("job", 7, {"a": b"1"}, TERMS)
    assert (last.state, last.num_reported, last.due_at) == ("due", 2, row.due_at)
    assert store.jobs.sources("job", 7) == ["a", "b"]
    claim = claimed(store)
    assert (claim.job, claim.iteration, claim.owner, claim.spec, claim.num_tries) == ("job", 7, "me", b"{}", 1)
    assert claim.batches == {"a": b"1", "b": b"2"}
    assert not claim.is_overdue


def test_an_iteration_is_taken_up_at_its_deadline_with_what_there_is(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    row = store.jobs.report("job", 0, {"b": b"2"}, ReportTerms(2, 0.2, 5))
    assert store.jobs.claim("me", 60.0) is None
    upcoming = store.jobs.next_due_at()
    assert upcoming is not None
    assert upcoming[0] == row.due_at
    assert 0 < upcoming[0] - upcoming[1] <= 0.2
    time.sleep(0.25)
    claim = claimed(store)
    assert claim.is_overdue
    assert claim.batches == {"b": b"2"}
    with pytest.raises(IterationClosed) as closed:
        store.jobs.report("job", 0, {"a": b"1"}, TERMS)
    assert closed.value.source == "a"


def test_what_was_said_before_is_taken_as_said_also_when_it_is_too_late_for_more(store: Store) -> None:
    due(store, "job", 0)
    claim = claimed(store)
    assert store.jobs.report("job", 0, {"a": b"1"}, TERMS).state == "solving"
    store.jobs.finish(claim, PLAN, b"{}")
    assert store.jobs.report("job", 0, {"a": b"1", "b": b"2"}, TERMS).state == "planned"
    with pytest.raises(BatchConflict) as conflict:
        store.jobs.report("job", 0, {"a": b"1", "b": b"else"}, TERMS)
    assert conflict.value.source == "b"
    with pytest.raises(IterationClosed):
        store.jobs.report("job", 0, {"a": b"1", "c": b"3"}, TERMS)


def test_a_report_is_kept_wholly_or_not_at_all(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    terms = ReportTerms(4, 60.0, 5)
    store.jobs.report("job", 0, {"b": b"2"}, terms)
    with pytest.raises(BatchConflict):
        store.jobs.report("job", 0, {"a": b"1", "b": b"else", "c": b"3"}, terms)
    assert store.jobs.sources("job", 0) == ["b"]
    row = store.jobs.iteration("job", 0)
    assert row is not None
    assert row.num_reported == 1


def test_a_report_of_many_sources_is_kept(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    batches = {f"node-{number}": str(number).encode() for number in range(3000)}
    terms = ReportTerms(len(batches), 60.0, 5)
    store.jobs.report("job", 0, dict(list(batches.items())[:2000]), terms)
    assert store.jobs.report("job", 0, batches, terms).state == "due"
    assert claimed(store).batches == batches
    assert store.jobs.sources("job", 0) == sorted(batches)


def test_reports_for_no_job_are_refused(store: Store) -> None:
    for name in ("job", "a\x00b"):
        with pytest.raises(JobUnknown):
            store.jobs.report(name, 0, {"a": b"1"}, TERMS)
        with pytest.raises(JobUnknown):
            store.jobs.put_timings(name, 0, "k", b"t", 1.0)


def test_a_job_has_no_more_open_iterations_than_it_may(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    due(store, "other", 0)
    terms = ReportTerms(2, 60.0, 2)
    store.jobs.report("job", 0, {"a": b"1"}, terms)
    store.jobs.report("job", 5, {"a": b"1"}, terms)
    with pytest.raises(TooManyOpen) as many:
        store.jobs.report("job", 6, {"a": b"1"}, terms)
    assert many.value.num_open == 2
    assert store.jobs.iteration("job", 6) is None
    store.jobs.report("job", 0, {"b": b"2"}, terms)
    claim = next(claim for claim in (claimed(store), claimed(store)) if claim.job == "job")
    store.jobs.fail(claim, b"{}")
    assert store.jobs.report("job", 6, {"a": b"1"}, terms).state == "collecting"


def test_iterations_are_listed_either_way(store: Store) -> None:
    due(store, "job", 0, 3, 9)
    due(store, "other", 4)
    due(store, "job", 2**53)

    def listed(after: int | None, *, newest_first: bool) -> list[int]:
        rows = store.jobs.iterations("job", after=after, limit=2, newest_first=newest_first)
        assert all(row.job == "job" for row in rows)
        return [row.iteration for row in rows]

    assert listed(None, newest_first=False) == [0, 3]
    assert listed(3, newest_first=False) == [9, 2**53]
    assert listed(None, newest_first=True) == [2**53, 9]
    assert listed(9, newest_first=True) == [3, 0]
    assert store.jobs.iterations("none", after=None, limit=2) == []


def test_iterations_are_counted(store: Store) -> None:
    due(store, "job", 4, 5, 6)
    store.jobs.finish(claimed(store), PLAN, b"{}")
    store.jobs.fail(claimed(store), b"{}")
    counts = store.jobs.counts("job")
    assert (counts.num_iterations, counts.num_planned, counts.num_failed, counts.last_iteration) == (3, 1, 1, 6)
    claimed(store)
    store.jobs.put(JobRow("empty", b"{}"))
    assert store.jobs.counts("empty").last_iteration is None
    assert store.prune(keep_iterations_s=-1.0, keep_plans_s=3600.0) == 2
    counts = store.jobs.counts("job")
    assert (counts.num_iterations, counts.num_planned, counts.num_failed, counts.last_iteration) == (1, 0, 0, 6)


def test_jobs_take_turns_and_iterations_go_in_order(store: Store) -> None:
    due(store, "x", 2, 1, 0)
    due(store, "y", 7, 5)
    due(store, "z", 1)
    served = [(claim.job, claim.iteration) for claim in (claimed(store) for _ in range(6))]
    assert sorted(served[:3]) == [("x", 0), ("y", 5), ("z", 1)]
    assert served[3:5] in ([("x", 1), ("y", 7)], [("y", 7), ("x", 1)])
    assert served[5] == ("x", 2)
    assert store.jobs.claim("me", 60.0) is None


def test_a_job_that_was_idle_does_not_wait_for_turns_it_never_took(store: Store) -> None:
    due(store, "x", 0)
    for _ in range(5):
        store.jobs.finish(claimed(store), PLAN, b"{}")
        due(store, "x", *range(10, 13))
        for _ in range(3):
            store.jobs.finish(claimed(store), PLAN, b"{}")
        store.jobs.delete("x")
        due(store, "x", 0)
    due(store, "y", 0, 1)
    due(store, "x", 1)
    assert sorted(claimed(store).job for _ in range(2)) == ["x", "y"]


def test_a_lease_that_ended_passes_the_iteration_on(store: Store) -> None:
    due(store, "job", 0)
    first = claimed(store, "one", 0.1)
    assert store.jobs.claim("two", 60.0) is None
    assert store.jobs.renew(first, 0.3) is True
    time.sleep(0.15)
    assert store.jobs.claim("two", 60.0) is None
    time.sleep(0.25)
    second = claimed(store, "two")
    assert second.num_tries == 2
    assert store.jobs.renew(first, 60.0) is False
    store.jobs.give_back(first)
    assert store.jobs.claim("three", 60.0) is None
    left = store.jobs.fail(first, b"problem")
    assert left is not None
    assert left.state == "solving"
    assert store.jobs.renew(second, 60.0) is True


def test_an_owner_that_claims_again_has_lost_its_first_claim(store: Store) -> None:
    due(store, "job", 0)
    first = claimed(store, "one", 0.0)
    second = claimed(store, "one", 60.0)
    assert store.jobs.renew(first, 60.0) is False
    assert store.jobs.renew(second, 60.0) is True


def test_what_is_given_back_can_be_claimed_at_once_and_takes_no_reports(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    store.jobs.report("job", 0, {"a": b"1"}, ReportTerms(2, 0.0, 5))
    first = claimed(store, "one")
    store.jobs.give_back(first)
    row = store.jobs.iteration("job", 0)
    assert row is not None
    assert row.state == "solving"
    with pytest.raises(IterationClosed):
        store.jobs.report("job", 0, {"b": b"2"}, TERMS)
    assert store.jobs.renew(first, 60.0) is False
    second = claimed(store, "two")
    assert (second.num_tries, second.batches, second.is_overdue) == (2, {"a": b"1"}, True)


def test_what_is_of_no_use_any_more_is_given_up_and_whoever_listens_hears_of_it(open_store: OpenStore) -> None:
    store = open_store()
    heard: queue.Queue[IterationChanged] = queue.Queue()
    store.listen(heard.put)
    store.jobs.put(JobRow("job", b"{}"))
    for iteration, useful_s in {0: 1.0, 1: 60.0, 2: 1.0}.items():
        store.jobs.report("job", iteration, {"a": b"1", "b": b"2"}, ReportTerms(2, 60.0, 5, useful_s))
    store.jobs.report("job", 3, {"a": b"1"}, ReportTerms(2, 0.01, 5, 1.0))
    taken = claimed(store)
    assert taken.iteration == 0
    time.sleep(1.2)
    assert claimed(store).iteration == 1
    assert store.jobs.claim("me", 60.0) is None
    assert store.jobs.give_up_late(b"too late") == 2
    assert open_store().jobs.give_up_late(b"too late again") == 0
    for iteration in (2, 3):
        row = store.jobs.iteration("job", iteration)
        assert row is not None
        assert (row.state, row.problem, row.request_key) == ("failed", b"too late", None)
        assert row.finished_at is not None
    with pytest.raises(IterationClosed):
        store.jobs.report("job", 3, {"b": b"2"}, TERMS)
    counts = store.jobs.counts("job")
    assert (counts.num_iterations, counts.num_planned, counts.num_failed) == (4, 0, 2)
    told = [heard.get(timeout=5.0) for _ in range(5)]
    assert {(change.kind, change.iteration) for change in told} >= {("finished", 2), ("finished", 3)}
    # A solver that has it may be late: its plan is kept.
    row = store.jobs.finish(taken, PLAN, b"{}")
    assert row is not None
    assert row.state == "planned"


def test_what_would_come_too_late_comes_after_all_others(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    for iteration, useful_s in {0: 5.0, 1: 60.0, 2: None}.items():
        store.jobs.report("job", iteration, {"a": b"1", "b": b"2"}, ReportTerms(2, 60.0, 5, useful_s))
    claims = [store.jobs.claim("me", 60.0, 10.0) for _ in range(4)]
    assert [claim.iteration for claim in claims if claim is not None] == [1, 2, 0]


def test_a_plan_is_stored_with_its_iteration(open_store: OpenStore) -> None:
    store = open_store()
    due(store, "job", 0)
    began_at = time.time()
    row = store.jobs.finish(claimed(store), PLAN, b'{"summary":1}')
    assert row is not None
    assert (row.state, row.request_key, row.summary, row.problem) == ("planned", "sha256:k", b'{"summary":1}', None)
    assert row.finished_at is not None
    assert began_at - 5 < row.finished_at < time.time() + 5
    assert open_store().jobs.iteration("job", 0) == row
    assert open_store().plans.of_request("sha256:k") == PLAN
    assert store.jobs.next_due_at() is None
    assert store.jobs.claim("me", 60.0) is None


def test_whoever_finishes_first_wins_owner_or_not(store: Store) -> None:
    due(store, "job", 0)
    late = claimed(store, "one", 0.0)
    owner = claimed(store, "two")
    first = store.jobs.finish(late, PLAN, b"first")
    assert first is not None
    assert store.jobs.finish(owner, PlanRow("sha256:other", "sha256:o", b"other"), b"second") == first
    assert store.jobs.fail(owner, b"problem") == first
    assert store.jobs.renew(owner, 60.0) is False
    store.jobs.give_back(owner)
    assert store.jobs.iteration("job", 0) == first
    assert store.plans.of_request("sha256:other") is None


def test_a_plan_that_is_known_is_named_and_stays(store: Store) -> None:
    store.plans.put(PLAN)
    due(store, "job", 0)
    claim = claimed(store)
    with pytest.raises(PlanStands) as stands:
        store.jobs.finish(claim, PlanRow("sha256:k", "sha256:else", b"else"), b"else")
    assert stands.value.row == PLAN
    row = store.jobs.iteration("job", 0)
    assert row is not None
    assert (row.state, row.summary) == ("solving", None)
    row = store.jobs.finish(claim, stands.value.row, b"{}")
    assert row is not None
    assert (row.request_key, row.summary) == ("sha256:k", b"{}")
    assert store.plans.of_request("sha256:k") == PLAN


def test_a_failure_is_final(store: Store) -> None:
    due(store, "job", 0)
    claim = claimed(store)
    row = store.jobs.fail(claim, b'{"code":"infeasible"}')
    assert row is not None
    assert (row.state, row.problem, row.request_key) == ("failed", b'{"code":"infeasible"}', None)
    assert row.finished_at is not None
    assert store.jobs.finish(claim, PLAN, b"{}") == row
    assert store.plans.of_request(PLAN.request_key) is None


def test_a_failure_of_what_was_given_back_counts(store: Store) -> None:
    due(store, "job", 0)
    claim = claimed(store)
    store.jobs.give_back(claim)
    row = store.jobs.fail(claim, b"problem")
    assert row is not None
    assert row.state == "failed"


def test_measured_times_are_kept_once_each_and_the_longest_is_the_iterations(store: Store) -> None:
    due(store, "job", 0)
    store.jobs.finish(claimed(store), PLAN, b"{}")
    assert store.jobs.put_timings("job", 0, "one", b"1", 5.0) is True
    assert store.jobs.put_timings("job", 0, "two", b"2", 7.0) is True
    assert store.jobs.put_timings("job", 0, "one", b"1", 9.0) is False
    assert store.jobs.put_timings("job", 0, "three", b"3", 6.0) is True
    assert store.jobs.timings("job", 0) == [b"1", b"2", b"3"]
    row = store.jobs.iteration("job", 0)
    assert row is not None
    assert row.measured_ms == 7.0
    with pytest.raises(JobUnknown):
        store.jobs.put_timings("job", 1, "one", b"1", 5.0)


def test_iterations_are_pruned_unless_somebody_may_still_finish_them(store: Store) -> None:
    due(store, "job", 0, 1, 2)
    store.jobs.finish(claimed(store), PLAN, b"{}")
    store.jobs.put_timings("job", 0, "one", b"1", 5.0)
    store.jobs.fail(claimed(store), b"{}")
    claim = claimed(store)
    store.jobs.report("job", 3, {"a": b"1"}, TERMS)
    store.jobs.report("job", 4, {"a": b"1"}, ReportTerms(2, 0.0, 5))
    assert store.prune(keep_iterations_s=3600.0, keep_plans_s=3600.0) == 0
    assert store.prune(keep_iterations_s=-1.0, keep_plans_s=3600.0) == 3
    assert [row.iteration for row in store.jobs.iterations("job", after=None, limit=9)] == [2, 3]
    assert store.jobs.sources("job", 0) == []
    assert store.jobs.timings("job", 0) == []
    row = store.jobs.finish(claim, PLAN, b"{}")
    assert row is not None
    assert row.state == "planned"
    assert store.jobs.counts("job").num_iterations == 2


def test_listeners_hear_what_becomes_due_and_what_is_finished(store: Store) -> None:
    heard: queue.Queue[IterationChanged] = queue.Queue()
    store.listen(heard.put)
    due(store, "job", 0)
    assert heard.get(timeout=5) == IterationChanged("due", "job", 0)
    claim = claimed(store)
    store.jobs.give_back(claim)
    assert heard.get(timeout=5) == IterationChanged("due", "job", 0)
    claim = claimed(store)
    store.jobs.finish(claim, PLAN, b"{}")
    store.jobs.finish(claim, PLAN, b"{}")
    assert heard.get(timeout=5) == IterationChanged("finished", "job", 0)
    due(store, "job", 1)
    assert heard.get(timeout=5) == IterationChanged("due", "job", 1)
    store.jobs.fail(claimed(store), b"{}")
    assert heard.get(timeout=5) == IterationChanged("finished", "job", 1)
    time.sleep(0.3)
    assert heard.empty()


def test_a_listener_that_fails_does_not_keep_others_from_hearing(store: Store) -> None:
    heard: queue.Queue[IterationChanged] = queue.Queue()

    def fail(_change: IterationChanged) -> None:
        raise RuntimeError("a listener's defect")

    store.listen(fail)
    store.listen(heard.put)
    due(store, "job", 0, 1)
    assert [heard.get(timeout=5).iteration for _ in range(2)] == [0, 1]


def test_a_store_closes_promptly_while_it_listens(open_store: OpenStore) -> None:
    store = open_store()
    store.listen(lambda _change: None)
    began_at = time.monotonic()
    store.close()
    assert time.monotonic() - began_at < 2.0
