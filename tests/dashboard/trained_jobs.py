"""Jobs for pages to show: reported and measured over HTTP as trainers do, and hostile ones put into the store."""

from pathlib import Path
from typing import Any

import httpx
import orjson

from planner_client.contract import JobSpec, TokenRequest
from planner_service.access import TokenRegister
from planner_service.store import JobRow, PlanRow, ReportTerms, SqlStore

PROFILE = "llama-32b-a800-80g"
SOURCES = ["node-0", "node-1"]
STRATEGIES = [
    [{"tp": 16, "pp": 1, "num_replicas": 1}, {"tp": 8, "pp": 2, "num_replicas": 3}],
    [{"tp": 4, "pp": 1, "num_replicas": 16}],
]
LENGTHS = [30_000, 9000, 4000, 2000, 1000, 700, 512, 512, 300, 200]
HOSTILE = "<img src=x onerror=alert(1)>"


def spec(name: str, **changes: Any) -> dict[str, Any]:
    fields = {"profile": PROFILE, "num_gpus": 64, "sources": SOURCES, "strategies": STRATEGIES}
    return {"name": name, **fields, "options": {"deadline_ms": 500}, **changes}


class TrainedJob:
    """One job, trained over HTTP."""

    def __init__(self, url: str, name: str, token: str | None = None, **changes: Any) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.http = httpx.Client(base_url=f"{url}/v1", timeout=30.0, headers=headers)
        self.name = name
        self.http.post("/jobs", json=spec(name, **changes)).raise_for_status()

    def report(self, iteration: int, *, longest: int = LENGTHS[0]) -> None:
        lengths = [longest, *LENGTHS[1:], 100 + iteration]
        sent = {source: {"lengths": lengths} for source in SOURCES}
        address = f"/jobs/{self.name}/iterations/{iteration}/histograms"
        self.http.put(address, json={"sources": sent}).raise_for_status()

    def plan(self, iteration: int) -> dict[str, Any]:
        answer = self.http.get(f"/jobs/{self.name}/iterations/{iteration}/plan", params={"wait_ms": 20_000})
        return dict(answer.raise_for_status().json())

    def measure(self, iteration: int, *, factor: float = 1.05) -> None:
        plan = self.plan(iteration)
        replicas = [
            {"replica": number, "wall_ms": factor * replica["makespan_ms"], "micro_batch_ms": []}
            for number, replica in enumerate(plan["replicas"])
        ]
        sent = {"digest": plan["digest"], "iteration": iteration, "replicas": replicas}
        self.http.post(f"/jobs/{self.name}/iterations/{iteration}/timings", json=sent).raise_for_status()

    def train(self, num_iterations: int) -> "TrainedJob":
        for iteration in range(num_iterations):
            self.report(iteration)
            self.measure(iteration)
        return self

    def fail(self, iteration: int) -> None:
        """Report what no strategy can hold, and wait until that is known."""
        self.report(iteration, longest=10**6)
        assert self.http.get(f"/jobs/{self.name}/iterations/{iteration}/plan", params={"wait_ms": 20_000}).is_error


def put_hostile_job(store: SqlStore) -> None:
    """Store a job of which every text is hostile, as no caller could; the page must not rely on that."""
    job = JobSpec.model_validate(spec("tame"))
    store.jobs.put(JobRow(HOSTILE, job.model_dump_json().encode()))
    store.jobs.report(HOSTILE, 0, dict.fromkeys(SOURCES, b"{}"), ReportTerms(2, 60.0, 10))
    claim = store.jobs.claim("test", 60.0)
    assert claim is not None
    assert claim.job == HOSTILE
    sequences = [{"source": HOSTILE, "length": 100, "count": 1}]
    micro_batch = {"sequences": sequences, "num_tokens": 100, "num_padding_tokens": 0, "time_ms": 5.0}
    replica = {
        "tp": 1,
        "cp": 1,
        "pp": 1,
        "device": HOSTILE,
        "ranks": [0],
        "max_tokens": 128,
        "makespan_ms": 5.0,
        "simulated_ms": 5.0,
        "micro_batches": [micro_batch],
    }
    figures = {"makespan_ms": 5.0, "gap": 0.0, "planning_ms": 1.0, "strategy": HOSTILE, "digest": f"sha256:{HOSTILE}"}
    plan = {
        **figures,
        "profile": HOSTILE,
        "num_gpus": 1,
        "num_sequences": 1,
        "num_tokens": 100,
        "dropped": [],
        "replicas": [replica, {**replica, "device": f"{HOSTILE} 2"}],
        "simulated_ms": 5.0,
        "sync_ms": 0.0,
        "lower_bound_ms": 5.0,
        "bound_scope": "strategy",
        "solved_by": HOSTILE,
        "status": "optimal",
        "passed_over": [{"strategy": HOSTILE, "reason": HOSTILE}],
    }
    row = PlanRow("sha256:hostile", figures["digest"], orjson.dumps(plan))  # type: ignore[arg-type]
    assert store.jobs.finish(claim, row, orjson.dumps(figures)) is not None


def prepare(database: Path) -> dict[str, str]:
    """Make a database with a hostile job; return tokens by what they are good for."""
    store = SqlStore(str(database))
    try:
        put_hostile_job(store)
        register = TokenRegister(store.access)
        wanted: list[dict[str, Any]] = [
            {"name": "all", "scope": "plan"},
            {"name": "mine", "scope": "read", "jobs": ["mine-*"]},
        ]
        return {each["name"]: register.give(TokenRequest.model_validate(each)).token for each in wanted}
    finally:
        store.close()
