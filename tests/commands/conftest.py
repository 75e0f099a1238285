"""A planner with a little of everything, one with nothing, and one that asks for tokens."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from command_line import hydraulis
from contents import fill

sys.path += [str(Path(__file__).parents[1] / "service"), str(Path(__file__).parents[1] / "client")]


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HYDRAULIS_URL", "HYDRAULIS_TOKEN", "HYDRAULIS_CA_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a planner that tests share; what they do not make themselves they leave as it is."""
    from served_planner import servers  # noqa: PLC0415 - found by the path above

    with servers(tmp_path_factory.mktemp("filled")) as start:
        url = start("--workers", "1").url
        fill(url)
        yield url


@pytest.fixture
def planner(filled: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """That planner, named by the environment."""
    monkeypatch.setenv("HYDRAULIS_URL", filled)
    return filled


@pytest.fixture(scope="session")
def empty_planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a planner that nobody has asked for anything."""
    from served_planner import servers  # noqa: PLC0415 - found by the path above

    with servers(tmp_path_factory.mktemp("empty")) as start:
        yield start("--workers", "1").url


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[tuple[str, Callable[..., str]]]":
    """Address of a planner that asks for tokens, and what gives one by scope and jobs."""
    from served_planner import servers  # noqa: PLC0415 - found by the path above

    directory = tmp_path_factory.mktemp("guarded")
    database = directory / "planner.sqlite3"
    names = iter(range(1000))

    def give(scope: str, *jobs: str) -> str:
        wanted = [part for job in jobs for part in ("--job", job)]
        given = hydraulis(
            "tokens", "create", f"t-{next(names)}", "--scope", scope, *wanted, "--database", str(database)
        )
        assert given.code == 0, given.err
        return given.out.strip()

    with servers(directory) as start:
        yield start("--workers", "1", "--auth", "tokens", database=database).url, give
