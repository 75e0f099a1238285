"""What callers are told of stored jobs and iterations: pure."""

from collections.abc import Collection
from typing import Any

import orjson

from planner_client.contract import (
    IterationStatus,
    IterationSummary,
    Job,
    JobSpec,
    JobSummary,
    Problem,
)
from planner_service.jobs.assemble import MAX_NAMED
from planner_service.store import IterationRow, JobCounts, JobRow

_OF_PLAN = ("digest", "strategy", "makespan_ms", "gap", "planning_ms")


def summary_of_plan(body: bytes) -> bytes:
    """Return the few values of a plan that lists show, as canonical JSON."""
    plan = orjson.loads(body)
    return orjson.dumps({name: plan.get(name) for name in _OF_PLAN}, option=orjson.OPT_SORT_KEYS)


def num_dropped_of(body: bytes) -> int:
    """Return how many sequences a plan drops."""
    return sum(int(entry["count"]) for entry in orjson.loads(body)["dropped"])


def job_of(row: JobRow, spec: JobSpec) -> Job:
    """Return what is told of a job."""
    return Job(
        name=row.name,
        profiles=spec.profile_names,
        num_gpus=spec.total_gpus,
        num_sources=len(spec.sources),
        created_at=row.created_at,
        spec=spec,
    )


def job_summary(row: JobRow, counts: JobCounts) -> JobSummary:
    """Return what a list tells of a job.

    Its spec is only read and not checked again, which would take ten times as long where there are many sources.
    """
    spec = orjson.loads(row.spec)
    pools = spec.get("devices") or [spec]
    profiles = [pool["profile"] for pool in pools]
    return JobSummary(
        name=row.name,
        profiles="+".join(profile if isinstance(profile, str) else profile["name"] for profile in profiles),
        num_gpus=sum(pool["num_gpus"] for pool in pools),
        num_sources=len(spec["sources"]),
        created_at=row.created_at,
        num_iterations=counts.num_iterations,
        num_planned=counts.num_planned,
        num_failed=counts.num_failed,
        last_iteration=counts.last_iteration,
    )


def iteration_summary(row: IterationRow) -> IterationSummary:
    """Return what a list tells of an iteration."""
    return IterationSummary(**_fields(row))


def iteration_status(row: IterationRow, spec: JobSpec, reported: Collection[str]) -> IterationStatus:
    """Return everything that is told of an iteration but its plan."""
    missing = [source for source in spec.sources if source not in reported]
    problem = None if row.problem is None else Problem.model_validate_json(row.problem)
    return IterationStatus(
        **_fields(row),
        job=row.job,
        missing=missing[:MAX_NAMED],
        num_missing=len(missing),
        num_tries=row.num_tries,
        problem=problem,
    )


def _fields(row: IterationRow) -> dict[str, Any]:
    of_plan = {} if row.summary is None else orjson.loads(row.summary)
    return {
        "iteration": row.iteration,
        "state": row.state,
        "num_reported": row.num_reported,
        "due_at": row.due_at,
        "finished_at": row.finished_at,
        "measured_ms": row.measured_ms,
        "code": None if row.problem is None else orjson.loads(row.problem).get("code"),
        **{name: of_plan.get(name) for name in _OF_PLAN},
    }
