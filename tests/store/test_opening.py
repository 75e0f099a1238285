"""Databases that cannot be used, and those of other versions."""

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from postgres import PostgresServer, database_name
from sqlalchemy import create_engine, text

from planner_service.store import JobRow, PlanRow, ProfileRow, SqlStore, StoreUnavailable, database_url
from planner_service.store.sql.tables import METADATA

OLD = Path(__file__).parent / "old_databases"
OLD_PLANS = 4
TABLES = ["profiles", "plans", "jobs", "iterations", "batches", "timings", "tokens", "audit"]
OLD_PROFILES = ["Zwei", "andere", "mine-llama-13b-a800-80g"]


@pytest.mark.parametrize(
    "prepare",
    [
        pytest.param(
            lambda path: path.write_bytes(b"this is no database, whatever its name says" * 100), id="no database"
        ),
        pytest.param(lambda path: path.mkdir(), id="a directory"),
        pytest.param(
            lambda path: sqlite3.connect(path).execute("CREATE TABLE plans (something TEXT)").connection.close(),
            id="tables of another shape",
        ),
    ],
)
def test_a_database_that_cannot_be_used_is_refused_by_name(tmp_path: Path, prepare: Callable[[Path], object]) -> None:
    path = tmp_path / "broken.sqlite3"
    prepare(path)
    with pytest.raises(StoreUnavailable, match=r"broken\.sqlite3.*cannot be used.*or name another one"):
        SqlStore(str(path))


@pytest.mark.parametrize(
    ("database", "message"),
    [
        ("/no/such/directory/planner.sqlite3", "unable to open"),
        ("not a url://", "cannot be read"),
        ("nosuch://host/db", "driver that is not installed"),
        ("mysql://host/db", "SQLite or PostgreSQL"),
        ("postgresql://planner@127.0.0.1:1/db", "cannot be used.*check that the server runs"),
    ],
)
def test_a_database_that_cannot_be_found_is_refused_with_a_remedy(database: str, message: str) -> None:
    with pytest.raises(StoreUnavailable, match=message):
        SqlStore(database)


@pytest.mark.parametrize("database", ["nosuch://planner:secret@host/db", "postgresql://planner:secret@127.0.0.1:1/db"])
def test_a_password_is_not_shown(database: str) -> None:
    with pytest.raises(StoreUnavailable) as refused:
        SqlStore(database)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_a_plain_url_is_enough_for_postgresql(postgres_url: str, scheme: str) -> None:
    url = scheme + postgres_url.removeprefix("postgresql")
    assert database_url(url).drivername == "postgresql+psycopg"
    SqlStore(url).close()


def test_a_store_whose_file_is_ruined_later_says_so(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = SqlStore(str(path))
    store.plans.put(PlanRow("sha256:k", "sha256:d", b"{}"))
    store.close()
    path.write_bytes(b"\x00garbage" * 1000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(StoreUnavailable, match=r"planner\.sqlite3"):
        store.check()


def test_a_full_disk_is_told_and_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = SqlStore(str(path))
    store.plans.put(PlanRow("sha256:k", "sha256:d", b"{}"))
    with store._database.engine.connect() as connection:
        pages = connection.execute(text("PRAGMA page_count")).scalar_one()
        connection.execute(text(f"PRAGMA max_page_count={pages}"))
    with pytest.raises(StoreUnavailable, match="full"):
        store.plans.put(PlanRow("sha256:large", "sha256:d", b"x" * 100_000))
    assert store.plans.of_request("sha256:k") is not None
    assert store.plans.of_request("sha256:large") is None
    store.close()


def load_old(database: str, server: PostgresServer | None, name: str = "version_0_1_0") -> None:
    """Fill a database with what an older version wrote."""
    if server is None:
        connection = sqlite3.connect(database)
        connection.executescript((OLD / f"{name}.sqlite.sql").read_text(encoding="utf-8"))
        connection.close()
    else:
        server.execute(database_name(database), (OLD / f"{name}.postgresql.sql").read_text(encoding="utf-8"))


@pytest.fixture
def old_database(shared_database: str, request: pytest.FixtureRequest) -> str:
    """The name of a database as version 0.1.0 left it, of each kind."""
    is_postgresql = shared_database.startswith("postgresql")
    load_old(shared_database, request.getfixturevalue("postgres_server") if is_postgresql else None)
    return shared_database


def plans_in(database: str) -> list[tuple[int, str, str, bytes]]:
    engine = create_engine(database_url(database))
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT number, request_key, digest, body FROM plans ORDER BY number")).all()
    engine.dispose()
    return [(row[0], row[1], row[2], bytes(row[3])) for row in rows]


def test_a_database_of_version_0_1_0_is_upgraded_with_everything_in_it(old_database: str) -> None:
    before = plans_in(old_database)
    assert len(before) == OLD_PLANS
    store = SqlStore(old_database)
    assert plans_in(old_database) == before
    assert [row.name for row in store.profiles.all()] == OLD_PROFILES
    assert store.profiles.get("Zwei") == ProfileRow("Zwei", b'{"name":"Zwei"}', "sha256:zwei")
    for _, key, digest, body in before:
        assert store.plans.of_request(key) == PlanRow(key, digest, body)
    # They count as stored now: retention does not take them at once.
    assert store.prune(keep_iterations_s=60.0, keep_plans_s=60.0) == 0
    assert store.plans.put(PlanRow("sha256:new", "sha256:n", b"{}")).body == b"{}"
    assert store.plans.page(after=OLD_PLANS, limit=5)[0].number == OLD_PLANS + 1
    store.close()
    SqlStore(old_database).close()


@pytest.fixture
def database_with_jobs(shared_database: str, request: pytest.FixtureRequest) -> str:
    """The name of a database as revision 0002 left it, with jobs, tokens and an audit record, of each kind."""
    is_postgresql = shared_database.startswith("postgresql")
    server = request.getfixturevalue("postgres_server") if is_postgresql else None
    load_old(shared_database, server, "revision_0002")
    return shared_database


def test_a_database_with_jobs_and_tokens_is_upgraded_with_everything_in_it(database_with_jobs: str) -> None:
    engine = create_engine(database_url(database_with_jobs))
    with engine.connect() as connection:
        hashes = list(connection.execute(text("SELECT secret_hash FROM tokens")).scalars())
        counts = {name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in TABLES}  # noqa: S608 - the test's own names
    assert all(counts.values())
    store = SqlStore(database_with_jobs)
    assert difference(database_with_jobs) == []
    for secret_hash in hashes:
        row = store.access.token_with_hash(secret_hash)
        assert row is not None
        assert (row.expires_at, row.is_expired) == (None, False)
    assert len(store.access.tokens()) == len(hashes)
    assert len(store.access.audit(after=0, limit=100)) == counts["audit"]
    with engine.connect() as connection:
        after = {name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one() for name in TABLES}  # noqa: S608
    assert after == counts
    engine.dispose()
    store.close()


def test_migrations_and_tables_agree(shared_database: str) -> None:
    SqlStore(shared_database).close()
    assert difference(shared_database) == []


def test_an_upgraded_database_is_as_a_new_one(old_database: str) -> None:
    SqlStore(old_database).close()
    assert difference(old_database) == []


def difference(database: str) -> list[object]:
    engine = create_engine(database_url(database))
    with engine.connect() as connection:
        options = {"compare_type": True, "compare_server_default": True}
        found: list[object] = compare_metadata(MigrationContext.configure(connection, opts=options), METADATA)
    engine.dispose()
    return found


def test_a_difference_between_migrations_and_tables_is_noticed(tmp_path: Path) -> None:
    path = str(tmp_path / "planner.sqlite3")
    SqlStore(path).close()
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE plans ADD COLUMN surplus TEXT")
    connection.execute("DROP INDEX ix_jobs_turn")
    connection.close()
    assert len(difference(path)) == 2


def test_a_database_of_a_newer_version_is_refused_and_left_alone(shared_database: str) -> None:
    SqlStore(shared_database).close()
    engine = create_engine(database_url(shared_database))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StoreUnavailable, match=r"newer version.*9999.*restore a backup"):
        SqlStore(shared_database)
    with engine.connect() as connection:
        assert connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one() == "9999"
    engine.dispose()


def test_an_upgrade_that_fails_leaves_everything_as_it_was(old_database: str) -> None:
    before = plans_in(old_database)
    engine = create_engine(database_url(old_database))
    with engine.begin() as connection:
        # The last table that the upgrade creates.
        connection.execute(text("CREATE TABLE audit (something TEXT)"))
    with pytest.raises(StoreUnavailable, match="audit"):
        SqlStore(old_database)
    with engine.begin() as connection:
        assert connection.dialect.get_table_names(connection) in (
            ["audit", "plans", "profiles"],
            ["plans", "profiles", "audit"],
        )
        connection.execute(text("DROP TABLE audit"))
    engine.dispose()
    store = SqlStore(old_database)
    assert plans_in(old_database) == before
    store.close()


def test_several_services_open_one_database_at_once(old_database: str) -> None:
    script = (
        "import sys; from planner_service.store import SqlStore, JobRow\n"
        "sys.stdin.readline(); store = SqlStore(sys.argv[1])\n"
        "store.jobs.put(JobRow(sys.argv[2], b'{}')); store.close()\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, old_database, f"job-{number}"], stdin=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(60) for process in processes] == [0] * 4
    for process in processes:
        assert process.stdin is not None
        process.stdin.close()
    store = SqlStore(old_database)
    assert [row.name for row in store.jobs.page(after="", limit=9)] == [f"job-{number}" for number in range(4)]
    store.close()


def test_a_copy_of_a_file_that_is_in_use_is_a_backup(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = SqlStore(str(path))
    store.jobs.put(JobRow("job", b"{}"))
    source, copy = sqlite3.connect(path), sqlite3.connect(tmp_path / "backup.sqlite3")
    source.backup(copy)
    source.close()
    copy.close()
    store.jobs.delete("job")
    store.close()
    shutil.move(tmp_path / "backup.sqlite3", path)
    restored = SqlStore(str(path))
    assert restored.jobs.get("job") is not None
    restored.close()
