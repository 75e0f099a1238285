"""The bench's results as JSON.

Fields of the document; fields may be added, not renamed:

* ``suite``, ``seconds``, ``num_jobs``, ``machine`` (``num_cpus``, ``python``, ``ortools``);
* ``bars``, for each ``name``, ``limit``, ``measured`` (as text) and ``is_met`` (null where nothing was measured);
* ``broken_invariants``, sentences; the command exits 1 if there is one;
* ``headline``, for each case ``profile``, ``num_gpus``, ``num_tokens``, ``stream``, ``static`` (the best static
  homogeneous strategy under the plain loader), ``speed_up`` of free strategies over it (simulated time of all
  iterations together), and ``speed_up_holding_max_length``, the same against static strategies that hold the suite's
  longest length (32768) whether the stream has such a sequence or not (null where none does);
* ``published``, for each plan of the published method ``case``, ``iteration``, ``planning_ratio`` and
  ``makespan_ratio``, its figures over ours; where it did not end by its deadline the latter is null and the former what
  the deadline alone makes;
* ``cases``, for each its own fields, ``seconds``, ``infeasible`` (why, or null) and ``replay`` (see `document`; null if
  infeasible).
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from planner_service.simulation.document import document_of
from planner_service.simulation.verdicts import CaseResult, bars_of, broken_invariants, comparisons, headline


def bench_document(results: Sequence[CaseResult], published_deadline_ms: float, run: dict[str, Any]) -> dict[str, Any]:
    """Write the bench's results as values that JSON knows, cases in order; ``run`` is the first point."""
    ordered = sorted(results, key=lambda result: result.case)
    heads = [entry for result in ordered if (entry := headline(result)) is not None]
    return {
        **run,
        "bars": [asdict(bar) for bar in bars_of(ordered)],
        "broken_invariants": [text for result in ordered for text in broken_invariants(result)],
        "headline": [
            {
                **asdict(entry.case),
                "static": entry.static,
                "speed_up": entry.speed_up,
                "speed_up_holding_max_length": entry.speed_up_holding_max_length,
            }
            for entry in heads
        ],
        "published": [asdict(entry) for result in ordered for entry in comparisons(result, published_deadline_ms)],
        "cases": [
            {
                **asdict(result.case),
                "seconds": result.seconds,
                "infeasible": result.infeasible,
                "replay": None if result.replay is None else document_of(result.replay),
            }
            for result in ordered
        ],
    }
