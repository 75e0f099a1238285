"""What tests call the fixtures' functions by."""

from collections.abc import Callable

from planner_service.store import Store

OpenStore = Callable[[], Store]
