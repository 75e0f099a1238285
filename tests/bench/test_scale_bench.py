"""Planning time against the number of sequences and of GPUs, up to a million and 16,384; draws docs/planning-time.svg.

Sequences are drawn from the built-in stream `alpacaeval` and sent as a histogram; all strategies are searched.
"""

import multiprocessing
import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from planner_client.contract import PlanRequest
from planner_service.profiles import builtin_profiles
from planner_service.translate import plan_request
from planner_service.workloads import builtin_stream

pytestmark = [pytest.mark.bench, pytest.mark.long]
PROFILE = "llama-7b-a800-80g"
SIZES = [10**3, 10**4, 10**5, 10**6]
GPUS = [2**4, 2**6, 2**8, 2**10, 2**12, 2**14]
DEADLINE_MS = 6000
PICTURE = Path(__file__).parent.parent.parent / "docs" / "planning-time.svg"


@dataclass(frozen=True)
class Measured:
    num_gpus: int
    num_sequences: int
    seconds: float
    gap: float | None
    gibibytes: float


def measure(num_gpus: int, num_sequences: int) -> Measured:
    drawn = np.random.default_rng(0).choice(np.array(builtin_stream("alpacaeval")), num_sequences)
    lengths, counts = np.unique(drawn, return_counts=True)
    request = PlanRequest.model_validate(
        {
            "profile": PROFILE,
            "num_gpus": num_gpus,
            "histograms": {"all": {"lengths": lengths.tolist(), "counts": counts.tolist()}},
            "options": {"deadline_ms": DEADLINE_MS},
        }
    )
    started = time.perf_counter()
    end = started + DEADLINE_MS / 1000
    plan = plan_request(request, [builtin_profiles()[PROFILE]], remaining_ms=lambda: (end - time.perf_counter()) * 1e3)
    seconds = time.perf_counter() - started
    assert plan.num_sequences == num_sequences
    assert plan.num_tokens == int(drawn.sum())
    return Measured(
        num_gpus, num_sequences, seconds, plan.gap, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    )


def measured(num_gpus: int, num_sequences: int) -> Measured:
    """Measure in a process of its own, so that memory is that of one plan."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, (num_gpus, num_sequences))


def draw(found: list[Measured]) -> None:
    from matplotlib.figure import Figure  # noqa: PLC0415 - only this bench draws

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    by_size, by_gpus = figure.subplots(1, 2, sharey=True)
    for num_gpus in (2**4, 2**8, 2**14):
        own = [one for one in found if one.num_gpus == num_gpus]
        by_size.plot([one.num_sequences for one in own], [one.seconds for one in own], "o-", label=f"{num_gpus:,} GPUs")
    for size in SIZES:
        own = [one for one in found if one.num_sequences == size]
        by_gpus.plot([one.num_gpus for one in own], [one.seconds for one in own], "o-", label=f"{size:,} sequences")
    for axes, name in ((by_size, "sequences"), (by_gpus, "GPUs")):
        axes.set(xscale="log", yscale="log", xlabel=name, ylim=(0.01, 20))
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    by_size.set_ylabel("planning time, s")
    figure.savefig(PICTURE, metadata={"Date": None})


@pytest.mark.timeout(1500)
def test_planning_time_against_sequences_and_gpus() -> None:
    found = [measured(num_gpus, size) for num_gpus in GPUS for size in SIZES]
    for one in found:
        gap = "no bound" if one.gap is None else f"gap {one.gap:.2%}"
        print(  # noqa: T201 - the figures are what a bench is for
            f"\n{one.num_gpus:>6} GPUs {one.num_sequences:>8} sequences: {one.seconds:6.2f} s, {gap}, "
            f"{one.gibibytes:.2f} GiB"
        )
        assert one.seconds <= 10
        assert one.gibibytes <= 2
    draw(found)
