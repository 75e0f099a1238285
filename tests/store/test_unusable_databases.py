"""Databases that stop being usable: what is told, how soon, and that they work again by themselves."""

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from postgres import PostgresServer, database_name
from sqlalchemy import text

from planner_service.store import (
    AuditRow,
    Claim,
    JobRow,
    NodeRow,
    PlanRow,
    ProfileRow,
    ReportTerms,
    SqlStore,
    Store,
    StoreUnavailable,
    TokenRow,
)
from planner_service.store.sql import StoreLimits

SOON = StoreLimits(wait_s=0.5, statement_s=1.0, answer_s=1.5)
"""What these tests wait for takes this long."""

RETRIES_S = 2.0
"""What comes on top of the limits: pauses between attempts, a slow machine."""

TERMS = ReportTerms(num_expected=1, wait_s=60.0, max_open=10)
CLAIM = Claim("job", 0, "me", b"{}", {}, is_overdue=False, num_tries=1, number=1)
PLAN = PlanRow("sha256:k", "sha256:d", b"{}")

CHANGES: dict[str, Callable[[Store], object]] = {
    "profiles.put": lambda store: store.profiles.put(ProfileRow("p", b"{}", "sha256:p")),
    "profiles.delete": lambda store: store.profiles.delete("p"),
    "plans.put": lambda store: store.plans.put(PlanRow("sha256:other", "sha256:d", b"{}")),
    "plans.delete": lambda store: store.plans.delete("sha256:d"),
    "jobs.put": lambda store: store.jobs.put(JobRow("other", b"{}")),
    "jobs.report": lambda store: store.jobs.report("job", 1, {"a": b"1"}, TERMS),
    "jobs.claim": lambda store: store.jobs.claim("me", 60.0),
    "jobs.give_up_late": lambda store: store.jobs.give_up_late(b"{}"),
    "jobs.renew": lambda store: store.jobs.renew(CLAIM, 60.0),
    "jobs.give_back": lambda store: store.jobs.give_back(CLAIM),
    "jobs.finish": lambda store: store.jobs.finish(CLAIM, PLAN, b"{}"),
    "jobs.fail": lambda store: store.jobs.fail(CLAIM, b"{}"),
    "jobs.put_timings": lambda store: store.jobs.put_timings("job", 0, "k", b"{}", 1.0),
    "learning.advance": lambda store: store.learning.advance("job", 0, b"{}"),
    "nodes.put": lambda store: store.nodes.put(NodeRow("n", b"{}")),
    "access.put_token": lambda store: store.access.put_token(TokenRow("t", "1" * 64, "read", None)),
    "access.delete_token": lambda store: store.access.delete_token("t"),
    "access.record": lambda store: store.access.record(AuditRow(None, "a", "s", "done")),
    "prune": lambda store: store.prune(keep_iterations_s=-1.0, keep_plans_s=-1.0),
    "jobs.delete": lambda store: store.jobs.delete("job"),
}
LOOKS: dict[str, Callable[[Store], object]] = {
    "profiles.get": lambda store: store.profiles.get("p"),
    "profiles.all": lambda store: store.profiles.all(),
    "plans.of_request": lambda store: store.plans.of_request("sha256:k"),
    "plans.with_digest": lambda store: store.plans.with_digest("sha256:d"),
    "plans.page": lambda store: store.plans.page(after=0, limit=1),
    "jobs.get": lambda store: store.jobs.get("job"),
    "jobs.page": lambda store: store.jobs.page(after="", limit=1),
    "jobs.counts": lambda store: store.jobs.counts("job"),
    "jobs.counts_of": lambda store: store.jobs.counts_of(["job"]),
    "jobs.iteration": lambda store: store.jobs.iteration("job", 0),
    "jobs.iterations": lambda store: store.jobs.iterations("job", after=None, limit=1),
    "jobs.sources": lambda store: store.jobs.sources("job", 0),
    "jobs.next_due_at": lambda store: store.jobs.next_due_at(),
    "jobs.next_late_at": lambda store: store.jobs.next_late_at(),
    "jobs.num_open": lambda store: store.jobs.num_open(),
    "jobs.timings": lambda store: store.jobs.timings("job", 0),
    "learning.state": lambda store: store.learning.state("job"),
    "learning.newest": lambda store: store.learning.newest("job"),
    "learning.version": lambda store: store.learning.version("job", 1),
    "learning.versions": lambda store: store.learning.versions("job", after=None, limit=1),
    "learning.measured": lambda store: store.learning.measured("job", after=0, limit=1),
    "nodes.page": lambda store: store.nodes.page(after="", limit=1),
    "access.token_with_hash": lambda store: store.access.token_with_hash("1" * 64),
    "access.tokens": lambda store: store.access.tokens(),
    "access.audit": lambda store: store.access.audit(after=0, limit=1),
    "check": lambda store: store.check(),
}


def filled(database: str, limits: StoreLimits = SOON) -> SqlStore:
    """Open a store with something in it that is due and something that is old enough to go."""
    store = SqlStore(database, limits=limits)
    store.plans.put(PLAN)
    store.jobs.put(JobRow("job", b"{}"))
    store.jobs.report("job", 0, {"a": b"1"}, TERMS)
    store.jobs.report("job", 7, {"a": b"1"}, replace(TERMS, useful_s=0.0))
    return store


def refused_soon(store: Store, calls: dict[str, Callable[[Store], object]], match: str, within_s: float) -> None:
    for name, call in calls.items():
        began_at = time.monotonic()
        refused: StoreUnavailable | None = None
        try:
            call(store)
        except StoreUnavailable as error:
            refused = error
        assert refused is not None, name
        assert re.search(match, str(refused)), (name, str(refused))
        assert time.monotonic() - began_at < within_s, name


def test_every_method_is_tried_on_databases_that_cannot_be_used() -> None:
    store = SqlStore("sqlite://")
    offered = {
        f"{part}.{name}"
        for part in ("profiles", "plans", "jobs", "learning", "access", "nodes")
        for name in dir(getattr(store, part))
        if not name.startswith("_")
    }
    store.close()
    assert offered | {"prune", "check"} == CHANGES.keys() | LOOKS.keys()


def test_a_file_that_another_process_has_locked_is_told_soon_and_works_when_it_is_free(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = filled(str(path))
    script = (
        "import sqlite3, sys\n"
        "held = sqlite3.connect(sys.argv[1], isolation_level=None)\n"
        "held.execute('BEGIN IMMEDIATE')\n"
        "print('held', flush=True); sys.stdin.readline()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        within_s = 2 * SOON.wait_s + RETRIES_S
        some = {name: CHANGES[name] for name in ("plans.put", "jobs.report", "jobs.claim", "access.record")}
        refused_soon(store, some, r"planner\.sqlite3.*locked.*more than 0\.5 s.*or use PostgreSQL", within_s)
        for look in LOOKS.values():
            look(store)
        holder.stdin.close()
    for change in CHANGES.values():
        change(store)
    store.close()


@contextmanager
def small_disk(directory: Path) -> Iterator[bool]:
    """Mount a file system of one megabyte, and tell whether that is allowed; there is no other harmless full disk."""
    directory.mkdir()
    mount = [shutil.which("mount") or "/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)]
    is_mounted = subprocess.run(mount, check=False, capture_output=True, timeout=10).returncode == 0
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run([shutil.which("umount") or "/bin/umount", "-l", str(directory)], check=True, timeout=10)


def fill_up(store: Store) -> int:
    """Put plans until the store says that it is full; return how many went in."""
    for number in range(1000):
        try:
            store.plans.put(PlanRow(f"sha256:{number}", "sha256:d", os.urandom(20_000)))
        except StoreUnavailable as full:
            assert re.search(r"planner\.sqlite3.*full.*bytes free: make room.*no restart", str(full))  # noqa: PT017 - the loop ends here
            return number
    pytest.fail("a thousand plans went into a database that was to be full")


def plans_are_there(store: Store, num_stored: int) -> None:
    for number in range(num_stored):
        assert store.plans.of_request(f"sha256:{number}") is not None
    assert store.plans.of_request(f"sha256:{num_stored}") is None


def test_a_full_disk_is_told_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "small"
    with small_disk(directory) as is_mounted:
        ballast = directory / "ballast"
        ballast.write_bytes(bytes(300_000))
        store = SqlStore(str(directory / "planner.sqlite3"))
        if not is_mounted:
            # Without leave to mount, SQLite's own bound of a file stands for the disk's.
            set_page_limit(store, 100)
        num_stored = fill_up(store)
        assert num_stored > 0
        plans_are_there(store, num_stored)
        ballast.unlink()
        if not is_mounted:
            set_page_limit(store, 1_000_000)
        store.plans.put(PlanRow("sha256:more", "sha256:d", os.urandom(20_000)))
        store.close()
        again = SqlStore(str(directory / "planner.sqlite3"))
        plans_are_there(again, num_stored)
        assert again.plans.of_request("sha256:more") is not None
        again.close()


def set_page_limit(store: SqlStore, num_pages: int) -> None:
    """Bound a SQLite file; the bound is each connection's own, so it is set on the only one there is yet."""
    with store._database.engine.connect() as connection:
        connection.execute(text(f"PRAGMA max_page_count={num_pages}"))


def test_a_file_that_reached_its_bound_is_told_and_harms_nothing(tmp_path: Path) -> None:
    store = SqlStore(str(tmp_path / "planner.sqlite3"))
    set_page_limit(store, 100)
    num_stored = fill_up(store)
    plans_are_there(store, num_stored)
    store.check()
    store.close()


READ_ONLY = """
import os, sys
from planner_service.store import JobRow, SqlStore, StoreUnavailable
SqlStore("sqlite://").close()
if os.geteuid() == 0:
    # Nothing is read-only to root. Everything was imported above, from where others may not read.
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    SqlStore(sys.argv[1]).jobs.put(JobRow("other", b"{}"))
except StoreUnavailable as refused:
    print("refused", refused)
"""


@pytest.mark.parametrize(
    ("mode", "reason", "remedy"),
    [
        pytest.param(0o777, "readonly", "mend owner, permissions or mount", id="the file alone"),
        pytest.param(0o555, "", "writ", id="the directory, too"),
    ],
)
def test_a_file_that_may_not_be_written_to_is_told_with_the_remedy(mode: int, reason: str, remedy: str) -> None:
    # Others get to this directory, but not to those that pytest makes.
    with tempfile.TemporaryDirectory(prefix="planner-read-only-") as made:
        directory = Path(made)
        path = directory / "planner.sqlite3"
        filled(str(path)).close()
        path.chmod(0o444)
        directory.chmod(mode)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        directory.chmod(0o700)
    assert "refused database" in done.stdout, done.stdout + done.stderr
    assert "planner.sqlite3 cannot be used" in done.stdout
    assert reason in done.stdout
    assert remedy in done.stdout


def test_a_file_replaced_by_garbage_is_told_by_every_method(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = filled(str(path))
    store._database.close()
    path.write_bytes(b"\x00garbage" * 1000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    refused_soon(store, CHANGES | LOOKS, r"planner\.sqlite3.*not a database.*restore a backup", 1.0)
    store.close()


@pytest.mark.parametrize("by", ["nothing", "another"])
def test_a_file_that_is_gone_or_another_one_is_told_by_every_method_and_used_again_when_it_is_back(
    by: str, tmp_path: Path
) -> None:
    path = tmp_path / "planner.sqlite3"
    store = filled(str(path))
    path.rename(tmp_path / "away")
    if by == "another":
        sqlite3.connect(path).close()
        path.touch()
    # SQLite would go on with the file that it has open, and lose all of it with the process.
    refused_soon(store, CHANGES | LOOKS, r"planner\.sqlite3.*deleted, moved or replaced.*put it back", 1.0)
    (tmp_path / "away").rename(path)
    store.jobs.put(JobRow("other", b"{}"))
    store.close()
    again = SqlStore(str(path))
    assert again.jobs.get("other") is not None
    again.close()


def test_a_table_that_is_gone_is_told_by_name(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = filled(str(path))
    connection = sqlite3.connect(path)
    connection.execute("DROP TABLE batches")
    connection.close()
    with pytest.raises(StoreUnavailable, match=r"no such table: batches.*holds a planner database"):
        store.jobs.sources("job", 0)
    store.close()


def test_a_stopped_server_is_told_by_every_method_and_found_again(postgres_server: PostgresServer) -> None:
    store = filled(postgres_server.new_database())
    postgres_server.stop()
    try:
        refused_soon(store, CHANGES | LOOKS, "check that the server runs", 2.0 + RETRIES_S)
    finally:
        postgres_server.start()
    assert store.plans.of_request(PLAN.request_key) == PLAN
    for call in (CHANGES | LOOKS).values():
        call(store)
    store.close()


def test_a_server_that_says_nothing_is_given_up_in_time(postgres_server: PostgresServer) -> None:
    store = filled(postgres_server.new_database())
    postgres_server.signal_all(signal.SIGSTOP)
    try:
        # It is tried anew once its silence is noticed; libpq waits for a connection 2 s at least.
        within_s = SOON.answer_s + 4 * 2.0 + RETRIES_S
        some = {name: (CHANGES | LOOKS)[name] for name in ("plans.of_request", "jobs.report")}
        refused_soon(store, some, "cannot be used", within_s)
    finally:
        postgres_server.signal_all(signal.SIGCONT)
    ends_at = time.monotonic() + 10.0
    while True:
        try:
            assert store.plans.of_request(PLAN.request_key) == PLAN
            break
        except StoreUnavailable:
            assert time.monotonic() < ends_at
            time.sleep(0.1)
    store.close()


def test_cut_connections_are_not_noticed_by_callers(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    store = filled(url)
    for call in (CHANGES | LOOKS).values():
        postgres_server.cut_all_connections(database_name(url))
        call(store)
    store.close()


def test_a_row_that_another_transaction_holds_is_waited_for_a_bounded_time(postgres_server: PostgresServer) -> None:
    url = postgres_server.new_database()
    store = filled(url)
    with psycopg.connect(postgres_server.conninfo(database_name(url))) as holder:
        holder.execute("SELECT number FROM jobs FOR UPDATE")
        some = {name: CHANGES[name] for name in ("jobs.report", "jobs.claim", "jobs.delete")}
        refused_soon(store, some, r"more than 0\.5 s: end it", SOON.wait_s + RETRIES_S)
    assert store.jobs.report("job", 1, {"a": b"1"}, TERMS).state == "due"
    store.close()


@pytest.mark.parametrize(
    ("spoil", "remedy"),
    [
        pytest.param("database", r"name another one|createdb", id="no such database"),
        pytest.param("readonly", "name the primary server", id="read-only"),
        pytest.param("connections", "max_connections; each service needs up to 13", id="too many connections"),
    ],
)
def test_what_a_server_refuses_comes_with_what_to_do(postgres_server: PostgresServer, spoil: str, remedy: str) -> None:
    url = postgres_server.new_database()
    name = database_name(url)
    if spoil == "database":
        url = postgres_server.url("nosuch")
    elif spoil == "readonly":
        SqlStore(url).close()
        postgres_server.execute("postgres", f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    else:
        postgres_server.execute("postgres", "CREATE ROLE guest LOGIN CONNECTION LIMIT 0")
        url = url.replace("planner@", "guest@")
    try:
        with pytest.raises(StoreUnavailable, match=remedy):
            filled(url)
    finally:
        if spoil == "connections":
            postgres_server.execute("postgres", "DROP ROLE guest")
