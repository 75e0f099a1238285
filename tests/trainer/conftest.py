"""Ranks and servers that tests of the trainer start."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from threads import one_thread

if TYPE_CHECKING:
    from served_planner import ServedPlanner
    from torchrun_runs import TorchrunEnd

__all__ = ["one_thread"]

TESTS = Path(__file__).parents[1]
# Real ranks, real servers and hand-made plans are shared with the tests they come from; spawned ranks inherit the path.
sys.path[:0] = [str(TESTS / name) for name in ("executor", "service", "sequences", "client")]


@pytest.fixture(scope="session")
def planner(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[ServedPlanner]":
    """One server that tests share."""
    from served_planner import servers  # noqa: PLC0415 - found by the path above

    with servers(tmp_path_factory.mktemp("planner")) as start:
        yield start("--workers", "1")


@pytest.fixture(scope="session")
def finished(planner: "ServedPlanner", tmp_path_factory: pytest.TempPathFactory) -> "TorchrunEnd":
    """One run of two ranks under torchrun that ended well."""
    from torchrun_runs import torchrun  # noqa: PLC0415 - beside this file, which pytest finds only now

    end = torchrun(planner.url, tmp_path_factory.mktemp("finished"), "well")
    assert end.exit_code == 0, end.stderr
    return end


@pytest.fixture(scope="session")
def of_ranks(finished: "TorchrunEnd", tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of three ranks saw: of loaders and checkpoints ("groups"), and of whole runs ("trained")."""
    from rank_group import run_ranks  # noqa: PLC0415 - found by the path above
    from trainer_checks import check_all  # noqa: PLC0415 - as above

    folder = tmp_path_factory.mktemp("ranks")
    ends = run_ranks(check_all, 3, folder, finished.folder / "checkpoints", folder)
    assert [end.raised for end in ends] == [None] * 3
    return [end.returned for end in ends]
