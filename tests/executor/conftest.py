import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from threads import one_thread

if TYPE_CHECKING:
    from scenarios import Report

__all__ = ["one_thread"]

# Plans made by hand are shared with the tests of their resolution; spawned ranks inherit the path.
sys.path.insert(0, str(Path(__file__).parents[1] / "sequences"))


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


Launch = list[tuple[dict[str, "Report"], dict[str, tuple[str, str]]]]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> "Launch":
    """One launch of real ranks runs every scenario, because starting them takes longer than most."""
    from launched import OFFERS, SCENARIOS, WORLD_SIZE  # noqa: PLC0415 - the path is extended above
    from rank_group import run_ranks  # noqa: PLC0415
    from scenarios import run_and_share  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("four_ranks")
    ends = run_ranks(run_and_share, WORLD_SIZE, folder, SCENARIOS, OFFERS, 1, limit_s=280.0)
    assert [end.raised for end in ends] == [None] * WORLD_SIZE, "\n".join(end.raised or "" for end in ends)
    return [end.returned for end in ends]


@pytest.fixture(scope="session")
def reports(launch: "Launch") -> dict[str, list["Report"]]:
    """What the ranks report, by scenario."""
    return {name: [by_name[name] for by_name, _ in launch] for name in launch[0][0]}
