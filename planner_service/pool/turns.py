"""Who comes next for a solver: tenants take turns, and each tenant's own requests are served in order."""

import asyncio
from collections import OrderedDict, deque
from typing import Generic, TypeVar

Given = TypeVar("Given")


class Turns(Generic[Given]):
    """Waiting requests by tenant; used from one event loop."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[asyncio.Future[Given]]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def join(self, tenant: str) -> "asyncio.Future[Given]":
        """Wait at the end of the tenant's own requests; what comes back is done when the turn has come."""
        turn: asyncio.Future[Given] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        return turn

    def leave(self, tenant: str, turn: "asyncio.Future[Given]") -> None:
        """Wait no longer; does nothing if the turn has come."""
        queue = self._waiting.get(tenant)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[tenant]

    def next(self) -> "asyncio.Future[Given] | None":
        """Take the next request out: the first of the tenant that was served longest ago; None if nobody waits."""
        while self._waiting:
            tenant, queue = self._waiting.popitem(last=False)
            turn = queue.popleft()
            if queue:
                self._waiting[tenant] = queue
            if not turn.done():
                return turn
        return None

    def make_room(self, tenant: str) -> "asyncio.Future[Given] | None":
        """Take out the last request of whoever has most waiting, if that is at least two more than this tenant has."""
        longest = max(self._waiting, key=lambda other: len(self._waiting[other]), default=None)
        if longest is None or len(self._waiting[longest]) < len(self._waiting.get(tenant, ())) + 2:
            return None
        return self._waiting[longest].pop()

    def drain(self) -> "list[asyncio.Future[Given]]":
        """Take everybody out."""
        turns = [turn for queue in self._waiting.values() for turn in queue if not turn.done()]
        self._waiting.clear()
        return turns
