"""The commands of docs/storage.md for backups, run as they stand there while somebody writes."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from postgres import PostgresServer, database_name

from planner_service.store import PlanRow, SqlStore

STORAGE = Path(__file__).parent.parent.parent / "docs" / "storage.md"


def documented(beginning: str) -> str:
    """Return the one command of the page that begins so."""
    [command] = [
        line.removeprefix("$ ") for line in STORAGE.read_text().splitlines() if line.startswith(f"$ {beginning}")
    ]
    return command


def run(command: str, directory: Path, **variables: str) -> None:
    finished = subprocess.run(
        ["/bin/sh", "-ec", command],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr


@contextmanager
def plans_being_stored(store: SqlStore) -> Iterator[list[PlanRow]]:
    """Store plans all the while, those of the list before anything else happens."""
    first = [PlanRow(f"sha256:{number}", f"sha256:d{number}", os.urandom(3000)) for number in range(50)]
    for row in first:
        store.plans.put(row)
    is_over = threading.Event()

    def go_on() -> None:
        number = len(first)
        while not is_over.is_set():
            store.plans.put(PlanRow(f"sha256:{number}", f"sha256:d{number}", os.urandom(3000)))
            number += 1

    writing = threading.Thread(target=go_on, daemon=True)
    writing.start()
    try:
        yield first
    finally:
        is_over.set()
        writing.join(30)
    assert not writing.is_alive()


def assert_holds(database: str, rows: list[PlanRow]) -> None:
    restored = SqlStore(database)
    for row in rows:
        assert restored.plans.of_request(row.request_key) == row
    last = restored.plans.page(after=0, limit=100_000)[-1]
    # Numbers go on behind those that were given.
    restored.plans.put(PlanRow("sha256:later", "sha256:d-later", b"{}"))
    [later] = restored.plans.page(after=last.number, limit=10)
    assert later.digest == "sha256:d-later"
    restored.close()


def sqlite_tools() -> list[str]:
    """Return how the documented commands begin whose program is here; Python's always is."""
    return ["python3 -c", *(["sqlite3"] if shutil.which("sqlite3") else [])]


@pytest.mark.parametrize("tool", sqlite_tools())
def test_a_file_is_backed_up_while_it_is_written_and_restored(tmp_path: Path, tool: str) -> None:
    (tmp_path / "var/lib/hydraulis").mkdir(parents=True)
    (tmp_path / "var/backups").mkdir()
    path = tmp_path / "var/lib/hydraulis/planner.sqlite3"
    store = SqlStore(str(path))
    with plans_being_stored(store) as rows:
        run(documented(tool).replace("/var/", f"{tmp_path}/var/").replace("python3", sys.executable), tmp_path)
    store.close()
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).write_bytes(b"left by a crash")
    steps = [documented(beginning) for beginning in ("cd /var/lib", "mkdir damaged", "cp /var/backups")]
    run("\n".join(steps).replace("/var/", f"{tmp_path}/var/"), tmp_path)
    assert_holds(str(path), rows)


def test_a_postgresql_database_is_dumped_while_it_is_written_and_restored(
    postgres_server: PostgresServer, tmp_path: Path
) -> None:
    url = postgres_server.new_database()
    here = url.replace(database_name(url), "{}")
    store = SqlStore(url)
    with plans_being_stored(store) as rows:
        run(documented("pg_dump"), tmp_path, HYDRAULIS_DATABASE=url)
    store.close()
    server, restored = here.format("postgres"), here.format("restored")
    run(documented("createdb"), tmp_path, SERVER=server)
    run(documented("pg_restore"), tmp_path, RESTORED=restored)
    assert_holds(restored, rows)
