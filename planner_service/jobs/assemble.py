"""What reports a plan can be made of: pure."""

from collections.abc import Mapping
from functools import lru_cache

from pydantic import ValidationError

from planner_client.contract import FaultCode, JobSpec, SourceBatch, request_for
from planner_client.contract.wording import first_few
from planner_service.core.faults import PlanningFault
from planner_service.store import ReportTerms

MAX_NAMED = 1000
"""Most sources that an answer names."""


@lru_cache(maxsize=256)
def spec_of(content: bytes) -> JobSpec:
    """Read a stored spec; the same few are read for every report."""
    return JobSpec.model_validate_json(content)


@lru_cache(maxsize=256)
def sources_of(content: bytes) -> frozenset[str]:
    """Return the sources of a stored spec."""
    return frozenset(spec_of(content).sources)


def refuse_unfit(spec: JobSpec, sources: frozenset[str], batches: Mapping[str, SourceBatch]) -> None:
    """Refuse reports that no plan could honour, while whoever sent them can still hear of it.

    Raises
    ------
    PlanningFault
        Code ``unknown-source`` or ``invalid-request``.
    """
    if batches.keys() <= sources and _is_fit(spec, batches):
        return  # then each by itself is; to look at thousands one by one takes seconds
    for source, batch in batches.items():
        if source not in sources:
            raise PlanningFault(
                FaultCode.UNKNOWN_SOURCE,
                f"job {spec.name} has no source {source}; its sources are {first_few(spec.sources)}",
                "report under one of them, or register a job with this source",
                job=spec.name,
                source=source,
            )
        try:
            request_for(spec, 0, {source: batch})
        except ValidationError as unfit:
            message = unfit.errors(include_url=False, include_context=False)[0]["msg"].removeprefix("Value error, ")
            raise PlanningFault(
                FaultCode.INVALID_REQUEST,
                f"source {source}: {message}",
                "report what the job's options can be planned with",
                job=spec.name,
                source=source,
            ) from unfit


def _is_fit(spec: JobSpec, batches: Mapping[str, SourceBatch]) -> bool:
    try:
        request_for(spec, 0, batches)
    except ValidationError:
        return False
    return True


def terms_of(spec: JobSpec, max_open: int) -> ReportTerms:
    """Return what holds for reports of a job's sources."""
    useful_s = None if spec.plan_wait_ms is None else spec.plan_wait_ms / 1000.0
    return ReportTerms(len(spec.sources), spec.source_wait_ms / 1000.0, max_open, useful_s)


def sources_missing(spec: JobSpec, iteration: int, reported: Mapping[str, object]) -> PlanningFault:
    """Return why an iteration has no plan whose job refuses to leave sources out."""
    missing = [source for source in spec.sources if source not in reported]
    return PlanningFault(
        FaultCode.SOURCES_MISSING,
        f"{len(missing)} of {len(spec.sources)} sources of iteration {iteration} of job {spec.name} did not report "
        f"within {spec.source_wait_ms} ms: {first_few(missing)}",
        "see to these sources, raise source_wait_ms, or register the job with missing_sources leave-out",
        job=spec.name,
        iteration=iteration,
        missing=missing[:MAX_NAMED],
        num_missing=len(missing),
    )


def unknown_job(name: str) -> PlanningFault:
    """Return that there is no job of a name."""
    return PlanningFault(
        FaultCode.UNKNOWN_JOB,
        f"there is no job {name[:128]!r}",
        "register it with POST /v1/jobs, or name one that GET /v1/jobs lists",
        job=name[:128],
    )
