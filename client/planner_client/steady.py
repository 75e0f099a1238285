"""Plans that always come in time: the planner's, or one made here that says so.

One rank of a training run decides; it uses a `SteadyPlanner` and shares what it returns with the others.
"""

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from planner_client.asking import Asking, Batches, ByJob, OneShot
from planner_client.background_asks import Asked, BackgroundAsks
from planner_client.contract import IterationTimings, Plan
from planner_client.errors import FallbackImpossible, NoPlanPossible
from planner_client.fallback import FallbackBasis, fallback_plan
from planner_client.last_good import LastGood, cluster_key
from planner_client.steady_values import Origin, SteadyCounts, SteadyPlan, SteadySettings
from planner_client.timings_queue import TimingsQueue
from planner_client.waits import MAX_TRY_S, with_an_end

__all__ = ["ByJob", "OneShot", "SteadyCounts", "SteadyPlan", "SteadyPlanner", "SteadySettings"]

ASK_AGAIN_S = 0.25
"""Pause between requests of an iteration for which no plan can be made here."""

FALLBACK_MS = 10.0
FALLBACK_MS_PER_SEQUENCE = 0.05
"""Time kept for making a plan here, until it is known how long that takes."""

MOST_RESERVED = 0.5
"""Share of the deadline that is kept for making a plan here, at most."""

_log = logging.getLogger("planner_client.steady")


@dataclass(eq=False)
class _Announced:
    """An iteration: what was asked, and what was decided."""

    asked: Asked
    num_sequences: int
    decided: SteadyPlan | None = None


class SteadyPlanner:
    """Gives every iteration a plan within its deadline, whatever the planner does. Threads may share one.

    `announce` asks the planner in the background, up to a window of iterations ahead; `take` returns the planner's
    plan, or at the deadline one made here from the last good plan (`planner_client.fallback`). What an iteration
    runs by is decided once: a plan that comes later is not used for it. After some failures in a row the planner is
    not waited for (`planner_client.breaker`); once it answers in time again, its plans are used again.

    Parameters
    ----------
    asking
        How the planner is asked: `ByJob` or `OneShot`.
    settings
        How patient it is.
    initial
        What fallbacks start from before the planner has made a plan: a plan, or
        `planner_client.fallback.FallbackBasis.of_strategy`.
    keep_in
        A file for the last good plan, so that a restarted trainer has one.
    """

    def __init__(
        self,
        asking: Asking,
        settings: SteadySettings | None = None,
        *,
        initial: Plan | FallbackBasis | None = None,
        keep_in: str | Path | None = None,
    ) -> None:
        self._asking = asking
        self._settings = settings if settings is not None else SteadySettings()
        self._initial = FallbackBasis.of_plan(initial, "the initial plan") if isinstance(initial, Plan) else initial
        self._last_good = LastGood(None if keep_in is None else Path(keep_in))
        self._timings = TimingsQueue(asking, self._settings.max_timings_waiting)
        self._changed = threading.Condition()
        self._asks = BackgroundAsks(asking, self._settings, self._changed, self._on_plan)
        self._announced: dict[int, _Announced] = {}
        self._order = 0
        self._is_closed = False
        self._num_by: dict[Origin, int] = {"service": 0, "fallback": 0}
        self._num_late = 0
        self._last_origin: Origin = "service"
        self._ms_per_sequence = FALLBACK_MS_PER_SEQUENCE

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give measured times that wait a last chance (2 s); whoever waits for a plan gets a fallback at once."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._timings.close()

    @property
    def counts(self) -> SteadyCounts:
        """What happened so far."""
        with self._changed:
            return SteadyCounts(
                num_service=self._num_by["service"],
                num_fallback=self._num_by["fallback"],
                num_late=self._num_late,
                num_timings_sent=self._timings.num_sent,
                num_timings_dropped=self._timings.num_dropped,
                breaker=self._asks.state,
            )

    def announce(self, iteration: int, batches: Batches) -> None:
        """Begin to ask for the plan of an iteration; returns at once. The same again changes nothing.

        Raises
        ------
        ValueError
            If the batches cannot be planned as they are, the iteration was announced with others and not taken yet, or
            a whole window of iterations waits to be taken.
        """
        request = self._asking.request(iteration, batches)
        key = cluster_key(request)
        with self._changed:
            if self._is_closed:
                raise ValueError("this SteadyPlanner is closed; build a new one")
            known = self._announced.get(iteration)
            if known is not None and known.asked.request == request:
                return
            if known is not None and known.decided is None:
                raise ValueError(f"iteration {iteration} was announced with another batch; take it, or forget it first")
            waiting = [number for number, entry in self._announced.items() if entry.decided is None]
            if len(waiting) >= self._settings.window:
                raise ValueError(
                    f"iteration {iteration} cannot be announced: {waiting} wait to be taken, and the window is "
                    f"{self._settings.window}; take or forget them first"
                )
            self._order += 1
            entry = _Announced(Asked(self._order, iteration, batches, request, key), request.num_sequences)
            self._announced.pop(iteration, None)
            self._announced[iteration] = entry
            self._drop_old()
            self._asks.send(entry.asked)

    def take(self, iteration: int, *, deadline_s: float | None = None) -> SteadyPlan:
        """Return what an announced iteration runs by, within the deadline; asked again, the same.

        Raises
        ------
        NoPlanPossible
            If the planner gave none in time and none can be made here; taken again, it is tried again.
        ValueError
            If the iteration was not announced, or is forgotten, or the deadline has no end.
        """
        began = time.monotonic()
        limit_s = self._settings.deadline_s if deadline_s is None else with_an_end("deadline_s", deadline_s)
        ends_at = began + limit_s
        with self._changed:
            entry = self._announced.get(iteration)
            if entry is None:
                raise ValueError(f"iteration {iteration} was not announced, or is forgotten; announce it first")
            self._await_service(entry, ends_at, ends_at - self._reserve_s(entry, limit_s))
            self._decide_by_service(entry, began)
            if entry.decided is not None:
                return entry.decided
            reason = self._why_not(entry, limit_s)
        try:
            made = self._fallback(entry)
        except FallbackImpossible as impossible:
            return self._insist(entry, began, ends_at, impossible)
        with self._changed:
            # Another thread may have decided meanwhile, or the planner's plan be there after all.
            self._decide_by_service(entry, began)
            return entry.decided or self._decide(entry, made, "fallback", began, reason)

    def plan(self, iteration: int, batches: Batches, *, deadline_s: float | None = None) -> SteadyPlan:
        """Announce an iteration and take it, for callers who do not look ahead."""
        self.announce(iteration, batches)
        return self.take(iteration, deadline_s=deadline_s)

    def forget(self) -> None:
        """Forget all iterations, as a trainer does that goes back to a checkpoint; answers to them are not used."""
        with self._changed:
            self._announced.clear()

    def report_timings(self, timings: IterationTimings) -> None:
        """Hand over what ranks measured; sent in the background, labelled as a fallback's where it is one."""
        with self._changed:
            entry = self._announced.get(timings.iteration)
            decided = None if entry is None else entry.decided
        if decided is not None and decided.origin == "fallback" and decided.plan.digest == timings.digest:
            timings = timings.model_copy(update={"solved_by": "fallback"})
        self._timings.put(timings)

    def _await_service(self, entry: _Announced, ends_at: float, waits_until: float) -> None:
        """Wait for the planner's plan as long as that makes sense; a request that is overdue counts as failed."""
        asked = entry.asked
        asked.late_at = max(asked.late_at or ends_at, ends_at)
        while entry.decided is None and self._asks.is_waited_for(asked) and not self._is_closed:
            left_s = waits_until - time.monotonic()
            if left_s <= 0:
                self._asks.give_up(asked)
                return
            self._changed.wait(min(left_s, MAX_TRY_S))

    def _decide_by_service(self, entry: _Announced, began: float) -> None:
        if entry.decided is None and entry.asked.plan is not None:
            self._decide(entry, entry.asked.plan, "service", began)

    def _decide(
        self, entry: _Announced, plan: Plan, origin: Origin, began: float, reason: str | None = None
    ) -> SteadyPlan:
        entry.decided = SteadyPlan(plan, origin, 1000 * (time.monotonic() - began), reason)
        self._num_by[origin] += 1
        self._say(entry.asked.iteration, origin, reason)
        self._changed.notify_all()
        return entry.decided

    def _say(self, iteration: int, origin: Origin, reason: str | None) -> None:
        """Warn where plans turn to fallbacks and where they return; an outage may last thousands of iterations."""
        has_turned, self._last_origin = origin != self._last_origin, origin
        if origin == "fallback":
            level = logging.WARNING if has_turned else logging.INFO
            _log.log(level, "iteration %d runs by a plan made without the planner: %s", iteration, reason)
        elif has_turned:
            _log.warning("iteration %d runs by a plan of the planner's again", iteration)

    def _why_not(self, entry: _Announced, limit_s: float) -> str:
        if entry.asked.failure is not None:
            return entry.asked.failure
        if self._is_closed:
            return "this SteadyPlanner is closed"
        if self._asks.state != "closed":
            return "the planner failed several times in a row and is not waited for until it answers again"
        return f"the planner gave no plan within {limit_s:g} s"

    def _fallback(self, entry: _Announced) -> Plan:
        """Make a plan here, from the last good plan or else from what was given for the start."""
        started = time.monotonic()
        bases = [basis for basis in (self._last_good.basis(entry.asked.key), self._initial) if basis is not None]
        if not bases:
            raise FallbackImpossible(
                "no plan of the planner's is known yet to start from; give SteadyPlanner an initial plan or strategy"
            )
        impossible: FallbackImpossible | None = None
        for basis in bases:
            try:
                plan = fallback_plan(basis, entry.asked.request)
            except FallbackImpossible as why:
                impossible = impossible or why
                continue
            took_ms = 1000 * (time.monotonic() - started)
            self._learn_ms(entry, took_ms)
            return plan.model_copy(update={"planning_ms": took_ms})
        raise impossible or FallbackImpossible("there is nothing to start from")

    def _insist(self, entry: _Announced, began: float, ends_at: float, impossible: FallbackImpossible) -> SteadyPlan:
        """Ask the planner until the deadline, where no plan can be made without it."""
        asked = entry.asked
        with self._changed:
            while entry.decided is None and asked.plan is None and not self._is_closed:
                left_s = ends_at - time.monotonic()
                if left_s <= 0 or (asked.is_refused and not asked.is_out):
                    break
                if asked.is_out:
                    self._changed.wait(min(left_s, MAX_TRY_S))
                    continue
                self._changed.wait(min(left_s, ASK_AGAIN_S))
                if not asked.is_out and asked.plan is None:
                    self._asks.send(asked, is_forced=True)
            self._decide_by_service(entry, began)
            if entry.decided is not None:
                return entry.decided
            why_not = self._why_not(entry, ends_at - began)
            asked.is_refused = False
        raise NoPlanPossible(
            f"iteration {asked.iteration} has no plan. From the planner: {why_not}. Without it: {impossible}"
        ) from impossible

    def _on_plan(self, asked: Asked, plan: Plan) -> None:
        with self._changed:
            entry = self._announced.get(asked.iteration)
            is_forgotten = entry is None or entry.asked is not asked
            decided = None if entry is None else entry.decided
            self._num_late += is_forgotten or (decided is not None and decided.plan is not plan)
        self._last_good.keep(plan, asked.key, asked.order)

    def _drop_old(self) -> None:
        """Forget what was decided so long ago that nobody asks for it again."""
        decided = [number for number, entry in self._announced.items() if entry.decided is not None]
        for number in decided[: max(0, len(decided) - 2 * self._settings.window)]:
            del self._announced[number]

    def _reserve_s(self, entry: _Announced, limit_s: float) -> float:
        """Return the part of the deadline that is kept for making a plan here."""
        return min(MOST_RESERVED * limit_s, (FALLBACK_MS + entry.num_sequences * self._ms_per_sequence) / 1000.0)

    def _learn_ms(self, entry: _Announced, took_ms: float) -> None:
        per_sequence = max(0.0, took_ms - FALLBACK_MS) / max(1, entry.num_sequences)
        with self._changed:
            self._ms_per_sequence = max(per_sequence * 1.5, 0.8 * self._ms_per_sequence)
