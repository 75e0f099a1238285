"""Asks a planner in the background, each iteration on a thread of its own, as far as the circuit breaker lets it."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from planner_client.asking import Asking, Batches
from planner_client.breaker import Breaker, BreakerState, Permission, Ticket
from planner_client.calls import ANSWER_MARGIN_S
from planner_client.contract import Plan, PlanRequest
from planner_client.errors import BadAnswer, HydraulisError, PlannerUnavailable, RequestRefused
from planner_client.plan_check import check_answers
from planner_client.steady_values import SteadySettings

SPARE_ASKS = 2
"""Requests that may be out beyond the window, for iterations that were decided without them."""

_log = logging.getLogger("planner_client.steady")


@dataclass(eq=False)
class Asked:
    """One iteration's question and answer.

    Attributes
    ----------
    order
        Counts the iterations announced.
    iteration
        Its number.
    batches, request
        What is asked.
    key
        What requests have in common that the same strategies are good for (`planner_client.last_good.cluster_key`).
    is_out
        Whether a request is under way.
    late_at
        An answer after this is late (monotonic seconds); None while nobody waits for one.
    plan
        The planner's plan, once it is there.
    failure
        Why there is none; None while there may be one yet.
    is_refused
        Whether the planner refused the request, which it will do again.
    """

    order: int
    iteration: int
    batches: Batches
    request: PlanRequest
    key: str
    is_out: bool = False
    late_at: float | None = None
    plan: Plan | None = None
    failure: str | None = None
    is_refused: bool = False
    ticket: Ticket | None = None
    is_settled: bool = False


class BackgroundAsks:
    """The requests that are out. Every method is called with the lock held.

    Parameters
    ----------
    asking
        How the planner is asked.
    settings
        Bounds.
    changed
        Guards all `Asked` and tells of answers.
    on_plan
        Called with each plan of the planner's that answers its request, on the thread that asked, without the lock.
    """

    def __init__(
        self,
        asking: Asking,
        settings: SteadySettings,
        changed: threading.Condition,
        on_plan: Callable[[Asked, Plan], None],
    ) -> None:
        self._asking = asking
        self._settings = settings
        self._changed = changed
        self._on_plan = on_plan
        self._breaker = Breaker(settings.breaker)
        self._probe: Asked | None = None
        self._num_out = 0

    @property
    def state(self) -> BreakerState:
        """Whether the planner is waited for (``closed``)."""
        return self._breaker.state

    def send(self, asked: Asked, *, is_forced: bool = False) -> None:
        """Let a request go out if the breaker admits it, or in any case if forced; what stands against it is noted."""
        self._settle_overdue_probe()
        asked.failure, asked.is_settled, asked.ticket = None, False, None
        if self._num_out >= self._settings.window + SPARE_ASKS:
            asked.failure = f"{self._num_out} requests to the planner are unanswered, and no more are sent"
            return
        self._breaker, ticket = self._breaker.admit(time.monotonic())
        if ticket.permission is Permission.NO and not is_forced:
            asked.failure = "the planner failed several times in a row and is not waited for until it answers again"
            return
        asked.ticket, asked.is_out = ticket, True
        self._num_out += 1
        if ticket.permission is Permission.PROBE:
            self._probe = asked
        name = f"planner-ask-{asked.iteration}"
        try:
            threading.Thread(target=self._ask, args=(asked,), name=name, daemon=True).start()
        except RuntimeError as error:
            self._num_out -= 1
            asked.is_out, asked.failure = False, f"no thread could be started to ask the planner ({error})"
            self._breaker = self._breaker.abandoned(ticket, time.monotonic())

    def is_waited_for(self, asked: Asked) -> bool:
        """Whether an answer may come that is worth waiting for; probes are not."""
        is_asking = asked.is_out and asked.ticket is not None and asked.ticket.permission is Permission.ASK
        return is_asking and self._breaker.state == "closed"

    def give_up(self, asked: Asked) -> None:
        """Count a request as failed whose answer did not come in time."""
        self._settle(asked, is_success=False)

    def _ask(self, asked: Asked) -> None:
        plan: Plan | None = None
        error: Exception | None = None
        limit_s = self._settings.ask_timeout_s
        if limit_s is None:
            limit_s = asked.request.options.deadline_ms / 1000.0 + ANSWER_MARGIN_S
        try:
            plan = _of_service(check_answers(self._asking.ask(asked.request, asked.batches, limit_s), asked.request))
        except HydraulisError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - what a caller's own way of asking raises is logged and told
            _log.exception("asking for iteration %d failed unexpectedly", asked.iteration)
            error = failure
        with self._changed:
            self._num_out -= 1
            asked.is_out, asked.plan = False, plan
            asked.failure = None if error is None else f"{type(error).__name__}: {error}"
            asked.is_refused = isinstance(error, RequestRefused)
            is_in_time = asked.late_at is None or time.monotonic() <= asked.late_at
            self._settle(
                asked,
                # A planner that refuses a request at once is there, and keeps nobody waiting.
                is_success=is_in_time and (error is None or asked.is_refused),
                retry_after_s=error.retry_after_s if isinstance(error, PlannerUnavailable) else None,
            )
            self._changed.notify_all()
        if plan is not None:
            self._on_plan(asked, plan)

    def _settle(self, asked: Asked, *, is_success: bool, retry_after_s: float | None = None) -> None:
        """Tell the breaker how a request ended, once."""
        if asked.is_settled or asked.ticket is None:
            return
        asked.is_settled = True
        if self._probe is asked:
            self._probe = None
        before = self._breaker.state
        if is_success:
            self._breaker = self._breaker.succeeded(asked.ticket)
        else:
            self._breaker = self._breaker.failed(asked.ticket, time.monotonic(), retry_after_s)
        after = self._breaker.state
        if before != after:
            # Said once when it begins; probes that fail later say nothing new.
            level = logging.WARNING if before == "closed" else logging.INFO
            said = (
                "answers in time again"
                if after == "closed"
                else f"is not waited for, probe in {self._breaker.pause_s:g} s"
            )
            _log.log(level, "the planner %s", said)

    def _settle_overdue_probe(self) -> None:
        """Let another probe go out where the last one's answer would come too late to be of use."""
        probe = self._probe
        if probe is not None and probe.late_at is not None and time.monotonic() > probe.late_at:
            self._settle(probe, is_success=False)


def _of_service(plan: Plan) -> Plan:
    if plan.solved_by == "fallback":
        raise BadAnswer("the planner's plan is labelled as one made without it")
    return plan
