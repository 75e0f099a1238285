"""Writers and servers that are killed at any moment: whatever was acknowledged is there, and work goes on.

What is held after every kill:

1. Whatever a killed writer was told is found byte for byte, by a store that was open all the time and by a new one.
2. Nothing is half there: an iteration has its plan or none, and counts what was reported.
3. Whoever is left can write at once, and finishes what the dead one had taken up.
4. A store outlives its database's server: calls fail with `StoreUnavailable` alone, and succeed once it is back.
"""

import json
import os
import queue
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from crash_writer import LEASE_S, body_of, token_of
from postgres import PostgresServer, database_name

from planner_service.store import AuditRow, JobRow, PlanRow, SqlStore, Store, StoreUnavailable

NUM_KILLS = 10
ANSWER_S = 30.0
BACK_WITHIN_S = 10.0
"""From a server's return to the next write that succeeds, recovery of its files included."""


class Writers:
    """Writers in processes of their own, one at a time, and what they were told."""

    def __init__(self) -> None:
        program = [sys.executable, str(Path(__file__).with_name("crash_writer.py"))]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._lines: queue.Queue[list[Any]] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.told: list[list[Any]] = []

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def start(self, database: str, seed: int) -> int:
        """Start a writer and return its process id."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{database} {seed}\n")
        self._process.stdin.flush()
        return int(self.wait_for("writer", ANSWER_S)[1])

    def wait_for(self, kind: str, seconds: float) -> list[Any]:
        """Take in what is told until something of a kind is."""
        ends_at = time.monotonic() + seconds
        while True:
            told = self._lines.get(timeout=max(0.01, ends_at - time.monotonic()))
            self.told.append(told)
            if told[0] == kind:
                return told

    def kill(self, writer: int) -> None:
        """Kill a writer, and take in the last that it was told."""
        os.kill(writer, signal.SIGKILL)
        self.wait_for("ended", ANSWER_S)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(ANSWER_S)
        self._reader.join(ANSWER_S)
        self._process.stdout.close()


@pytest.fixture
def writers() -> Iterator[Writers]:
    started = Writers()
    yield started
    started.close()


def everything_told_is_there(store: Store, told: list[list[Any]]) -> int:
    """Look for all that was acknowledged; return how much that was."""
    subjects = {row.subject for row in all_audit(store)}
    looked_for: dict[str, Callable[..., None]] = {
        "job": lambda job: same(store.jobs.get(job).spec, body_of(job)),
        "report": lambda job, number, source: contains(store.jobs.sources(job, number), source),
        "finish": lambda job, number, key: planned(store, job, number, key),
        "timings": lambda job, number, key: contains(store.jobs.timings(job, number), body_of(key)),
        "plan": lambda name: same(store.plans.of_request(name), PlanRow(name, f"digest {name}", body_of(name))),
        "profile": lambda name: same(store.profiles.get(name).content, body_of(name)),
        "token": lambda seed, number: same(
            store.access.token_with_hash(token_of(seed, number).secret_hash).name, token_of(seed, number).name
        ),
        "audit": lambda name: contains(subjects, name),
    }
    num_found = 0
    for kind, *told_of in told:
        if kind in looked_for:
            looked_for[kind](*told_of)
            num_found += 1
    return num_found


def same(found: object, wanted: object) -> None:
    assert found == wanted


def contains(found: Any, wanted: object) -> None:
    assert wanted in found


def planned(store: Store, job: str, number: int, key: str) -> None:
    row = store.jobs.iteration(job, number)
    assert row is not None
    assert (row.state, row.request_key, row.summary) == ("planned", key, body_of(f"summary {key}")[:100])
    assert store.plans.of_request(key) == PlanRow(key, f"digest {key}", body_of(key))


def all_audit(store: Store) -> list[AuditRow]:
    entries: list[AuditRow] = []
    while page := store.access.audit(after=entries[-1].number if entries else 0, limit=1000):
        entries += page
    return entries


def nothing_is_half_there(store: Store) -> None:
    for job in store.jobs.page(after="", limit=1000):
        rows = store.jobs.iterations(job.name, after=None, limit=10_000)
        counts = store.jobs.counts(job.name)
        assert counts.num_iterations == len(rows)
        assert counts.num_planned == sum(row.state == "planned" for row in rows)
        for row in rows:
            assert store.jobs.sources(job.name, row.iteration) == ["a", "b"][: row.num_reported]
            assert row.num_reported > 0
            assert (row.state == "planned") == (row.request_key is not None)
            if row.request_key is not None:
                assert store.plans.of_request(row.request_key) is not None


def finish_what_was_left(store: Store) -> int:
    """Take over what the dead had; return how many iterations that was."""
    num_finished = 0
    while True:
        upcoming = store.jobs.next_due_at()
        if upcoming is None or upcoming[0] > upcoming[1] + LEASE_S:
            return num_finished
        claim = store.jobs.claim("the one that is left", 60.0)
        if claim is None:
            time.sleep(0.01)
            continue
        assert claim.batches == {name: body_of(f"{claim.job} {claim.iteration} {name}") for name in claim.batches}
        key = f"plan {claim.job} {claim.iteration}"
        row = store.jobs.finish(claim, PlanRow(key, f"digest {key}", body_of(key)), body_of(f"summary {key}")[:100])
        assert row is not None
        assert row.state == "planned"
        num_finished += 1


def test_whatever_sqlite_acknowledged_outlives_killed_writers(tmp_path: Path, writers: Writers) -> None:
    database = str(tmp_path / "planner.sqlite3")
    store = SqlStore(database)
    chance = random.Random(1)  # noqa: S311 - moments to kill at
    for seed in range(NUM_KILLS):
        writer = writers.start(database, seed)
        writers.wait_for("report", ANSWER_S)
        time.sleep(chance.uniform(0.0, 0.3))
        writers.kill(writer)
        began_at = time.monotonic()
        store.jobs.put(JobRow(f"after {seed}", b"{}"))
        assert time.monotonic() - began_at < 2.0
        everything_told_is_there(store, writers.told[-200:])
        finish_what_was_left(store)
    again = SqlStore(database)
    assert everything_told_is_there(again, writers.told) > 5 * NUM_KILLS
    nothing_is_half_there(again)
    assert len([told for told in writers.told if told[0] == "ended"]) == NUM_KILLS
    assert ["unavailable"] not in writers.told
    again.close()
    store.close()
    connection = sqlite3.connect(database)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
    connection.close()


def kill_a_backend(server: PostgresServer, name: str) -> None:
    """Kill the process of one connection, whereupon the server ends all of them and recovers."""
    with psycopg.connect(server.conninfo("postgres"), autocommit=True, connect_timeout=5) as connection:
        found = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = %s AND application_name = 'hydraulis-planner'", (name,)
        ).fetchone()
    assert found is not None
    os.kill(found[0], signal.SIGKILL)


def crash_and_start(server: PostgresServer, _name: str) -> None:
    """Stop the server as ``pg_ctl stop -m immediate`` does, and start it again."""
    server.stop()
    time.sleep(0.2)
    server.start()


def cut(server: PostgresServer, name: str) -> None:
    assert server.cut_all_connections(name) > 0


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(None, id="writer killed"),
        pytest.param(cut, id="connections cut"),
        pytest.param(kill_a_backend, id="backend killed"),
        pytest.param(crash_and_start, id="server crashed"),
    ],
)
def test_whatever_postgresql_acknowledged_outlives_crashes(
    postgres_server: PostgresServer, writers: Writers, harm: Callable[[PostgresServer, str], None] | None
) -> None:
    url = postgres_server.new_database()
    store = SqlStore(url)
    chance = random.Random(2)  # noqa: S311 - moments to kill at
    for seed in range(3):
        writer = writers.start(url, seed)
        writers.wait_for("report", ANSWER_S)
        time.sleep(chance.uniform(0.0, 0.3))
        if harm is not None:
            harm(postgres_server, database_name(url))
            # The writer goes on by itself, without being started again.
            writers.wait_for("audit", BACK_WITHIN_S)
            writers.wait_for("audit", BACK_WITHIN_S)
        writers.kill(writer)
        works_again(store, f"after {seed}")
        everything_told_is_there(store, writers.told[-200:])
        finish_what_was_left(store)
    again = SqlStore(url)
    assert everything_told_is_there(again, writers.told) > 15
    nothing_is_half_there(again)
    again.close()
    store.close()


def works_again(store: Store, name: str) -> None:
    ends_at = time.monotonic() + BACK_WITHIN_S
    while True:
        try:
            store.jobs.put(JobRow(name, b"{}"))
        except StoreUnavailable:
            assert time.monotonic() < ends_at
            time.sleep(0.05)
        else:
            return
