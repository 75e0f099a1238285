"""Trainers that ask a service for plans at a steady pace, whether or not it keeps up; and what they met."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lean_http import LeanAnswer, LeanHttp

REQUEST_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class LoadShape:
    """How many jobs ask for how much.

    Attributes
    ----------
    num_jobs, iterations_per_s, num_iterations
        Jobs; iterations that each begins in a second (None: each as soon as the one before has its plan), and in all.
    patience_ms
        How long a trainer waits for a plan before it would use its own.
    spec
        What every job is registered with, but for its name and sources.
    num_sources
        Sources of each job, which report in one request.
    prefix
        What the names of jobs begin with.
    """

    num_jobs: int
    iterations_per_s: float | None
    num_iterations: int
    patience_ms: int
    spec: dict[str, Any]
    num_sources: int = 2
    prefix: str = "job"


@dataclass
class Met:
    """What the trainers met.

    Attributes
    ----------
    statuses
        Answers by status.
    without_retry_after
        429 and 503 that did not say when to come back.
    wait_ms
        From the last report of an iteration to its plan, of those that came in time.
    beyond_planning_ms
        The same, less the time that planning itself took.
    num_late
        Iterations without a plan within the patience.
    num_refused
        Iterations whose reports were refused.
    elapsed_s
        From the first report to the last answer.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    without_retry_after: int = 0
    wait_ms: list[float] = field(default_factory=list)
    beyond_planning_ms: list[float] = field(default_factory=list)
    num_late: int = 0
    num_refused: int = 0
    elapsed_s: float = 0.0

    @property
    def plans_per_s(self) -> float:
        """Plans that came in time, by second."""
        return len(self.wait_ms) / self.elapsed_s

    @property
    def share_in_time(self) -> float:
        """Share of the iterations whose plans came in time."""
        return len(self.wait_ms) / max(1, len(self.wait_ms) + self.num_late + self.num_refused)

    def count(self, answer: LeanAnswer) -> LeanAnswer:
        """Count one answer."""
        self.statuses[answer.status] += 1
        if answer.status in (429, 503) and "retry-after" not in answer.headers:
            self.without_retry_after += 1
        return answer


async def put_load(url: str, shape: LoadShape, batches: Sequence[Sequence[int]]) -> Met:
    """Let all jobs run to their ends; iterations begin by the clock, also while earlier ones still wait."""
    met = Met()
    http = LeanHttp(url, timeout_s=REQUEST_TIMEOUT_S)
    run = _Run(http, shape, batches, met)
    try:
        await asyncio.gather(*(run.register(job) for job in range(shape.num_jobs)))
        began = time.monotonic()
        await asyncio.gather(*(run.job(job, began) for job in range(shape.num_jobs)))
        met.elapsed_s = time.monotonic() - began
    finally:
        http.close()
    return met


@dataclass(frozen=True)
class _Run:
    http: LeanHttp
    shape: LoadShape
    batches: Sequence[Sequence[int]]
    met: Met

    @property
    def sources(self) -> list[str]:
        return [f"node-{number}" for number in range(self.shape.num_sources)]

    def _name(self, job: int) -> str:
        return f"{self.shape.prefix}-{job}"

    async def register(self, job: int) -> None:
        spec = {**self.shape.spec, "name": self._name(job), "sources": self.sources}
        registered = await self.http.ask("POST", "/v1/jobs", json.dumps(spec).encode())
        assert registered.status in (200, 201), registered.body

    async def job(self, job: int, began: float) -> None:
        running = []
        for iteration in range(self.shape.num_iterations):
            if self.shape.iterations_per_s is None:
                await self._iteration(job, iteration)
                continue
            starts_at = began + (iteration + job / self.shape.num_jobs) / self.shape.iterations_per_s
            await asyncio.sleep(max(0.0, starts_at - time.monotonic()))
            running.append(asyncio.create_task(self._iteration(job, iteration)))
        await asyncio.gather(*running)

    async def _iteration(self, job: int, iteration: int) -> None:
        where = f"/v1/jobs/{self._name(job)}/iterations/{iteration}"
        # Of two jobs no two iterations are the same, or they would share plans.
        own = [*self.batches[(job * 7 + iteration) % len(self.batches)], 1 + (job * 1000 + iteration) % 8_000]
        # All sources in one request, as clients report.
        held = {source: {"lengths": own[number :: len(self.sources)]} for number, source in enumerate(self.sources)}
        if not await self._reports(f"{where}/histograms", json.dumps({"sources": held}).encode()):
            self.met.num_refused += 1
            return
        reported_at = time.monotonic()
        patience_ms = self.shape.patience_ms
        answer = self.met.count(await self.http.ask("GET", f"{where}/plan?wait_ms={patience_ms}"))
        waited_ms = 1000.0 * (time.monotonic() - reported_at)
        if answer.status != 200 or waited_ms > patience_ms:
            self.met.num_late += 1
            return
        plan = answer.json()
        assert plan["iteration"] == iteration
        assert (plan["num_sequences"], plan["num_tokens"]) == (len(own), sum(own))
        self.met.wait_ms.append(waited_ms)
        self.met.beyond_planning_ms.append(waited_ms - plan["planning_ms"])

    async def _reports(self, where: str, sent: bytes) -> bool:
        """Report as clients do: who is told to come back later does, while a plan is of use."""
        ends_at = time.monotonic() + self.shape.patience_ms / 1000.0
        while True:
            answer = self.met.count(await self.http.ask("PUT", where, sent))
            if answer.status == 200:
                return True
            pause_s = float(answer.headers.get("retry-after", "inf"))
            if time.monotonic() + pause_s > ends_at:
                return False
            await asyncio.sleep(pause_s)
