"""Servers in processes of their own, and a receiver for their traces."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from otlp_receiver import OtlpReceiver, receiving

if TYPE_CHECKING:
    from served_planner import ServedPlanner

sys.path.append(str(Path(__file__).parents[1] / "service"))


@pytest.fixture
def serve(tmp_path: Path) -> "Iterator[Callable[..., ServedPlanner]]":
    """Start servers that listen on free ports; what still runs at the end of the test is killed."""
    from served_planner import servers  # noqa: PLC0415 - found by the path above

    with servers(tmp_path) as start:
        yield start


@pytest.fixture
def receiver() -> Iterator[OtlpReceiver]:
    """A receiver of traces that takes everything."""
    with receiving() as started:
        yield started
