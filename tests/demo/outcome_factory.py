"""Outcomes for tests that need no training."""

from typing import Any

from worker_agent.demo.changing import ChangingRecord, ChangingRun, ReplicaRun
from worker_agent.demo.corpus import Corpus
from worker_agent.demo.outcome import FittedLayout, IterationRecord, Mode, Outcome


def make_record(mode: Mode, iteration: int, **changes: Any) -> IterationRecord:
    planned = mode == "planned"
    content: dict[str, Any] = {
        "iteration": iteration,
        "mode": mode,
        "digest": f"sha256:{iteration}",
        "solved_by": "cp-sat" if planned else "heuristic",
        "loss": 5.0 / (iteration + 1),
        "num_sequences": 4,
        "num_tokens": 4000,
        "num_micro_batches": 2,
        "predicted_ms": (1000.0, 1000.0) if planned else (1500.0, 500.0),
        "measured_ms": (1010.0, 990.0) if planned else (1600.0, 480.0),
        "cpu_ms": (1000.0, 980.0) if planned else (1580.0, 470.0),
        "wall_ms": 1100.0 if planned else 1700.0,
        "planning_ms": 20.0 if planned else 1.0,
        "fetch_ms": 30.0 if planned else 5.0,
        "waited_ms": (30.0 if iteration == 0 else 0.1) if planned else 5.0,
        "gap": 0.001 if planned else 0.5,
    }
    return IterationRecord(**(content | changes))


def make_replica(ranks: tuple[int, ...], num_tokens: int = 1234, **changes: Any) -> ReplicaRun:
    content: dict[str, Any] = {
        "tp": len(ranks),
        "pp": 1,
        "ranks": ranks,
        "num_sequences": 3,
        "num_tokens": num_tokens,
        "num_micro_batches": 2,
    }
    return ReplicaRun(**(content | changes))


def make_changing_record(iteration: int, **changes: Any) -> ChangingRecord:
    content: dict[str, Any] = {
        "iteration": iteration,
        "strategy": "(2,1)x1,(1,1)x2",
        "digest": f"sha256:{iteration}",
        "replicas": (make_replica((0, 1), 2345), make_replica((2,)), make_replica((3,))),
        "loss": 5.0 / (iteration + 1),
        "reference_loss": 5.0 / (iteration + 1),
        "num_sequences": 9,
        "num_tokens": 4813,
        "wall_ms": 500.0,
        "propagation_ms": (10.0, 12.0, 80.0, 5.0),
        "propagation_share": 0.02,
        "planning_ms": 20.0,
        "gap": 0.001,
    }
    return ChangingRecord(**(content | changes))


def make_changing(*records: ChangingRecord) -> ChangingRun:
    return ChangingRun(
        profile_source="estimated, not measured <&>",
        num_ranks=4,
        max_length=1536,
        records=records or (make_changing_record(0), make_changing_record(1)),
    )


def make_outcome(num_iterations: int = 8, **changes: Any) -> Outcome:
    content: dict[str, Any] = {
        "settings": {"iterations": num_iterations, "note": "<script>&"},
        "corpus": Corpus(
            sequences=tuple(b"x" * (17 * step**2 + 1) for step in range(1, 15)),
            num_files=20,
            num_empty=2,
            num_over_long=4,
            num_over_long_tokens=99_999,
            max_length=4096,
        ),
        "profile": FittedLayout(
            profile="demo",
            a_ms_per_token2=2e-5,
            b_ms_per_token=0.03,
            c_ms=3.0,
            sync_ms=4.0,
            max_tokens=8192,
            num_samples=40,
            r2=0.98,
            median_abs_pct_error=3.0,
            num_held_out=10,
            held_out_median_abs_pct_error=4.0,
        ),
        "records": tuple(
            make_record(mode, iteration) for iteration in range(num_iterations) for mode in ("plain", "planned")
        ),
        "changing": make_changing(),
        "elapsed_s": 60.0,
    }
    return Outcome(**(content | changes))
