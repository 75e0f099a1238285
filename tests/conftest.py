"""What tests of several areas share."""

from collections.abc import Iterator

import pytest
from postgres import PostgresServer, running_server


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for this run of the tests (with xdist: for this worker), started when first asked for."""
    with running_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty PostgreSQL database."""
    return postgres_server.new_database()
