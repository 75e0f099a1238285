"""What the service remembers of tokens, and for how long."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from planner_service.access import TokenLookup, hash_of, new_secret
from planner_service.access import lookup as lookup_module
from planner_service.store import StoreUnavailable, TokenRow


class CountedTokens:
    """Tokens in memory, counting questions; a question takes a moment."""

    def __init__(self) -> None:
        self.rows: dict[str, TokenRow] = {}
        self.num_asked = 0
        self.takes_s = 0.0
        self.is_lost = False

    def give(self, name: str) -> str:
        secret = new_secret()
        self.rows[hash_of(secret)] = TokenRow(name, hash_of(secret), "read", None)
        return secret

    def token_with_hash(self, secret_hash: str) -> TokenRow | None:
        self.num_asked += 1
        found = self.rows.get(secret_hash)
        time.sleep(self.takes_s)
        if self.is_lost:
            raise StoreUnavailable("gone")
        return found


class Clock:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def tokens() -> CountedTokens:
    return CountedTokens()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def looked_up(tokens: CountedTokens, clock: Clock) -> Iterator[TokenLookup]:
    return TokenLookup(tokens, clock=clock)  # type: ignore[arg-type, return-value]  # the one method it calls


def test_a_revoked_token_stops_within_five_seconds(tokens: CountedTokens, clock: Clock, looked_up: TokenLookup) -> None:
    secret = tokens.give("a")

    async def run() -> None:
        assert await looked_up.find(secret) is not None
        tokens.rows.clear()
        clock.now_s += 4.99
        assert await looked_up.find(secret) is not None
        clock.now_s += 0.01
        assert await looked_up.find(secret) is None

    asyncio.run(run())


def test_the_five_seconds_begin_before_the_question(
    tokens: CountedTokens, clock: Clock, looked_up: TokenLookup
) -> None:
    secret = tokens.give("a")
    tokens.takes_s = 0.2

    async def run() -> None:
        asking = asyncio.ensure_future(looked_up.find(secret))
        await asyncio.sleep(0.05)
        tokens.rows.clear()
        clock.now_s += 5.0
        assert await asking is not None
        assert await looked_up.find(secret) is None

    asyncio.run(run())


def test_what_is_revoked_here_stops_at_once_even_while_it_is_asked_for(
    tokens: CountedTokens, looked_up: TokenLookup
) -> None:
    secret = tokens.give("a")
    tokens.takes_s = 0.2

    async def run() -> None:
        asking = asyncio.ensure_future(looked_up.find(secret))
        await asyncio.sleep(0.05)
        tokens.rows.clear()
        looked_up.forget()
        assert await looked_up.find(secret) is None
        await asking
        assert await looked_up.find(secret) is None

    asyncio.run(run())


def test_many_at_once_ask_the_store_once_and_one_that_leaves_takes_nothing_from_the_rest(
    tokens: CountedTokens, looked_up: TokenLookup
) -> None:
    secret = tokens.give("a")
    tokens.takes_s = 0.1

    async def run() -> None:
        asking = [asyncio.ensure_future(looked_up.find(secret)) for _ in range(200)]
        await asyncio.sleep(0.02)
        asking[0].cancel()
        found = await asyncio.gather(*asking, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert {row.name for row in found[1:] if isinstance(row, TokenRow)} == {"a"}

    asyncio.run(run())
    assert tokens.num_asked == 1


def test_a_lost_store_is_asked_again_by_the_next_caller(tokens: CountedTokens, looked_up: TokenLookup) -> None:
    secret = tokens.give("a")
    tokens.is_lost = True

    async def run() -> None:
        with pytest.raises(StoreUnavailable):
            await looked_up.find(secret)
        tokens.is_lost = False
        assert await looked_up.find(secret) is not None

    asyncio.run(run())


def test_memory_is_bounded_and_guesses_do_not_push_out_tokens_in_use(
    tokens: CountedTokens, looked_up: TokenLookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lookup_module, "MAX_REMEMBERED", 10)
    monkeypatch.setattr(lookup_module, "MAX_REMEMBERED_UNKNOWN", 5)
    used = [tokens.give(str(number)) for number in range(30)]

    async def run() -> None:
        for secret in used:
            await looked_up.find(secret)
        for _ in range(50):
            await looked_up.find(new_secret())
        tokens.num_asked = 0
        for secret in used[-10:]:
            await looked_up.find(secret)
        assert tokens.num_asked == 0
        await looked_up.find(used[0])
        assert tokens.num_asked == 1

    asyncio.run(run())
    assert (len(looked_up._known), len(looked_up._unknown), len(looked_up._asking)) == (10, 5, 0)


@pytest.mark.bench
def test_a_remembered_token_costs_next_to_nothing(tokens: CountedTokens, looked_up: TokenLookup) -> None:
    secret = tokens.give("a")

    async def run() -> float:
        await looked_up.find(secret)
        began = time.perf_counter()
        for _ in range(2000):
            await looked_up.find(secret)
        return (time.perf_counter() - began) / 2000

    took_s = asyncio.run(run())
    print(f"a remembered token: {took_s * 1e6:.1f} us")  # noqa: T201 - a measurement's result
    assert tokens.num_asked == 1
    assert took_s < 0.0002
