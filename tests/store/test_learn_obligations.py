"""What every store owes for what is learned of jobs, held over all back ends."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_kinds import OpenStore

from planner_service.store import JobRow, JobUnknown, LearnedRow, LearnerRow, PlanRow, ReportTerms, Store

TERMS = ReportTerms(num_expected=1, wait_s=60.0, max_open=50)


def planned(store: Store, job: str, *iterations: int) -> None:
    store.jobs.put(JobRow(job, b"{}"))
    for iteration in iterations:
        store.jobs.report(job, iteration, {"a": b"1"}, TERMS)
        claim = store.jobs.claim("me", 60.0)
        assert claim is not None
        store.jobs.finish(claim, PlanRow(f"sha256:{job}{iteration}", "sha256:d", b"plan"), b"{}")


def test_a_state_moves_on_once_for_each_that_was_read(open_store: OpenStore) -> None:
    store = open_store()
    store.jobs.put(JobRow("job", b"{}"))
    assert store.learning.state("job") is None
    assert store.learning.advance("job", 0, b"first")
    assert not store.learning.advance("job", 0, b"another first")
    assert store.learning.advance("job", 1, b"second")
    assert not store.learning.advance("job", 1, b"another second")
    assert not store.learning.advance("job", 9, b"from nowhere")
    assert open_store().learning.state("job") == LearnerRow(2, b"second")


def test_a_version_is_stored_with_the_state_that_brings_it_or_not_at_all(open_store: OpenStore) -> None:
    store = open_store()
    store.jobs.put(JobRow("job", b"{}"))
    assert store.learning.newest("job") is None
    assert store.learning.advance("job", 0, b"s1", LearnedRow(1, b"v1"))
    assert not store.learning.advance("job", 0, b"s1", LearnedRow(2, b"lost"))
    for number in range(2, 6):
        assert store.learning.advance("job", number - 1, b"s", LearnedRow(number, b"v%d" % number))
    again = open_store().learning
    newest = again.newest("job")
    assert newest is not None
    assert (newest.version, newest.body) == (5, b"v5")
    assert newest.created_at > 0
    assert [row.version for row in again.versions("job", after=None, limit=3)] == [5, 4, 3]
    assert [row.version for row in again.versions("job", after=3, limit=10)] == [2, 1]
    first = again.version("job", 1)
    assert first is not None
    assert first.body == b"v1"
    assert again.version("job", 6) is None


def test_of_several_who_move_a_state_on_at_once_one_succeeds(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(3)]
    stores[0].jobs.put(JobRow("job", b"{}"))
    for revision in range(5):
        ready = threading.Barrier(len(stores))

        def move(number: int, revision: int = revision, ready: threading.Barrier = ready) -> bool:
            ready.wait(20.0)
            version = LearnedRow(revision + 1, b"%d" % number)
            return stores[number].learning.advance("job", revision, b"%d" % number, version)

        with ThreadPoolExecutor(len(stores)) as pool:
            moved = list(pool.map(move, range(len(stores))))
        assert moved.count(True) == 1
        state, newest = stores[0].learning.state("job"), stores[0].learning.newest("job")
        assert state is not None
        assert newest is not None
        assert state == LearnerRow(revision + 1, b"%d" % moved.index(True))
        assert newest.body == state.body


def test_what_is_learned_goes_with_the_job_and_is_not_taken_for_that_of_another_of_the_name(store: Store) -> None:
    store.jobs.put(JobRow("job", b"{}"))
    store.learning.advance("job", 0, b"s", LearnedRow(1, b"v"))
    assert store.jobs.delete("job")
    assert store.learning.state("job") is None
    with pytest.raises(JobUnknown):
        store.learning.advance("job", 1, b"s")
    store.jobs.put(JobRow("job", b"{}"))
    assert store.learning.state("job") is None
    assert store.learning.newest("job") is None
    assert store.learning.advance("job", 0, b"other")


def test_measured_times_are_read_in_the_order_they_were_stored(open_store: OpenStore) -> None:
    store = open_store()
    planned(store, "job", 3, 4, 5)
    planned(store, "other", 3)
    for iteration, key in ((4, "a"), (3, "b"), (4, "c"), (4, "a"), (5, "d")):
        store.jobs.put_timings("job", iteration, key, key.encode(), 1.0)
    store.jobs.put_timings("other", 3, "z", b"z", 1.0)
    rows = open_store().learning.measured("job", after=0, limit=10)
    assert [(row.iteration, row.body) for row in rows] == [(4, b"a"), (3, b"b"), (4, b"c"), (5, b"d")]
    assert [row.number for row in rows] == sorted({row.number for row in rows})
    assert store.learning.measured("job", after=rows[1].number, limit=1) == [rows[2]]
    assert store.learning.measured("job", after=rows[3].number, limit=1) == []


def test_who_reads_measured_times_as_they_come_misses_none(open_store: OpenStore) -> None:
    store = open_store()
    planned(store, "job", *range(4))
    stores = [open_store() for _ in range(4)]
    seen: list[int] = []
    all_there = threading.Event()

    def write(iteration: int) -> None:
        for number in range(15):
            stores[iteration].jobs.put_timings("job", iteration, f"{iteration}-{number}", b"t", 1.0)

    def read() -> None:
        last = False
        while not last:
            last = all_there.is_set()
            for row in store.learning.measured("job", after=seen[-1] if seen else 0, limit=7):
                seen.append(row.number)
                last = False

    reader = threading.Thread(target=read)
    reader.start()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    all_there.set()
    reader.join(60.0)
    assert len(seen) == len(set(seen)) == 60


@pytest.mark.parametrize("name", ["nobody", "a\x00b", "\ud800"])
def test_nothing_is_learned_of_a_job_that_is_not_there(store: Store, name: str) -> None:
    assert store.learning.state(name) is None
    assert store.learning.newest(name) is None
    assert store.learning.version(name, 1) is None
    assert store.learning.versions(name, after=None, limit=5) == []
    assert store.learning.measured(name, after=0, limit=5) == []
    with pytest.raises(JobUnknown):
        store.learning.advance(name, 0, b"s")
