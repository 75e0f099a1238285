"""One iteration on this node: what ranks handed in, who waits, and what came of it."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

from planner_client.contract import Plan, Problem
from worker_agent.daemon.node_batch import NodeBatch
from worker_agent.daemon.wire import IterationOfNode, NodeIterationState, RankPart


@dataclass(frozen=True)
class PlanHere:
    """A plan as ranks get it.

    Attributes
    ----------
    plan
        The plan.
    body
        The plan as JSON: the same bytes for every rank.
    parts
        Where each rank's sequences go.
    """

    plan: Plan
    body: bytes
    parts: Mapping[int, RankPart]

    def answer(self, rank: int) -> bytes:
        """Return a `PlanOfRank` as JSON."""
        return b'{"part":' + self.parts[rank].model_dump_json().encode() + b',"plan":' + self.body + b"}"


@dataclass(eq=False)
class NodeIteration:
    """An iteration that ranks have handed in something of. All on one event loop.

    Attributes
    ----------
    job, iteration
        Which one.
    batch
        What was handed in.
    began_at
        When the first rank did (monotonic seconds).
    wanted_at
        When a rank last handed in or asked (monotonic seconds).
    completed_at
        When the last rank handed in (monotonic seconds); None before.
    is_sent, is_reported
        Whether the planner may have the node's report, and whether it said so.
    found
        The plan, once it is there.
    problem
        Why there is none.
    failing_since, waits_because
        Since when the planner is not reached for it (monotonic seconds), and what was met; None while it is.
    num_asking
        Ranks that wait for the plan now.
    changed
        Wakes whoever waits; replaced each time.
    work
        What is being done about it.
    """

    job: str
    iteration: int
    batch: NodeBatch
    began_at: float
    wanted_at: float
    completed_at: float | None = None
    is_sent: bool = False
    is_reported: bool = False
    found: PlanHere | None = None
    problem: Problem | None = None
    failing_since: float | None = None
    waits_because: str | None = None
    num_asking: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    work: "asyncio.Task[None] | None" = None

    @property
    def is_finished(self) -> bool:
        """Whether there is a plan, or will be none."""
        return self.found is not None or self.problem is not None

    def tell(self) -> None:
        """Wake all who wait."""
        self.changed.set()
        self.changed = asyncio.Event()

    def hold(self, batch: NodeBatch, now: float) -> None:
        """Take over what was handed in; what failed before is tried anew."""
        self.wanted_at = now
        self.problem = None
        if batch is not self.batch:
            self.batch = batch
            self.completed_at = None
            self.tell()
        if not batch.missing and self.completed_at is None:
            self.completed_at = now

    def is_wanted(self, now: float, linger_s: float) -> bool:
        """Whether anybody waits for it, or did so a short while ago."""
        return self.num_asking > 0 or now - self.wanted_at < linger_s

    def status(self) -> IterationOfNode:
        """Return how far it is."""
        return IterationOfNode(
            job=self.job,
            iteration=self.iteration,
            state=self._state(),
            missing_ranks=[] if self.is_sent else self.batch.missing,
            waits_because=self.waits_because,
            code=None if self.problem is None else self.problem.code,
        )

    def _state(self) -> NodeIterationState:
        if self.found is not None:
            return "planned"
        if self.problem is not None:
            return "failed"
        if self.is_reported:
            return "reported"
        return "reporting" if self.is_sent or not self.batch.missing else "waiting-for-ranks"


async def changed_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, but no longer than this."""
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await event.wait()
    except TimeoutError:
        return
