"""Tokens by their secrets, remembered for a few seconds."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from planner_service.access.secret import hash_of
from planner_service.store.access_store import AccessStore, TokenRow

REMEMBERED_S = 5.0
"""A token that is taken back by another process is good for this much longer at most."""

MAX_REMEMBERED = 4096
MAX_REMEMBERED_UNKNOWN = 1024
"""Unknown tokens have a memory of their own, so that whoever tries many does not push out those in use."""


@dataclass(frozen=True)
class _Entry:
    row: TokenRow | None
    good_until: float


class TokenLookup:
    """Finds tokens; used from one event loop.

    Parameters
    ----------
    store
        Where tokens are kept.
    clock
        Seconds, never going back.
    """

    def __init__(self, store: AccessStore, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[str, _Entry] = OrderedDict()
        self._unknown: OrderedDict[str, _Entry] = OrderedDict()
        self._asking: dict[str, asyncio.Task[TokenRow | None]] = {}
        self._num_forgotten = 0

    async def find(self, secret: str) -> TokenRow | None:
        """Return the token with this secret as it was at most `REMEMBERED_S` ago, or None.

        A token that expires does so at its time, however lately it was looked up.

        Raises
        ------
        StoreUnavailable
            If it is not remembered and the store cannot be read.
        """
        key = hash_of(secret)
        entry = self._known.get(key) or self._unknown.get(key)
        if entry is not None and self._clock() < entry.good_until:
            return entry.row
        asking = self._asking.get(key)
        if asking is None:
            asking = asyncio.ensure_future(self._ask(key))
            self._asking[key] = asking
            asking.add_done_callback(lambda done: self._answered(key, done))
        # Shielded: others wait for the same answer, and one of them leaving must not take it from the rest.
        return await asyncio.shield(asking)

    def forget(self) -> None:
        """Remember nothing: a token was given or taken back here, which holds at once."""
        self._num_forgotten += 1
        self._known.clear()
        self._unknown.clear()
        self._asking.clear()

    async def _ask(self, key: str) -> TokenRow | None:
        # Counted from before the question: the answer may be as old as that.
        asked_at, generation = self._clock(), self._num_forgotten
        row = await asyncio.to_thread(self._store.token_with_hash, key)
        if generation == self._num_forgotten:
            left_s = None if row is None or row.is_expired else row.left_s
            self._remember(key, _Entry(row, asked_at + (REMEMBERED_S if left_s is None else min(REMEMBERED_S, left_s))))
        return row

    def _remember(self, key: str, entry: _Entry) -> None:
        self._known.pop(key, None)
        self._unknown.pop(key, None)
        memory, limit = (self._unknown, MAX_REMEMBERED_UNKNOWN) if entry.row is None else (self._known, MAX_REMEMBERED)
        memory[key] = entry
        if len(memory) > limit:
            memory.popitem(last=False)

    def _answered(self, key: str, done: "asyncio.Task[TokenRow | None]") -> None:
        if self._asking.get(key) is done:
            del self._asking[key]
        if not done.cancelled():
            # Whoever waited has the error; nobody may be left, and then it is of no interest.
            done.exception()
