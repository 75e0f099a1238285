"""Stores of every kind that the obligations are held against."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from store_kinds import OpenStore

from planner_service.store import SqlStore, Store


def _database(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    if kind == "postgresql":
        url: str = request.getfixturevalue("postgres_server").new_database()
        return url
    return str(tmp_path / "planner.sqlite3")


@pytest.fixture(params=["file", "memory", "postgresql"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    """Open stores on one database of each kind; where nothing is shared but memory it is the same one."""
    opened: list[Store] = []
    is_memory = request.param == "memory"
    database = "sqlite://" if is_memory else _database(request, request.param, tmp_path)

    def open_one() -> Store:
        if is_memory and opened:
            return opened[0]
        opened.append(SqlStore(database))
        return opened[-1]

    yield open_one
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: OpenStore) -> Store:
    """One store of each kind."""
    return open_store()


@pytest.fixture(params=["file", "postgresql"])
def shared_database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The name of an empty database of each kind that several processes can share."""
    return _database(request, request.param, tmp_path)
