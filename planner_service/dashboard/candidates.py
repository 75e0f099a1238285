"""Why a strategy was chosen, beside the others that a job names: pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from planner_client.contract import Candidate, CandidateList, Histogram


def placed_lengths(plan: Mapping[str, Any]) -> Histogram:
    """Count the sequences that a plan places by length, whichever source holds them."""
    counts: Counter[int] = Counter()
    for replica in plan["replicas"]:
        for micro_batch in replica["micro_batches"]:
            for entry in micro_batch["sequences"]:
                counts[entry["length"]] += entry["count"]
    lengths = sorted(counts)
    return Histogram(lengths=lengths, counts=[counts[length] for length in lengths])


def candidates_of(plan: Mapping[str, Any], bounds: Mapping[str, float]) -> CandidateList:
    """Put candidates in order: the chosen one, those that lost by their bounds, those that could not be used.

    Parameters
    ----------
    plan
        The plan, whose own bound counts where it is for its strategy alone.
    bounds
        Bound of each candidate that could be used (ms).
    """
    own: float | None = plan["lower_bound_ms"] if plan["bound_scope"] == "strategy" else None
    chosen = [
        Candidate(strategy=name, is_chosen=True, lower_bound_ms=max(bound, own or 0.0))
        for name, bound in bounds.items()
        if name == plan["strategy"]
    ]
    others = [
        Candidate(strategy=name, is_chosen=False, lower_bound_ms=bound)
        for name, bound in sorted(bounds.items(), key=lambda entry: (entry[1], entry[0]))
        if name != plan["strategy"]
    ]
    unusable = [
        Candidate(strategy=entry["strategy"], is_chosen=False, lower_bound_ms=None, reason=entry["reason"])
        for entry in plan.get("passed_over", [])
    ]
    return CandidateList(candidates=[*chosen, *others, *unusable])
