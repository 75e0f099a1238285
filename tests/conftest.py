"""What tests of several areas share."""

from collections.abc import Iterator

import pytest
from postgres import PostgresServer, running_server


class FailuresAtOnce:
    """Prints each failure when it happens: a run that meets its time limit has no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.terminal.ensure_newline()
            self.terminal.line(f"FAILED {report.nodeid} ({report.when}, after {report.duration:.1f} s)", red=True)
            self.terminal.line(report.longreprtext[-4000:])


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, pytest.TerminalReporter) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(terminal))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server for this run of the tests (with xdist: for this worker), started when first asked for."""
    with running_server() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> str:
    """The URL of an empty PostgreSQL database."""
    return postgres_server.new_database()
