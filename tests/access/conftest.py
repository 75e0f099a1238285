"""Apps that ask for tokens, and servers in processes of their own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from asked_app import AskedApp, Tokens, app_on

from planner_service.store import SqlStore

if TYPE_CHECKING:
    from served_planner import ServedPlanner

sys.path.append(str(Path(__file__).parents[1] / "service"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = SqlStore(str(tmp_path / "planner.sqlite3"))
    yield opened
    opened.close()


@pytest.fixture
def asked(store: SqlStore) -> AskedApp:
    """An app that asks for tokens; its solvers are not started."""
    return AskedApp(app_on(store), Tokens(store.access))


@pytest.fixture
def open_app(store: SqlStore) -> AskedApp:
    """An app on loopback with default settings."""
    return AskedApp(app_on(store, auth="auto"), Tokens(store.access))


@pytest.fixture
def serve(tmp_path: Path) -> "Iterator[Callable[..., ServedPlanner]]":
    """Start servers that listen on free ports; what still runs at the end of the test is killed."""
    from served_planner import servers  # noqa: PLC0415 - found by the path above

    with servers(tmp_path) as start:
        yield start
