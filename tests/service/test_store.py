"""The obligations of every store, held by one suite over all back ends."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planner_service.store import PlanRow, ProfileConflict, ProfileRow, SqlStore, Store, StoreUnavailable

OpenStore = Callable[[], Store]


@pytest.fixture(params=["file", "memory"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    opened: list[Store] = []

    def open_one() -> Store:
        if request.param == "memory" and opened:
            return opened[0]
        opened.append(SqlStore(str(tmp_path / "planner.sqlite3") if request.param == "file" else "sqlite://"))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


def plan_row(key: str = "sha256:k", *, digest: str = "sha256:d", body: bytes = b"{}") -> PlanRow:
    return PlanRow(request_key=key, digest=digest, body=body)


def test_what_was_put_is_found_byte_for_byte(open_store: OpenStore) -> None:
    store = open_store()
    body = bytes(range(256)) * 1000
    assert store.put_plan(plan_row(body=body)) == plan_row(body=body)
    assert store.put_profile(ProfileRow("p", b"\x00content", "sha256:s"))
    again = open_store()
    assert again.plan_of_request("sha256:k") == plan_row(body=body)
    assert again.plan_with_digest("sha256:d") == plan_row(body=body)
    assert again.profile("p") == ProfileRow("p", b"\x00content", "sha256:s")
    again.check()


def test_what_was_never_put_is_not_found(open_store: OpenStore) -> None:
    store = open_store()
    assert store.plan_of_request("sha256:k") is None
    assert store.plan_with_digest("sha256:d") is None
    assert store.profile("p") is None
    assert store.profiles() == []


def test_the_first_plan_of_a_request_stays(open_store: OpenStore) -> None:
    store = open_store()
    first = plan_row(body=b"first")
    store.put_plan(first)
    assert store.put_plan(plan_row(digest="sha256:other", body=b"second")) == first
    assert store.plan_of_request("sha256:k") == first
    assert store.plan_with_digest("sha256:other") is None


def test_of_plans_with_one_digest_the_first_is_found(open_store: OpenStore) -> None:
    store = open_store()
    for number in range(5):
        store.put_plan(plan_row(f"sha256:{9 - number}", body=str(number).encode()))
    found = store.plan_with_digest("sha256:d")
    assert found is not None
    assert found.body == b"0"


def test_a_profile_can_be_put_again_but_not_changed(open_store: OpenStore) -> None:
    store = open_store()
    assert store.put_profile(ProfileRow("p", b"one", "sha256:1")) is True
    assert store.put_profile(ProfileRow("p", b"one", "sha256:else")) is False
    assert store.put_profile(ProfileRow("p", b"fitted otherwise", "sha256:1")) is False
    with pytest.raises(ProfileConflict):
        store.put_profile(ProfileRow("p", b"two", "sha256:2"))
    assert store.profile("p") == ProfileRow("p", b"one", "sha256:1")


def test_profiles_are_listed_by_name(open_store: OpenStore) -> None:
    store = open_store()
    for name in ("b", "a", "c"):
        store.put_profile(ProfileRow(name, name.encode(), name))
    assert [row.name for row in store.profiles()] == ["a", "b", "c"]


def test_of_many_writers_at_once_one_wins_and_all_learn_who(open_store: OpenStore) -> None:
    num_writers = 8
    stores = [open_store() for _ in range(num_writers)]
    barrier = threading.Barrier(num_writers, timeout=20)

    def write(number: int) -> bytes:
        barrier.wait()
        return stores[number].put_plan(plan_row(digest=f"sha256:{number}", body=str(number).encode())).body

    with ThreadPoolExecutor(num_writers) as threads:
        told = set(threads.map(write, range(num_writers)))
    stored = stores[0].plan_of_request("sha256:k")
    assert stored is not None
    assert told == {stored.body}


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
    ],
)
def test_a_database_that_cannot_be_found_is_refused_with_a_remedy(database: str, message: str) -> None:
    with pytest.raises(StoreUnavailable, match=message):
        SqlStore(database)


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreUnavailable) as refused:
        SqlStore("nosuch://planner:secret@host/db")
    assert "secret" not in str(refused.value)


def test_a_store_whose_file_is_ruined_later_says_so(tmp_path: Path) -> None:
    path = tmp_path / "planner.sqlite3"
    store = SqlStore(str(path))
    store.put_plan(plan_row())
    store.close()
    path.write_bytes(b"\x00garbage" * 1000)
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    with pytest.raises(StoreUnavailable, match=r"planner\.sqlite3"):
        store.check()
