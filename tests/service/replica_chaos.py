"""Many sources of many jobs at two services over one database, while services are killed and connections cut."""

import asyncio
import json
import random
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[1] / "bench"))

from lean_http import LeanAnswer, LeanHttp
from postgres import PostgresServer, database_name
from served_planner import ServedPlanner

SPEC = {
    "profile": "llama-7b-a100-40g",
    "num_gpus": 8,
    "strategies": [[{"tp": 4, "pp": 1, "num_replicas": 2}]],
    "options": {"deadline_ms": 1000, "target_gap": 0.05},
    "source_wait_ms": 600_000,
}
REQUEST_S = 20.0
AGAIN_S = 0.2


@dataclass(frozen=True)
class ChaosShape:
    """How much is asked, and how often something is broken.

    Attributes
    ----------
    num_jobs, num_iterations, num_sources
        Jobs, iterations of each, and sources of each.
    pause_s
        Between two harms, at most.
    """

    num_jobs: int
    num_iterations: int
    num_sources: int
    pause_s: float


@dataclass
class Outcome:
    """What was seen.

    Attributes
    ----------
    plans
        The bytes that each service gave as the plan of an iteration, all of them.
    statuses, harms
        Answers and harms, counted.
    num_lost
        Requests without an answer.
    elapsed_s
        How long it took.
    """

    plans: dict[tuple[int, int], set[bytes]] = field(default_factory=dict)
    statuses: Counter[int] = field(default_factory=Counter)
    harms: Counter[str] = field(default_factory=Counter)
    num_lost: int = 0
    elapsed_s: float = 0.0


class Chaos:
    """Two services at fixed addresses, those who ask them, and whoever breaks them."""

    def __init__(
        self, serve: Callable[..., ServedPlanner], server: PostgresServer, shape: ChaosShape, *, seed: int
    ) -> None:
        self._server = server
        self._shape = shape
        self._database = server.new_database()
        self._ports = [_free_port() for _ in range(2)]
        self._serve = serve
        self._services = [self._start(port) for port in self._ports]
        self._draw = random.Random(seed)  # noqa: S311 - moments and victims
        self._is_done = asyncio.Event()
        self.outcome = Outcome()

    def _start(self, port: int) -> ServedPlanner:
        return self._serve(
            "--workers", "1", "--port", str(port), database_url=self._database, env={"HYDRAULIS_LEASE_S": "2"}
        )

    async def run(self) -> Outcome:
        """Ask until every iteration has its plan from both services."""
        began_at = time.monotonic()
        https = [LeanHttp(f"http://127.0.0.1:{port}", timeout_s=REQUEST_S) for port in self._ports]
        harming = asyncio.create_task(self._harm())
        try:
            jobs = range(self._shape.num_jobs)
            await asyncio.gather(*(self._register(https, job) for job in jobs))
            sources = range(self._shape.num_sources)
            await asyncio.gather(
                *(self._report(https, job, source) for job in jobs for source in sources),
                *(self._collect(https, job) for job in jobs),
            )
        finally:
            self._is_done.set()
            await harming
            for http in https:
                http.close()
        self.outcome.elapsed_s = time.monotonic() - began_at
        return self.outcome

    async def _harm(self) -> None:
        while not self._is_done.is_set():
            try:
                async with asyncio.timeout(self._draw.uniform(0.5, self._shape.pause_s)):
                    await self._is_done.wait()
            except TimeoutError:
                await asyncio.to_thread(self._harm_once)

    def _harm_once(self) -> None:
        if self._draw.random() < 1 / 3:
            self.outcome.harms["connections cut"] += 1
            self._server.cut_all_connections(database_name(self._database))
            return
        victim = self._draw.randrange(2)
        number = self._draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM])
        self.outcome.harms[number.name] += 1
        self._services[victim].stop(number)
        self._services[victim] = self._start(self._ports[victim])

    async def _ask(
        self, https: list[LeanHttp], accepted: set[int], method: str, path: str, body: Any = None
    ) -> LeanAnswer:
        """Ask one of some services, again and again, until the answer is one of those accepted."""
        content = b"" if body is None else json.dumps(body).encode()
        while True:
            try:
                answer = await self._draw.choice(https).ask(method, path, content)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                self.outcome.num_lost += 1
                await asyncio.sleep(AGAIN_S)
                continue
            self.outcome.statuses[answer.status] += 1
            if answer.status in accepted:
                return answer
            assert answer.status in {202, 429, 503}, answer.body
            assert answer.status == 202 or "retry-after" in answer.headers
            await asyncio.sleep(0.0 if answer.status == 202 else AGAIN_S)

    async def _register(self, https: list[LeanHttp], job: int) -> None:
        sources = [f"source-{number}" for number in range(self._shape.num_sources)]
        await self._ask(https, {200, 201}, "POST", "/v1/jobs", {**SPEC, "name": f"job-{job}", "sources": sources})

    async def _report(self, https: list[LeanHttp], job: int, source: int) -> None:
        for iteration in range(self._shape.num_iterations):
            where = f"/v1/jobs/job-{job}/iterations/{iteration}/histograms/source-{source}"
            lengths = [100 + (7 * job + 131 * iteration + 17 * source + 53 * number) % 2000 for number in range(4)]
            await self._ask(https, {200}, "PUT", where, {"lengths": lengths})

    async def _collect(self, https: list[LeanHttp], job: int) -> None:
        for iteration in range(self._shape.num_iterations):
            where = f"/v1/jobs/job-{job}/iterations/{iteration}/plan?wait_ms=5000"
            answers = await asyncio.gather(*(self._ask([http], {200}, "GET", where) for http in https))
            self.outcome.plans[job, iteration] = {answer.body for answer in answers}

    async def look_again(self) -> None:
        """Fetch every plan once more, from both services after they were started anew."""
        for victim, port in enumerate(self._ports):
            await asyncio.to_thread(self._services[victim].stop, signal.SIGKILL)
            self._services[victim] = await asyncio.to_thread(self._start, port)
        https = [LeanHttp(f"http://127.0.0.1:{port}", timeout_s=REQUEST_S) for port in self._ports]
        for (job, iteration), bodies in self.outcome.plans.items():
            where = f"/v1/jobs/job-{job}/iterations/{iteration}/plan"
            for http in https:
                bodies.add((await self._ask([http], {200}, "GET", where)).body)
        for http in https:
            http.close()


def every_iteration_has_one_plan(outcome: Outcome, shape: ChaosShape) -> None:
    """Check what was seen."""
    assert len(outcome.plans) == shape.num_jobs * shape.num_iterations
    assert {len(bodies) for bodies in outcome.plans.values()} == {1}, "two services gave different bytes"
    for (_, iteration), (body,) in outcome.plans.items():
        plan = json.loads(body)
        assert (plan["iteration"], plan["num_sequences"]) == (iteration, 4 * shape.num_sources)
        assert plan["solved_by"] != "fallback"


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
