"""The job store beside a small model, through two store objects on one database, as two services would use it.

Invariants, of any sequence of calls by either:

1. Every call answers what the model answers, and refuses what it refuses, for the same reason.
2. What one was told is done, the other finds, and so does whoever closes and opens the database again.
3. Of all who ever took up an iteration at most one can renew its lease.
4. An iteration has one plan or none; once it has one, that one stays, whoever comes later with another.
5. A plan that an iteration names is there, with the bytes of whoever stored it first.
6. What a source reported is in the claim, byte for byte, and nothing else is; what comes later is refused.
7. The same report again changes nothing; another one is refused, and nothing of it is kept.
8. Jobs take turns, and of a job the lowest iteration comes first.
9. What is pruned is old, finished or forgotten; what is counted is what there is.
10. Times are the database's.
11. An iteration whose plan is of no use any more is not taken up but given up; one whose plan would come too late comes
    after all others.
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from job_model import Held, JobModel, Refused
from postgres import PostgresServer, database_name

from planner_service.store import (
    BatchConflict,
    Claim,
    IterationClosed,
    JobConflict,
    JobRow,
    JobUnknown,
    PlanRow,
    PlanStands,
    ReportTerms,
    SqlStore,
    TooManyOpen,
)
from planner_service.store.sql.tables import METADATA

EPOCH_S = 1_800_000_000.0
MAX_OPEN = 3

AT_LENGTH = ReportTerms(2, 60.0, MAX_OPEN)

NAMES = st.sampled_from(["run-a", "run-b", "Run"])
NUMBERS = st.integers(0, 4)
STORES = st.integers(0, 1)
BODIES = st.sampled_from([b"\x001", b"2"])
BATCHES = st.dictionaries(st.sampled_from(["a", "b", "c"]), BODIES, min_size=1)
OWNERS = st.sampled_from(["one", "two"])
LEASES_S = st.sampled_from([0.0, 0.0, 5.0, 60.0])
TERMS = st.builds(ReportTerms, st.just(2), LEASES_S, st.just(MAX_OPEN), st.sampled_from([None, None, 0.0, 5.0, 60.0]))
SOLVES_S = st.sampled_from([0.0, 0.0, 10.0])
KEPT_S = st.sampled_from([5.0, 30.0, 1000.0])
SELDOM = st.integers(0, 3).map(lambda drawn: drawn == 3)
WHICH = st.integers(0, 5)
"""Which of the claims so far, counted from the last."""

FAULTS = (JobConflict, JobUnknown, BatchConflict, IterationClosed, PlanStands, TooManyOpen)


class Ground(Protocol):
    """A database that can be emptied, and whose clock can be set."""

    def empty(self) -> str:
        """Return the name of an empty database."""

    def set_clock(self, now: float) -> None:
        """Let the database's clock show this time."""


class StoreBesideModel(RuleBasedStateMachine):
    """Does the same to a store and to the model."""

    def __init__(self, ground: Ground) -> None:
        super().__init__()
        self._ground = ground
        self._model = JobModel(EPOCH_S)
        self._held: list[Held] = []
        self._plans: dict[int, str] = {}
        ground.set_clock(EPOCH_S)
        self._database = ground.empty()
        self._stores = [SqlStore(self._database) for _ in range(2)]

    def teardown(self) -> None:
        for store in self._stores:
            store.close()

    def _same(self, asked: Callable[[], object], expected: Callable[[], object]) -> Any:
        """Hold the store's answer or refusal against the model's."""
        try:
            wanted: tuple[object, ...] = ("answers", expected())
        except Refused as refused:
            wanted = ("refuses", *refused.args)
        try:
            got: tuple[object, ...] = ("answers", asked())
        except FAULTS as fault:
            got = ("refuses", type(fault).__name__, *fault.args)
        assert got == wanted
        return got[1]

    @initialize(numbers=st.lists(st.tuples(st.sampled_from(["run-a", "Run"]), NUMBERS), min_size=2, max_size=8))
    def begin_with_something_to_do(self, numbers: list[tuple[str, int]]) -> None:
        self.put(0, "run-a", b"{}")
        self.put(1, "Run", b"{}")
        for name, number in numbers:
            self.report_wholly(0, name, number)

    @rule(which=STORES, name=NAMES, spec=st.just(b"{}") | BODIES)
    def put(self, which: int, name: str, spec: bytes) -> None:
        self._same(
            lambda: self._stores[which].jobs.put(JobRow(name, spec)),
            lambda: self._model.put(name, spec),
        )

    @rule(which=STORES, name=NAMES, is_meant=SELDOM)
    def delete(self, which: int, name: str, *, is_meant: bool) -> None:
        if not is_meant:
            return
        self._same(lambda: self._stores[which].jobs.delete(name), lambda: self._model.delete(name))

    def _report(
        self, which: int, name: str, number: int, batches: dict[str, bytes], terms: ReportTerms = AT_LENGTH
    ) -> None:
        self._same(
            lambda: self._stores[which].jobs.report(name, number, batches, terms),
            lambda: self._model.report(name, number, batches, terms),
        )

    @rule(which=STORES, name=NAMES, number=NUMBERS, batches=BATCHES, terms=TERMS)
    def report(self, which: int, name: str, number: int, batches: dict[str, bytes], terms: ReportTerms) -> None:
        self._report(which, name, number, batches, terms)

    @rule(which=STORES, name=NAMES, number=NUMBERS)
    def report_wholly(self, which: int, name: str, number: int) -> None:
        self._report(which, name, number, {"a": b"2", "b": b"\x001"})

    @rule(claims=st.lists(st.tuples(STORES, OWNERS, LEASES_S, SOLVES_S), min_size=1, max_size=4))
    def claim(self, claims: list[tuple[int, str, float, float]]) -> None:
        for which, owner, lease_s, solve_s in claims:
            self._claim(which, owner, lease_s, solve_s)

    @rule(which=STORES, problem=BODIES)
    def give_up_late(self, which: int, problem: bytes) -> None:
        self._same(
            lambda: self._stores[which].jobs.give_up_late(problem),
            lambda: self._model.give_up_late(problem),
        )

    def _claim(self, which: int, owner: str, lease_s: float, solve_s: float) -> None:
        turn = self._model.next(solve_s)
        claim = self._stores[which].jobs.claim(owner, lease_s, solve_s)
        assert (None if claim is None else (claim.job, claim.iteration)) == turn
        if claim is None or turn is None:
            return
        iteration = self._model.take(*turn, owner, lease_s)
        assert claim == Claim(
            *turn,
            owner=owner,
            spec=self._model.jobs[claim.job].row.spec,
            batches=iteration.batches,
            is_overdue=len(iteration.batches) < iteration.num_expected,
            num_tries=iteration.num_tries,
            number=claim.number,
        )
        self._held.append(Held(claim, iteration))

    def _one_of(self, back: int) -> Held | None:
        return self._held[-1 - back % len(self._held)] if self._held else None

    @rule(which=STORES, back=WHICH, lease_s=LEASES_S)
    def renew(self, which: int, back: int, lease_s: float) -> None:
        if (held := self._one_of(back)) is not None:
            self._renew(which, held, lease_s)

    def _renew(self, which: int, held: Held, lease_s: float) -> bool:
        is_owners = self._model.is_owners(held)
        assert self._stores[which].jobs.renew(held.claim, lease_s) is is_owners
        if is_owners:
            held.iteration.claimable_at = self._model.now + lease_s
        return is_owners

    @rule(which=STORES, lease_s=LEASES_S)
    def renew_whatever_was_claimed(self, which: int, lease_s: float) -> None:
        holders = [held.claim.number for held in self._held if self._renew(which, held, lease_s)]
        assert len(holders) == len(set(holders))

    @rule(which=STORES, back=WHICH)
    def give_back(self, which: int, back: int) -> None:
        if (held := self._one_of(back)) is None:
            return
        self._stores[which].jobs.give_back(held.claim)
        if self._model.is_owners(held):
            held.iteration.claimable_at, held.iteration.owner = self._model.now, None

    @rule(which=STORES, back=WHICH, key=st.sampled_from(["k1", "k2", "k3"]), body=BODIES)
    def finish(self, which: int, back: int, key: str, body: bytes) -> None:
        if (held := self._one_of(back)) is None:
            return
        plan = PlanRow(key, f"digest of {key[0]}", body)
        self._same(
            lambda: self._stores[which].jobs.finish(held.claim, plan, body),
            lambda: self._model.finish(held, plan, body),
        )

    @rule(which=STORES, back=WHICH, problem=BODIES)
    def fail(self, which: int, back: int, problem: bytes) -> None:
        if (held := self._one_of(back)) is None:
            return
        self._same(
            lambda: self._stores[which].jobs.fail(held.claim, problem),
            lambda: self._model.fail(held, problem),
        )

    @rule(which=STORES, name=NAMES, number=NUMBERS, key=BODIES, measured_ms=st.sampled_from([1.5, 2.5, 3.5]))
    def put_timings(self, which: int, name: str, number: int, key: bytes, measured_ms: float) -> None:
        arguments = (name, number, key.hex(), key, measured_ms)
        self._same(
            lambda: self._stores[which].jobs.put_timings(*arguments),
            lambda: self._model.put_timings(*arguments),
        )

    @rule(which=STORES, keep_iterations_s=KEPT_S, keep_plans_s=KEPT_S)
    def prune(self, which: int, keep_iterations_s: float, keep_plans_s: float) -> None:
        self._same(
            lambda: self._stores[which].prune(keep_iterations_s=keep_iterations_s, keep_plans_s=keep_plans_s),
            lambda: self._model.prune(keep_iterations_s, keep_plans_s),
        )

    @rule(which=STORES)
    def delete_plans(self, which: int) -> None:
        self._same(
            lambda: self._stores[which].plans.delete("digest of k"),
            lambda: self._model.delete_plans("digest of k"),
        )

    @rule(seconds=st.integers(1, 40))
    def wait(self, seconds: int) -> None:
        self._model.now += seconds
        self._ground.set_clock(self._model.now)

    @rule(which=STORES)
    def close_and_open(self, which: int) -> None:
        self._stores[which].close()
        self._stores[which] = SqlStore(self._database)

    @invariant()
    def both_find_what_the_model_has(self) -> None:
        for store in self._stores:
            jobs = store.jobs
            assert {row.name: row for row in jobs.page(after="", limit=9)} == {
                name: job.row for name, job in self._model.jobs.items()
            }
            for name, job in self._model.jobs.items():
                assert jobs.counts_of([name, "unheard of"]) == {name: self._model.counts(name)}
                rows = [self._model.row(name, number) for number in sorted(job.iterations)]
                assert jobs.iterations(name, after=None, limit=99) == rows
                for number, iteration in job.iterations.items():
                    assert jobs.sources(name, number) == sorted(iteration.batches)
                    if iteration.timings:
                        assert jobs.timings(name, number) == list(iteration.timings.values())
            assert jobs.next_due_at() == self._model.next_due_at()
            assert jobs.next_late_at() == self._model.next_late_at()
            for key in ("k1", "k2", "k3"):
                plan = self._model.plans.get(key)
                assert store.plans.of_request(key) == (None if plan is None else plan[0])

    @invariant()
    def a_plan_that_an_iteration_has_stays_its_own(self) -> None:
        for held in self._held:
            if held.iteration.request_key is not None:
                known = self._plans.setdefault(held.claim.number, held.iteration.request_key)
                assert held.iteration.request_key == known
                if self._model.is_there(held):
                    row = self._stores[0].jobs.iteration(held.claim.job, held.claim.iteration)
                    assert row is not None
                    assert row.request_key == known


class SqliteGround:
    """A new file each time; the clock is what the store's module takes for the host's."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = EPOCH_S
        self._directory = directory
        self._template = directory / "template.sqlite3"
        self._num_copies = 0
        SqlStore(str(self._template)).close()
        clock = SimpleNamespace(**{**vars(time), "time": lambda: self._now})
        monkeypatch.setattr("planner_service.store.sql.database.time", clock)

    def empty(self) -> str:
        for path in self._directory.glob("copy-*"):
            path.unlink()
        self._num_copies += 1
        return str(shutil.copy(self._template, self._directory / f"copy-{self._num_copies}.sqlite3"))

    def set_clock(self, now: float) -> None:
        self._now = now


class PostgresqlGround:
    """One database, emptied; its clock is a function that comes before PostgreSQL's own of that name."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._url = server.new_database()
        self._name = database_name(self._url)
        server.execute(
            self._name,
            "CREATE TABLE the_clock (shows double precision)",
            "INSERT INTO the_clock VALUES (0)",
            "CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE "
            "AS 'SELECT to_timestamp(shows) FROM public.the_clock'",
            f"ALTER DATABASE {self._name} SET search_path = public, pg_catalog",
        )
        SqlStore(self._url).close()

    def empty(self) -> str:
        tables = ", ".join(table.name for table in METADATA.sorted_tables)
        self._server.execute(self._name, f"TRUNCATE {tables} RESTART IDENTITY CASCADE")
        return self._url

    def set_clock(self, now: float) -> None:
        self._server.execute(self._name, f"UPDATE the_clock SET shows = {now!r}")  # noqa: S608 - a number


@contextmanager
def _room() -> Iterator[Path]:
    # What survives a crash is another test's; here thousands of commits need not reach a disk.
    shared = Path("/dev/shm")  # noqa: S108 - made by mkdtemp below
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else None) as directory:
        yield Path(directory)


def _hold(ground: Ground, *, num_examples: int) -> None:
    bounds = settings(
        max_examples=num_examples,
        stateful_step_count=40,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    run_state_machine_as_test(lambda: StoreBesideModel(ground), settings=bounds)


@pytest.mark.timeout(300)
def test_sqlite_does_what_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    with _room() as directory:
        _hold(SqliteGround(directory, monkeypatch), num_examples=25)


@pytest.mark.timeout(300)
def test_postgresql_does_what_the_model_does(postgres_server: PostgresServer) -> None:
    _hold(PostgresqlGround(postgres_server), num_examples=8)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_stores_do_what_the_model_does_for_long(
    kind: str, monkeypatch: pytest.MonkeyPatch, postgres_server: PostgresServer
) -> None:
    with _room() as directory:
        ground = SqliteGround(directory, monkeypatch) if kind == "sqlite" else PostgresqlGround(postgres_server)
        _hold(ground, num_examples=1000)
