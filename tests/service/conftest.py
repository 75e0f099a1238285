"""Servers that tests talk to."""

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from served_planner import ServedPlanner, servers


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., ServedPlanner]]:
    """Start servers that listen on free ports; what still runs at the end of the test is killed."""
    with servers(tmp_path) as start:
        yield start


@pytest.fixture(scope="session")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPlanner]:
    """One server that tests share; they must leave it as they find it."""
    with servers(tmp_path_factory.mktemp("planner")) as start:
        yield start("--workers", "2")


@pytest.fixture
def http(planner: ServedPlanner) -> Iterator[httpx.Client]:
    """Raw HTTP to the shared server."""
    with httpx.Client(base_url=planner.url, timeout=30.0) as client:
        yield client
