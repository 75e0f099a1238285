"""Turns of tenants: fair, in order, and nobody is lost."""

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from planner_service.pool.turns import Turns

TENANTS = st.sampled_from(["a", "b", "c"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), TENANTS),
        st.tuples(st.just("next"), st.just("")),
        st.tuples(st.just("leave"), TENANTS),
        st.tuples(st.just("give up"), TENANTS),
        st.tuples(st.just("make room"), TENANTS),
    ),
    max_size=60,
)


class Modelled:
    """Turns beside a plain list of who waits, in the order they came."""

    def __init__(self) -> None:
        self.turns: Turns[int] = Turns()
        self.waiting: list[tuple[str, asyncio.Future[int]]] = []

    def of(self, tenant: str) -> "list[asyncio.Future[int]]":
        return [turn for name, turn in self.waiting if name == tenant]

    def remove(self, gone: "asyncio.Future[int]") -> str:
        (tenant,) = [name for name, turn in self.waiting if turn is gone]
        self.waiting = [entry for entry in self.waiting if entry[1] is not gone]
        return tenant

    def join(self, tenant: str) -> None:
        self.waiting.append((tenant, self.turns.join(tenant)))

    def next(self) -> None:
        turn = self.turns.next()
        assert (turn is None) == (not self.waiting)  # 1
        if turn is None:
            return
        tenant = self.tenant_of(turn)
        assert turn is self.of(tenant)[0]  # 2
        self.remove(turn)

    def tenant_of(self, turn: "asyncio.Future[int]") -> str:
        (tenant,) = [name for name, other in self.waiting if other is turn]
        return tenant

    def leave(self, tenant: str) -> None:
        for turn in self.of(tenant)[-1:]:
            self.turns.leave(tenant, turn)
            self.turns.leave(tenant, turn)
            self.remove(turn)

    def give_up(self, tenant: str) -> None:
        """Cancel without leaving, as a caller does whose task was cancelled before it ran again."""
        for turn in self.of(tenant)[:1]:
            turn.cancel()
            self.remove(turn)

    def make_room(self, tenant: str) -> None:
        counts = Counter(name for name, turn in self.waiting)
        gone = self.turns.make_room(tenant)
        if gone is None or gone.cancelled():
            return
        loser = self.tenant_of(gone)
        assert counts[loser] == max(counts.values())  # 4
        assert gone is self.of(loser)[-1]
        self.remove(gone)


@given(STEPS)
def test_nobody_is_lost_and_nobody_is_served_twice(steps: list[tuple[str, str]]) -> None:
    """
    1. Somebody is served exactly if somebody waits.
    2. A tenant's own requests are served in the order they came.
    3. Whoever cancelled or left is never served.
    4. Room is made by the last request of one who has most waiting.
    5. At the end everybody who waits is handed out, once.
    """

    async def run() -> None:
        modelled = Modelled()
        for kind, tenant in steps:
            match kind:
                case "join":
                    modelled.join(tenant)
                case "next":
                    modelled.next()
                case "leave":
                    modelled.leave(tenant)
                case "give up":
                    modelled.give_up(tenant)
                case _:
                    without_given_up = len(modelled.turns) == len(modelled.waiting)
                    if without_given_up:
                        modelled.make_room(tenant)
        drained = modelled.turns.drain()
        assert sorted(map(id, drained)) == sorted(id(turn) for _, turn in modelled.waiting)  # 3, 5
        assert len(modelled.turns) == 0

    asyncio.run(run())


@given(st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 30), min_size=1))
def test_while_several_wait_nobody_is_served_twice_before_another_is_served_once(waiting: dict[str, int]) -> None:
    async def run() -> None:
        turns: Turns[int] = Turns()
        tenant_of = {turns.join(tenant): tenant for tenant, num in waiting.items() for _ in range(num)}
        served: Counter[str] = Counter()
        while (turn := turns.next()) is not None:
            served[tenant_of[turn]] += 1
            left = [tenant for tenant, num in waiting.items() if served[tenant] < num]
            if left:
                assert max(served.values()) - min(served[tenant] for tenant in left) <= 1
        assert served == waiting

    asyncio.run(run())


def test_room_is_made_by_those_who_have_at_least_two_more_waiting() -> None:
    async def run() -> None:
        turns: Turns[int] = Turns()
        assert turns.make_room("b") is None
        first, second = turns.join("a"), turns.join("a")
        assert turns.make_room("a") is None
        assert turns.make_room("b") is second
        assert turns.make_room("b") is None
        assert turns.next() is first

    asyncio.run(run())
