"""Draws the pictures of the pages on concepts, from plans that this version makes: `python docs/site/pictures.py`."""

import json
from pathlib import Path
from typing import Any

from planner_client.contract import Plan, PlanOptions, PlanRequest
from planner_client.contract.strategy import parse_strategy
from planner_service.profiles import builtin_profiles
from planner_service.simulation.gantt import gantt_of
from planner_service.simulation.records import planned_of
from planner_service.simulation.svg import Series, grouped_bars, spans
from planner_service.translate import plan_request

IMAGES = Path(__file__).parent.parent / "images"
PROFILE = "llama-32b-a800-80g"
NUM_GPUS = 32
LENGTHS = [22_000, *[11_000] * 2, *[4_000] * 4, *[2_000] * 8, *[900] * 16, *[300] * 24]
"""One global batch: a long sequence, and many short ones, as in code and documents."""

STYLE = """<style>
svg { background: #fff; font: 12px sans-serif; }
.axis { fill: #333; } .grid { stroke: #ccc; }
.s0 { fill: #3b6fb6; } .s1 { fill: #d9822b; }
.f0 { fill: #3b6fb6; } .f1 { fill: #7fa6d8; } .b0 { fill: #d9822b; } .b1 { fill: #eab676; }
</style>"""


def plan(method: str, strategy: str) -> Plan:
    """Plan the batch by a method on one strategy."""
    profile = builtin_profiles()[PROFILE]
    options = PlanOptions.model_validate({"method": method, "deadline_ms": 10_000})
    request = PlanRequest(
        profile=profile, num_gpus=NUM_GPUS, lengths=LENGTHS, strategies=[parse_strategy(strategy)], options=options
    )
    return plan_request(request, [profile], remaining_ms=lambda: 10_000.0)


def write(name: str, svg: str) -> None:
    """Write a picture that looks the same on a light and on a dark page."""
    head, _, rest = svg.partition(">")
    (IMAGES / name).write_text(f"{head}>{STYLE}{rest}\n", encoding="utf-8")


def draw() -> dict[str, Any]:
    """Draw all pictures; return the figures that the pages tell."""
    IMAGES.mkdir(exist_ok=True)
    layout = next(cost for cost in builtin_profiles()[PROFILE].layouts if (cost.tp, cost.pp) == (8, 1))
    full = {"1 x 16,384": [16_384], "4 x 4,096": [4_096] * 4, "16 x 1,024": [1_024] * 16, "64 x 256": [256] * 64}
    times_ms = [
        layout.c_ms + sum(layout.a_ms_per_token2 * s * s + layout.b_ms_per_token * s for s in lengths)
        for lengths in full.values()
    ]
    write(
        "equally-full.svg",
        grouped_bars("Time of equally full micro-batches (ms)", list(full), [Series("ms", times_ms)]),
    )
    plans = {
        "plain": plan("plain", "(8,2)x2"),
        "balanced": plan("hydraulis", "(8,2)x2"),
        "unlike": plan("hydraulis", "(8,2)x1,(8,1)x2"),
    }
    last = max(made.simulated_ms for made in plans.values()) / 1000
    for name, made in plans.items():
        gantt = gantt_of(planned_of(made))
        write(f"iteration-{name}.svg", spans(f"Pipelines of one iteration, {name} (s)", gantt.rows, gantt.boxes, last))
    return {
        "equally_full_ms": dict(zip(full, times_ms, strict=True)),
        **{
            name: {"makespan_ms": made.makespan_ms, "simulated_ms": made.simulated_ms, "gap": made.gap}
            for name, made in plans.items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(draw(), indent=2))  # noqa: T201 - what the pages tell
