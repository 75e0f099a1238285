"""What an analyst wants of jobs, iterations, plans and profiles, as rows by heading. Pure."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from planner_client.commands.export import utc
from planner_client.contract import Fit, IterationSummary, Job, LayoutCost, Plan, PlanSummary, Profile, Replica

JOB_HEADINGS = (
    "job", "profiles", "num_gpus", "num_sources", "created_at", "source_wait_ms", "missing_sources", "plan_wait_ms",
    "num_strategies",
)  # fmt: skip
ITERATION_HEADINGS = (
    "job", "iteration", "state", "num_reported", "due_at", "finished_at", "digest", "strategy", "makespan_ms",
    "measured_ms", "gap", "planning_ms", "code",
)  # fmt: skip
ASSIGNMENT_HEADINGS = (
    "simulated_ms", "sync_ms", "lower_bound_ms", "all_strategies_lower_bound_ms", "bound_scope", "status", "solved_by",
    "num_gpus", "num_replicas", "num_micro_batches", "num_sequences", "num_tokens", "num_padding_tokens", "num_dropped",
    "num_distinct_lengths", "shortest_tokens", "longest_tokens",
)  # fmt: skip
PLAN_HEADINGS = (
    "digest", "number", "created_at", "profile", "iteration", "method", "cost", "alignment", "seed", "strategy",
    "makespan_ms", "gap", "planning_ms", "cut_by_wall_clock", *ASSIGNMENT_HEADINGS,
)  # fmt: skip
PROFILE_HEADINGS = (
    "profile", "source", "model", "device", "memory_bytes", "gpus_per_node", "tp", "cp", "pp", "a_ms_per_token2",
    "b_ms_per_token", "c_ms", "max_tokens", "num_samples", "r2", "median_abs_pct_error",
    "is_estimated", "num_outliers", "held_out_median_abs_pct_error", "held_out_worst_abs_pct_error", "num_warnings",
)  # fmt: skip
LENGTHS = "lengths"
"""Heading of the histogram, as ``length:count`` with spaces between; only where it is asked for."""


def job_row(job: Job) -> dict[str, Any]:
    """Write a job as a row."""
    return {
        "job": job.name,
        **job.model_dump(include={"profiles", "num_gpus", "num_sources"}),
        "created_at": utc(job.created_at),
        **job.spec.model_dump(include={"source_wait_ms", "missing_sources", "plan_wait_ms"}),
        "num_strategies": len(job.spec.strategies),
    }


def iteration_row(job: str, summary: IterationSummary, plan: Plan | None) -> dict[str, Any]:
    """Write an iteration as a row, with the figures of its plan if that is given."""
    return {
        "job": job,
        **summary.model_dump(),
        "due_at": utc(summary.due_at),
        "finished_at": utc(summary.finished_at),
        **({} if plan is None else assignment_of(plan)),
    }


def plan_row(plan: Plan, summary: PlanSummary | None) -> dict[str, Any]:
    """Write a plan as a row; its number and age are known where it came from a list."""
    stored = {} if summary is None else {"number": summary.number, "created_at": utc(summary.created_at)}
    return {**plan.model_dump(exclude={"replicas", "dropped", "passed_over"}), **stored, **assignment_of(plan)}


def profile_rows(profile: Profile) -> Iterator[dict[str, Any]]:
    """Write a profile as one row for each of its layouts."""
    for layout in profile.layouts:
        yield {
            "profile": profile.name,
            "source": profile.source,
            "model": profile.model.name,
            "device": profile.device.name,
            "memory_bytes": profile.device.memory_bytes,
            "gpus_per_node": profile.device.gpus_per_node,
            **layout.model_dump(include=set(PROFILE_HEADINGS)),
            "is_estimated": layout.is_estimated,
            **({} if layout.fit is None else _fit_figures(layout.fit)),
        }


def _fit_figures(fit: Fit) -> dict[str, Any]:
    held_out = fit.held_out
    unseen = {} if held_out is None else held_out.model_dump(exclude={"num_samples", "r2"})
    return {
        **fit.model_dump(include=set(PROFILE_HEADINGS)),
        "num_outliers": fit.num_outliers,
        **{f"held_out_{name}": value for name, value in unseen.items()},
        "num_warnings": len(fit.warnings),
    }


def assignment_of(plan: Plan) -> dict[str, Any]:
    """Return the figures of a plan that stand in no summary, its histogram of lengths among them."""
    micro_batches = [micro_batch for replica in plan.replicas for micro_batch in replica.micro_batches]
    counts = lengths_of(plan)
    return {
        **plan.model_dump(include=set(ASSIGNMENT_HEADINGS)),
        "num_replicas": len(plan.replicas),
        "num_micro_batches": len(micro_batches),
        "num_padding_tokens": sum(micro_batch.num_padding_tokens for micro_batch in micro_batches),
        "num_dropped": sum(entry.count for entry in plan.dropped),
        "num_distinct_lengths": len(counts),
        "shortest_tokens": min(counts, default=None),
        "longest_tokens": max(counts, default=None),
        LENGTHS: " ".join(f"{length}:{count}" for length, count in sorted(counts.items())),
    }


def lengths_of(plan: Plan) -> Counter[int]:
    """Count the sequences that a plan places, by length (tokens)."""
    counts: Counter[int] = Counter()
    for replica in plan.replicas:
        for micro_batch in replica.micro_batches:
            for entry in micro_batch.sequences:
                counts[entry.length] += entry.count
    return counts


def layout_name(layout: Replica | LayoutCost) -> str:
    """Write a layout as plans do: (tp,pp), or (tp,cp,pp) where sequences are split."""
    degrees = (layout.tp, layout.pp) if layout.cp == 1 else (layout.tp, layout.cp, layout.pp)
    return "(" + ",".join(map(str, degrees)) + ")"
