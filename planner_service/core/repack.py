"""Packing for the simulated time itself, from a packing for the closed form.

The closed form charges a pipeline's bubble at the largest micro-batch. What runs pays for filling the pipeline at the
first micro-batches and for draining it at the last, so small ones there and large ones between are faster than even
ones, although their closed form is no better. This search starts from the packing and order that the closed form gave
and lowers the simulated time, while the closed form stays within a limit. With the plan's makespan as the limit, gaps,
which speak of the closed form, stay as they are; with one or two percent more, several times as much is gained.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner_service.core.cost import replica_ms
from planner_service.core.order import LEAST_GAIN, best_order
from planner_service.core.pack import Packing, packing_of
from planner_service.core.problem import ReplicaKind
from planner_service.core.simulate import simulate_1f1b

MOST_STEPS = 150
"""Packings simulated for one replica in one round: 2 to 5 ms."""

MEMORY_STEPS = 10
"""A step is taken if it is no slower than what was held this many simulated steps before (late acceptance)."""

MOST_ROUNDS = 4
"""How often a replica is repacked while it is the slowest: with other draws, from what the time before gave."""

NOT_ORDERED = -1
"""Rounds of a replica of which only the closed form is known."""

ROUNDING = 1 + 1e-12
"""Share over a limit that sums of floating-point numbers in another order may come out at."""


class _Draws:
    """Numbers that look random and are the same everywhere: Knuth's 64-bit linear congruential generator."""

    def __init__(self, seed: int) -> None:
        self._state = seed

    def below(self, bound: int) -> int:
        """Draw from 0 to ``bound - 1``."""
        self._state = (self._state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self._state >> 33) * bound >> 31


@dataclass(frozen=True, slots=True)
class _Trial:
    """Micro-batches in the order they run, with their times in ms."""

    micro_batches: tuple[tuple[int, ...], ...]
    times_ms: tuple[float, ...]


class _Steps:
    """Draws neighbours of a packing: an item moves, changes places or starts a micro-batch; one changes its turn."""

    def __init__(
        self, kind: ReplicaKind, costs_ms: Sequence[float], tokens: Sequence[int], *, keep_count: bool, seed: int
    ) -> None:
        self._kind = kind
        self._costs_ms = costs_ms
        self._tokens = tokens
        self._keep_count = keep_count
        self._draws = _Draws(seed)

    def neighbour(self, trial: _Trial) -> _Trial | None:
        """Draw a step; None if it breaks a rule or changes nothing."""
        count = len(trial.times_ms)
        draw = self._draws.below
        which, one, other = draw(20), draw(count), draw(count)
        if which < 8:
            return None if one == other else self._moved(trial, one, other)
        if which < 15:
            return None if one == other else self._exchanged(trial, one, other)
        if which < 17:
            return None if self._keep_count else self._split(trial, one, draw(count + 1))
        return None if one == other else self._turned(trial, one, other)

    def _changed(self, trial: _Trial, changes: dict[int, tuple[int, ...]]) -> _Trial | None:
        """Replace the contents of some micro-batches; an emptied one goes."""
        micro_batches, times = list(trial.micro_batches), list(trial.times_ms)
        for index, items in changes.items():
            if sum(self._tokens[item] for item in items) > self._kind.max_tokens or (not items and self._keep_count):
                return None
            micro_batches[index] = items
            times[index] = self._kind.c + math.fsum(self._costs_ms[item] for item in items)
        kept = [index for index, items in enumerate(micro_batches) if items]
        return _Trial(tuple(micro_batches[index] for index in kept), tuple(times[index] for index in kept))

    def _without_one(self, items: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        position = self._draws.below(len(items))
        return items[position], items[:position] + items[position + 1 :]

    def _moved(self, trial: _Trial, giver: int, taker: int) -> _Trial | None:
        item, rest = self._without_one(trial.micro_batches[giver])
        return self._changed(trial, {giver: rest, taker: (*trial.micro_batches[taker], item)})

    def _exchanged(self, trial: _Trial, one: int, other: int) -> _Trial | None:
        item, rest = self._without_one(trial.micro_batches[one])
        back, other_rest = self._without_one(trial.micro_batches[other])
        if self._tokens[item] == self._tokens[back] and self._costs_ms[item] == self._costs_ms[back]:
            return None
        return self._changed(trial, {one: (*rest, back), other: (*other_rest, item)})

    def _split(self, trial: _Trial, giver: int, turn: int) -> _Trial | None:
        item, rest = self._without_one(trial.micro_batches[giver])
        smaller = self._changed(trial, {giver: rest}) if rest else None
        if smaller is None:
            return None
        time = self._kind.c + self._costs_ms[item]
        return _Trial(
            (*smaller.micro_batches[:turn], (item,), *smaller.micro_batches[turn:]),
            (*smaller.times_ms[:turn], time, *smaller.times_ms[turn:]),
        )

    @staticmethod
    def _turned(trial: _Trial, index: int, turn: int) -> _Trial:
        micro_batches, times = list(trial.micro_batches), list(trial.times_ms)
        micro_batches.insert(turn, micro_batches.pop(index))
        times.insert(turn, times.pop(index))
        return _Trial(tuple(micro_batches), tuple(times))


def repacked(  # noqa: PLR0913, PLR0917 - what a packing is made of, and how far the search may go
    kind: ReplicaKind,
    packing: Packing,
    costs_ms: Sequence[float],
    tokens: Sequence[int],
    cap_ms: float,
    most_steps: int = MOST_STEPS,
    *,
    keep_count: bool = False,
    seed: int = 0,
) -> Packing:
    """Lower a replica's simulated time by moving items between its micro-batches, and by having more or fewer of them.

    Late-acceptance hill climbing over drawn steps, the same ones every time. Caps on tokens hold. The time of a
    micro-batch is taken as the sum of its items' (not so where an executor pads; such packings must not come here).

    Parameters
    ----------
    kind
        Replica kind.
    packing
        Its packing, in any order.
    costs_ms, tokens
        Cost on this kind and occupied tokens of every item of the batch.
    cap_ms
        Closed form to stay within, for instance the plan's makespan; the packing's own where that is more.
    most_steps
        Packings simulated at most.
    keep_count
        Whether the number of micro-batches must stay.
    seed
        Other seeds draw other steps.

    Returns
    -------
    Packing
        Micro-batches in the order to run, simulated faster under `best_order` than the packing given; that one itself
        if none was found.
    """
    if kind.pp == 1 or sum(map(len, packing.micro_batches)) <= 1:
        return packing
    limit_ms = max(cap_ms, packing.makespan_ms) * ROUNDING
    order, given_ms = best_order(kind.pp, packing.times_ms)
    held = best = _Trial(
        tuple(packing.micro_batches[index] for index in order), tuple(packing.times_ms[index] for index in order)
    )
    held_ms = best_ms = given_ms
    before_ms = [given_ms] * MEMORY_STEPS
    steps = _Steps(kind, costs_ms, tokens, keep_count=keep_count, seed=seed)
    simulated = 0
    for _ in range(10 * most_steps):  # most steps drawn break a rule where caps are tight
        if simulated == most_steps:
            break
        trial = steps.neighbour(held)
        if trial is None or replica_ms(kind.pp, trial.times_ms) > limit_ms:
            continue
        trial_ms = simulate_1f1b(kind.pp, trial.times_ms)
        simulated += 1
        if trial_ms <= max(held_ms, before_ms[simulated % MEMORY_STEPS]):
            held, held_ms = trial, trial_ms
        before_ms[simulated % MEMORY_STEPS] = held_ms
        if trial_ms < best_ms:
            best, best_ms = trial, trial_ms
    if best_ms >= given_ms * (1 - LEAST_GAIN):
        return packing
    return packing_of(kind, costs_ms, best.micro_batches)


def repack_slowest(  # noqa: PLR0913, PLR0917 - as `repacked`, for several replicas
    kinds: Sequence[ReplicaKind],
    packings: Sequence[Packing],
    costs_ms: Mapping[ReplicaKind, Sequence[float]],
    tokens: Sequence[int],
    cap_ms: float,
    may_go_on: Callable[[], bool],
    *,
    most_steps: int = MOST_STEPS,
    keep_count: bool = False,
) -> tuple[Packing, ...]:
    """Repack the replica that is simulated slowest, until that is one that was repacked often enough.

    Replicas that end before it are left alone, since they do not change when the iteration ends.

    Parameters
    ----------
    kinds, packings
        Kind and packing of each replica. Length J.
    costs_ms
        Cost of every item of the batch on each kind.
    tokens
        Occupied tokens of every item.
    cap_ms
        Closed form that every replica stays within, for instance the largest of ``packings``.
    may_go_on
        Asked before each round; False ends the search.
    most_steps, keep_count
        See `repacked`.

    Returns
    -------
    tuple[Packing, ...]
        Packing of each replica; the plan's simulated time is no more than before. Length J.
    """
    chosen = list(packings)
    # What a replica may take at most: its closed form until it was ordered, then its simulated time.
    slowest = [(-packing.makespan_ms, replica, NOT_ORDERED) for replica, packing in enumerate(chosen)]
    heapq.heapify(slowest)
    while slowest and may_go_on():
        _, replica, rounds = heapq.heappop(slowest)
        if rounds == MOST_ROUNDS:
            break
        kind = kinds[replica]
        if rounds > NOT_ORDERED:
            chosen[replica] = repacked(
                kind, chosen[replica], costs_ms[kind], tokens, cap_ms, most_steps, keep_count=keep_count, seed=rounds
            )
        _, simulated_ms = best_order(kind.pp, chosen[replica].times_ms)
        heapq.heappush(slowest, (-simulated_ms, replica, rounds + 1))
    return tuple(chosen)
