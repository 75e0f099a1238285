"""Hosts that tests put processes on."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from threads import one_thread

if TYPE_CHECKING:
    from host_network import HostNetwork

TESTS = Path(__file__).parents[1]
# What is trained, how servers start and how ranks end are shared with the tests they come from.
sys.path[:0] = [str(TESTS / name) for name in ("executor", "service", "sequences", "trainer", "agent")]

__all__ = ["one_thread"]

HOSTS = ("host-0", "host-1", "host-2", "host-3", "planner")


@pytest.fixture
def network() -> "Iterator[HostNetwork]":
    """Four hosts for ranks and one for the planner."""
    from host_network import host_network  # noqa: PLC0415 - beside this file, which pytest finds only now
    from namespaces import require_namespaces  # noqa: PLC0415 - as above

    require_namespaces()
    with host_network(HOSTS) as built:
        yield built
