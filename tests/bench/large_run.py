"""A long run on many replicas, put into a database at once: planning 10,000 iterations of it would take hours."""

import random
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import insert, select, update

from planner_client.contract import JobSpec
from planner_service.store import JobRow, SqlStore
from planner_service.store.sql.tables import ITERATIONS, JOBS, PLANS, TIMINGS

JOB = "long-run"
NUM_ITERATIONS = 10_000
NUM_REPLICAS = 1000
STRATEGIES = [f"(16,1)x{wide},(8,1)x{1500 - 2 * wide},(4,2)x250" for wide in range(0, 300, 25)]
_PACKETS = 1000


def large_plan(chance: random.Random) -> dict[str, Any]:
    """Return a plan of 1000 replicas, some of them pipelines, with 12 sequences in each of their micro-batches."""
    replicas = [_replica(number, chance) for number in range(NUM_REPLICAS)]
    makespan_ms = max(replica["makespan_ms"] for replica in replicas)
    micro_batches = [each for replica in replicas for each in replica["micro_batches"]]
    return {
        "digest": "sha256:" + "0" * 64,
        "profile": "llama-32b-a800-80g",
        "strategy": STRATEGIES[0],
        "num_gpus": 8 * NUM_REPLICAS,
        "num_sequences": 12 * len(micro_batches),
        "num_tokens": sum(each["num_tokens"] for each in micro_batches),
        "dropped": [],
        "replicas": replicas,
        "makespan_ms": makespan_ms,
        "simulated_ms": makespan_ms,
        "sync_ms": 100.0,
        "lower_bound_ms": 0.99 * makespan_ms,
        "gap": 1 / 0.99 - 1,
        "bound_scope": "strategy",
        "solved_by": "heuristic",
        "status": "feasible",
        "planning_ms": 900.0,
    }


def _replica(number: int, chance: random.Random) -> dict[str, Any]:
    num_stages = (1, 2, 4)[number % 3]
    micro_batches = [_micro_batch(chance) for _ in range(8)]
    times = [each["time_ms"] for each in micro_batches]
    makespan_ms = sum(times) + (num_stages - 1) * max(times)
    return {
        "tp": 8 // num_stages,
        "cp": 1,
        "pp": num_stages,
        "device": "A800 80GB",
        "ranks": list(range(8 * number, 8 * number + 8)),
        "max_tokens": 200_000,
        "makespan_ms": makespan_ms,
        "simulated_ms": 0.98 * makespan_ms,
        "micro_batches": micro_batches,
    }


def _micro_batch(chance: random.Random) -> dict[str, Any]:
    lengths = [int(2 ** chance.uniform(6, 15)) for _ in range(12)]
    num_tokens = sum(lengths)
    sequences = [{"source": f"node-{length % 100}", "length": length, "count": 1} for length in lengths]
    return {"sequences": sequences, "num_tokens": num_tokens, "num_padding_tokens": 0, "time_ms": num_tokens / 300}


def prepare(database: Path) -> None:
    """Make a database with the run; its last iteration has the large plan, measured by all replicas."""
    chance = random.Random(1)  # noqa: S311 - no secret
    spec = JobSpec.model_validate(
        {"name": JOB, "profile": "llama-32b-a800-80g", "num_gpus": 8 * NUM_REPLICAS, "sources": ["node-0"]}
    )
    store = SqlStore(str(database))
    store.jobs.put(JobRow(JOB, spec.model_dump_json().encode()))
    plan = large_plan(chance)
    timings = [
        {"replica": number, "wall_ms": replica["makespan_ms"] * chance.uniform(0.98, 1.1), "micro_batch_ms": []}
        for number, replica in enumerate(plan["replicas"])
    ]
    with store._database.engine.begin() as connection:
        job = connection.execute(select(JOBS.c.number)).scalar_one()
        connection.execute(
            insert(PLANS).values(request_key="large", digest=plan["digest"], body=orjson.dumps(plan), created_at=1.0)
        )
        rows = [_iteration(job, number, chance) for number in range(NUM_ITERATIONS)]
        for first in range(0, NUM_ITERATIONS, _PACKETS):
            connection.execute(insert(ITERATIONS), rows[first : first + _PACKETS])
        last = connection.execute(select(ITERATIONS.c.number).order_by(ITERATIONS.c.iteration.desc())).scalars().first()
        connection.execute(update(ITERATIONS).where(ITERATIONS.c.number == last).values(request_key="large"))
        connection.execute(
            insert(TIMINGS).values(iteration_number=last, key="all", body=orjson.dumps({"replicas": timings}))
        )
        connection.execute(
            update(JOBS).where(JOBS.c.number == job).values(num_iterations=NUM_ITERATIONS, num_planned=NUM_ITERATIONS)
        )
    store.close()


def _iteration(job: int, number: int, chance: random.Random) -> dict[str, Any]:
    makespan_ms = chance.uniform(3000, 5000)
    summary = {
        "digest": f"sha256:{number:064x}",
        "strategy": chance.choices(STRATEGIES, weights=range(len(STRATEGIES), 0, -1))[0],
        "makespan_ms": makespan_ms,
        "gap": chance.expovariate(200),
        "planning_ms": chance.uniform(50, 900),
    }
    return {
        "job_number": job,
        "iteration": number,
        "state": "planned",
        "num_expected": 1,
        "num_reported": 1,
        "began_at": 1.8e9 + number,
        "due_at": 1.8e9 + number,
        "finished_at": 1.8e9 + number,
        "num_tries": 1,
        "summary": orjson.dumps(summary),
        "measured_ms": makespan_ms * chance.uniform(0.98, 1.08),
    }
